"""What is known of one position, in each engine."""

from __future__ import annotations

import numpy as np
import pytest

from engines import events
from engines.events import KvState, pack_cell
from kvtui.cache_state import FLOOR_DECADES
from kvtui.inspection import NO_ENTRY_YET, NO_SUCH_TOKEN, NOT_KNOWN_YET, NOT_THERE_YET, Facts, Place, facts
from kvtui.panes.inspector import Inspector
from kvtui.state import RunState
from tests.synthetic import KV_HEADS, started, whole_race

LAYERS = 4


def byte(share: float) -> int:
    return round(255 * (1 + np.log10(share) / FLOOR_DECADES))


def submitted(request: int, text: str, cuts: list[int], engine: str = "", first: int = 0) -> events.Submitted:
    return events.Submitted(
        engine=engine,
        request=request,
        title="t",
        text=text,
        offsets=cuts,
        prompt_tokens=len(cuts),
        first_position=first,
        follow_up=first > 0,
    )


def said(engine: str, request: int, *texts: str) -> list[events.AnyEvent]:
    return [
        events.Token(engine=engine, request=request, index=i, token_id=hash(text) % 1000, text=text, logprob=0.0)
        for i, text in enumerate(texts)
    ]


def picture(cells: np.ndarray, mass: np.ndarray, request: int = 0, engine: str = "h2o") -> events.Cache:
    return events.Cache(
        engine=engine,
        request=request,
        tokens=cells.shape[1],
        layers=cells.shape[0],
        whole=True,
        states=events.deflate(cells.astype(np.uint8).tobytes()),
        mass=events.deflate(mass.astype(np.uint8).tobytes()),
        mass_bins=mass.shape[1],
    )


def heads(states: np.ndarray, mass: np.ndarray, layer: int, engine: str = "h2o") -> events.Heads:
    return events.Heads(
        engine=engine,
        request=0,
        layer=layer,
        kv_heads=states.shape[0],
        tokens=states.shape[1],
        states=events.deflate(states.astype(np.uint8).tobytes()),
        mass=events.deflate(mass.astype(np.uint8).tobytes()),
    )


def state_of(*batch: events.AnyEvent) -> RunState:
    state = RunState()
    state.apply_all([started(("vllm", "h2o")), submitted(0, "The code word", [3, 8, 13]), *batch])
    return state


def of(state: RunState, place: Place, engine: str = "h2o") -> Facts:
    return next(one for one in facts(state, place) if one.engine == engine)


def test_the_prompts_tokens_and_the_answers() -> None:
    state = state_of(*said("vllm", 0, " is", " lantern"), *said("h2o", 0, " is", " lost"))
    words = [of(state, Place(position)).word for position in range(6)]
    assert [word.text for word in words if word] == ["The", " code", " word", " is", " lost"]
    assert words[5] is None
    assert words[4] is not None
    assert (words[4].answer, words[4].index, words[4].of, words[4].paged_text) == (True, 1, 2, " lantern")
    assert words[3] is not None
    assert words[3].paged_text is None


def two_questions() -> RunState:
    """The code word| a|So?| x  in the paged engine, in H2O  The code word| b c d|So?| y z."""
    return state_of(
        *said("vllm", 0, " a"),
        *said("h2o", 0, " b", " c", " d"),
        submitted(1, "So?", [2, 3], "vllm", first=4),
        submitted(1, "So?", [2, 3], "h2o", first=6),
        *(events.Outcome(engine=e, request=0, outcome="ok") for e in ("vllm", "h2o")),
        *said("vllm", 1, " x"),
        *said("h2o", 1, " y", " z"),
    )


@pytest.mark.parametrize(
    ("place", "paged", "h2o"),
    [
        (Place(1), (" code", 1), (" code", 1)),
        (Place(3), (" a", 3), (" b", 3)),
        (Place(4), ("So", 4), ("So", 6)),  # a prompt's token is compared with itself
        (Place(5), ("?", 5), ("?", 7)),
        (Place(6), (" x", 6), (" y", 8)),  # an answer's with the one as far into the same answer
        (Place(4, engine="h2o"), (None, None), (" c", 4)),  # which has none in an answer that is shorter
        (Place(7, engine="h2o"), ("?", 5), ("?", 7)),
        (Place(9), (None, None), (" z", 9)),  # beyond the paged engine's end
        (Place(12), (None, 12), (None, 12)),
    ],
)
def test_a_token_is_compared_by_its_place_in_the_conversation(
    place: Place, paged: tuple[str | None, int | None], h2o: tuple[str | None, int | None]
) -> None:
    found = [(one.word.text if one.word else None, one.position) for one in facts(two_questions(), place)]
    assert found == [paged, h2o]


def test_an_answers_token_says_what_the_paged_engine_said_there() -> None:
    answer = of(two_questions(), Place(6)).word
    assert answer is not None
    assert (answer.request, answer.index, answer.text, answer.paged_text) == (1, 0, " y", " x")


