"""Tokens that differ from the paged engine's at the same place: counted, marked, explained."""

from __future__ import annotations

from kvtui.panes.stream import Stream
from kvtui.state import RequestState, RunState
from tests.synthetic import ANSWER, FORGETFUL, Race, started
from tests.test_app import make, shows, until
from tests.test_inspection import said, submitted


def of(state: RunState, engine: str, request: int = 0) -> RequestState:
    return state.engines[engine].requests[request]


def begun() -> RunState:
    state = RunState()
    state.apply_all([started(("vllm", "h2o")), submitted(0, "abc", [1, 2, 3])])
    return state


def test_follow_ups_count_from_their_own_beginning() -> None:
    state = begun()
    state.apply_all([*said("vllm", 0, "a", "b"), *said("h2o", 0, "a", "c", "d")])
    state.apply_all([submitted(1, "So?", [2, 3], "vllm", first=5), submitted(1, "So?", [2, 3], "h2o", first=6)])
    state.apply_all([*said("vllm", 1, "x", "y", "z"), *said("h2o", 1, "x", "y", "w")])
    assert of(state, "h2o").first_difference == 1
    assert of(state, "h2o", 1).first_difference == 2
    assert of(state, "h2o", 1).differs == [False, False, True]


def test_an_engine_that_says_its_tokens_again_is_compared_again() -> None:
    state = begun()
    state.apply_all([*said("vllm", 0, "a", "b", "c"), *said("h2o", 0, "a", "x", "c")])
    assert of(state, "h2o").first_difference == 1
    state.apply_all(said("h2o", 0, "a", "b"))  # preempted, recomputed
    assert of(state, "h2o").first_difference is None
    assert of(state, "h2o").differs == [False, False]


def test_when_the_paged_engine_says_its_tokens_again_all_are_compared_again() -> None:
    state = begun()
    state.apply_all([*said("vllm", 0, "a", "x", "c"), *said("h2o", 0, "a", "b", "c")])
    assert of(state, "h2o").first_difference == 1
    state.apply_all(said("vllm", 0, "a", "b", "d"))
    assert of(state, "h2o").first_difference == 2
    assert of(state, "h2o").differs == [False, False, True]


async def test_a_click_on_a_token_that_differs_says_what_the_paged_engine_said() -> None:
    race = Race(prompt_tokens=64, new_tokens=12)
    app, _ = make([started(), race.submitted(), *race.merged()])
    async with app.run_test(size=(160, 48)) as pilot:
        await shows(pilot, "≠ differs from token 5 on")
        stream = next(pane for pane in app.race.query(Stream) if pane.engine == "h2o")
        at = FORGETFUL.index("not given")
        await pilot.click(stream, offset=(2, 0))  # "The": the same
        assert not app._notifications
        await pilot.click(stream, offset=(at + 5, 0))
        await until(pilot, lambda: len(app._notifications) == 1)
        note = next(iter(app._notifications))
        paged = ANSWER.split()[FORGETFUL.split().index("given")]
        assert note.title == "Answer token 6"
        assert note.message == f"H2O “ given”  ≠  paged “ {paged}”"