def test_a_follow_up_whose_first_tokens_an_engine_left_out_is_compared_from_its_end() -> None:
    state = two_questions()
    state.apply_all(
        [
            *(events.Outcome(engine=e, request=1, outcome="ok") for e in ("vllm", "h2o")),
            submitted(2, ".Why?", [1, 4, 5], "vllm", first=7),
            submitted(2, "Why?", [3, 4], "h2o", first=10),
        ]
    )
    assert [(one.word.text, one.position) for one in facts(state, Place(8)) if one.word] == [("Why", 8), ("Why", 10)]
    assert of(state, Place(7)).position is None


def test_each_engines_own_position_is_what_its_cache_is_asked_about() -> None:
    state = two_questions()
    cells = np.full((LAYERS, 9), pack_cell(KvState.EVICTED, 0))
    cells[:, 6] = pack_cell(KvState.DEVICE, 1)
    state.apply(picture(cells, np.zeros((LAYERS, 9)), request=1))
    assert of(state, Place(4)).state == KvState.DEVICE
    assert of(state, Place(5)).state == KvState.EVICTED
    wide = lines(state, Place(4), 120)
    assert wide[0].startswith("position 4 · all layers")
    assert wide[0].endswith("prompt 2 · prompt token 1")
    assert wide[1].split("H2O")[1].strip() == "“So” · position 6"
    assert "position" not in wide[1].split("H2O")[0]
    assert lines(state, Place(4), 50)[2].endswith("“So” · position 6")


def test_what_has_no_entry_says_why() -> None:
    state = two_questions()
    assert [of(state, Place(0), e).missing for e in ("vllm", "h2o")] == [NOT_KNOWN_YET] * 2  # no picture came yet
    state.apply(picture(np.full((LAYERS, 9), pack_cell(KvState.DEVICE, 1)), np.zeros((LAYERS, 9)), request=1))
    assert [of(state, Place(at, engine="h2o")).missing for at in (8, 9, 12)] == ["", NO_ENTRY_YET, NO_SUCH_TOKEN]
    assert of(state, Place(4, engine="h2o"), "vllm").missing == NO_SUCH_TOKEN  # its first answer is shorter
    behind = state_of(*said("vllm", 0, " a", " b"), *said("h2o", 0, " a"))
    assert of(behind, Place(4)).missing == NOT_THERE_YET
    assert lines(state, Place(9, engine="h2o"), 120)[2].split("–")[2].strip() == "said last, no entry yet"


def test_an_engine_that_is_at_another_prompt_has_no_such_token() -> None:
    state = state_of(
        *said("vllm", 0, " a"),
        *said("h2o", 0, " b"),
        events.Outcome(engine="vllm", request=0, outcome="ok"),
        submitted(1, "New", [3], "vllm"),
        submitted(1, "New", [3], "h2o"),
    )
    assert [(one.word.text if one.word else None) for one in facts(state, Place(0))] == ["New", None]


def test_without_a_layer_the_layers_are_counted() -> None:
    cells = np.full((LAYERS, 3), pack_cell(KvState.EVICTED, 0))
    cells[:2, 1] = pack_cell(KvState.DEVICE, 2 / 3)
    mass = np.zeros((LAYERS, 3))
    mass[:, 1] = byte(0.01)
    mass[0, 1] = byte(0.05)
    one = of(state_of(picture(cells, mass)), Place(1))
    assert one.state == KvState.DEVICE
    assert dict(one.cells) == {KvState.DEVICE: 2, KvState.EVICTED: 2}
    assert (one.unit, one.count) == ("layer", 4)
    assert one.share == pytest.approx(1 / 3, abs=0.02)
    assert one.mass is not None
    assert one.mass.share == pytest.approx((0.05 + 3 * 0.01) / 4, rel=0.05)
    assert (one.mass.tokens, one.mass.rank, one.mass.of) == (1, 1, 3)


def test_bins_say_that_they_are_bins() -> None:
    cells = np.full((1, 10), pack_cell(KvState.DEVICE, 1))
    one = of(state_of(picture(cells, np.array([[byte(0.1), byte(0.5), 0, byte(0.2)]]))), Place(3, 0))
    assert one.mass is not None
    assert one.mass.share == pytest.approx(0.5, rel=0.05)
    assert (one.mass.tokens, one.mass.rank, one.mass.of) == (2, 1, 4)  # positions 3 and 4
    last = of(state_of(picture(cells, np.array([[byte(0.1), byte(0.5), 0, byte(0.2)]]))), Place(7, 0)).mass
    assert last is not None
    assert (last.share, last.rank) == (0.0, None)


def test_a_layer_that_was_seen_head_by_head_is_exact() -> None:
    cells = np.full((LAYERS, 4), pack_cell(KvState.DEVICE, 2 / 3))
    states = np.array([[1, 5, 1, 1], [5, 1, 1, 1], [1, 1, 5, 5]])
    mass = np.array([[byte(0.2), 0, byte(0.1), byte(0.1)], [0, byte(0.3), byte(0.1), byte(0.1)], [byte(0.1)] * 4])
    state = state_of(picture(cells, np.zeros((LAYERS, 2))), heads(states, mass, 2))
    one = of(state, Place(0, 2))
    assert dict(one.cells) == {KvState.DEVICE: 2, KvState.EVICTED: 1}
    assert one.unit == "head"
    assert one.mass is not None
    assert one.mass.share == pytest.approx(0.3, rel=0.05)
    assert (one.mass.rank, one.mass.of) == (2, 4)  # position 1 has 0.4; 2 and 3 have as much as this one
    assert one.as_of_tokens is None
    single = of(state, Place(0, 2, 1))
    assert (single.state, single.share, single.unit) == (KvState.EVICTED, 0.0, "")
    assert single.mass is not None
    assert single.mass.rank is None
    unseen = of(state, Place(0, 1, 1))  # then the picture tells how many of the heads, but not which
    assert dict(unseen.cells) == {KvState.DEVICE: 2, KvState.EVICTED: 1}


def test_heads_that_are_older_than_the_picture_say_so() -> None:
    cells = np.full((LAYERS, 4), pack_cell(KvState.DEVICE, 1))
    state = state_of(picture(cells, np.zeros((LAYERS, 4))), heads(np.ones((3, 4)), np.ones((3, 4)), 0))
    grown = np.full((LAYERS, 6), pack_cell(KvState.DEVICE, 1))
    state.apply(picture(grown, np.zeros((LAYERS, 6))))
    assert of(state, Place(2, 0)).as_of_tokens == 4
    assert of(state, Place(5, 0)).as_of_tokens is None  # the heads know nothing of this one
    assert of(state, Place(5, 0)).state == KvState.DEVICE
    grown = np.full((LAYERS, 7), pack_cell(KvState.EVICTED, 0))
    state.apply(picture(grown, np.zeros((LAYERS, 7))))
    changed = of(state, Place(2, 0, 1))  # since the heads were seen: the picture knows better
    assert (changed.state, changed.as_of_tokens) == (KvState.EVICTED, 4)


def test_since_when() -> None:
    cells = np.full((LAYERS, 3), pack_cell(KvState.DEVICE, 1))
    state = state_of(picture(cells, np.zeros((LAYERS, 3))), *said("h2o", 0, " a", " b"))
    later = np.full((LAYERS, 5), pack_cell(KvState.DEVICE, 1))
    later[2, 1] = pack_cell(KvState.EVICTED, 0)
    state.apply(picture(later, np.zeros((LAYERS, 5))))
    assert (of(state, Place(0)).since_tokens, of(state, Place(0)).since) == (3, "prefill")
    assert (of(state, Place(1)).since_tokens, of(state, Place(1)).since) == (
        5,
        "decode step 2",
    )  # any layer's last change
    assert of(state, Place(1, 0)).since == "prefill"
    assert of(state, Place(1, 2)).since == "decode step 2"


@pytest.mark.parametrize("place", [Place(-1), Place(0, 99), Place(10**9), Place(0, 0, 99), Place(0, -1, -1)])
def test_places_that_are_not_there(place: Place) -> None:
    state = state_of(picture(np.full((LAYERS, 3), pack_cell(KvState.DEVICE, 1)), np.zeros((LAYERS, 3))))
    assert len(facts(state, place)) == 2
    assert of(state, place, "vllm").cells == ()  # no picture of this one


def lines(state: RunState, place: Place, width: int, height: int = 8) -> list[str]:
    pane = Inspector()
    pane._place, pane._facts = place, facts(state, place)
    return ["".join(text for text, _ in line) for line in pane.draw(width, height)]


def test_the_pane_side_by_side_and_in_lines() -> None:
    state = RunState()
    state.apply_all(whole_race(prompt_tokens=512, new_tokens=40))
    wide = lines(state, Place(520, 3), 120)
    assert wide[0].startswith("position 520 · layer 4 · all heads ─")
    assert wide[0].endswith("prompt 1 · answer token 9")
    assert "H2O “ text.” ≠ paged “ second”" in wide[1]
    assert f"on device in all {KV_HEADS} heads" in wide[2]
    assert "fetched now" in wide[2]
    assert len(wide) <= 8
    narrow = lines(state, Place(520, 3), 60)
    assert len(narrow) == 4
    assert narrow[2].startswith("H2O       ▀ on device")
    assert lines(RunState(), Place(0), 80) == []


def test_the_pane_shows_tokens_literally() -> None:
    state = state_of(*said("h2o", 0, "\x1b[31m[b]\n\u202e"))
    assert any("“␛[31m[b]⏎⟨202E⟩”" in line for line in lines(state, Place(3), 120))
