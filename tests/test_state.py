"""Events in, state out."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from engines import events
from kvtui import cache_state, figures
from kvtui.cache_state import CacheState
from kvtui.state import RunState, cache_bytes
from kvtui.verdict import findings
from tests.synthetic import ANSWER, FORGETFUL, Race, started, whole_race


def state_of(batch: list[events.AnyEvent]) -> RunState:
    state = RunState()
    state.apply_all(batch)
    return state


def token(engine: str, index: int, token_id: int, clock_s: float, request: int = 0) -> events.Token:
    return events.Token(
        engine=engine,
        clock_s=clock_s,
        request=request,
        index=index,
        token_id=token_id,
        text=f" {token_id}",
        logprob=0.0,
    )


def submitted(request: int = 0, follow_up: bool = False, engine: str = "", clock_s: float = 0.0) -> events.Submitted:
    return events.Submitted(
        engine=engine,
        clock_s=clock_s,
        request=request,
        title=f"prompt {request}",
        text="a b",
        offsets=[1, 3],
        prompt_tokens=2,
        follow_up=follow_up,
        prompts_total=3,
    )


def picture(cells: np.ndarray, whole: bool, before: np.ndarray | None = None, request: int = 0) -> events.Cache:
    sent = cells.copy()
    if before is not None:
        sent[:, : before.shape[1]] ^= before[:, : cells.shape[1]]
    return events.Cache(
        engine="h2o",
        request=request,
        tokens=cells.shape[1],
        layers=cells.shape[0],
        whole=whole,
        states=events.deflate(sent.tobytes()),
        mass=events.deflate(bytes(cells.shape[0] * 2)),
        mass_bins=2,
    )


def cache_of(state: RunState, engine: str) -> CacheState:
    cache = state.engines[engine].cache
    assert cache is not None
    return cache


def test_a_whole_race() -> None:
    state = state_of(whole_race(prompt_tokens=512, new_tokens=40))
    requests = {engine.id: engine.requests[0] for engine in state.engines.values()}
    assert list(requests) == ["vllm", "h2o", "infinigen"]
    assert all(r.status == "ok" and len(r.tokens) == 40 for r in requests.values())
    assert requests["vllm"].text.split() == ANSWER.split()[:40]
    assert requests["h2o"].text.split() == FORGETFUL.split()[:40]
    assert requests["h2o"].first_difference == 4
    assert requests["infinigen"].first_difference is None
    assert len(requests["infinigen"].differs) == 40
    assert requests["vllm"].ttft_s == pytest.approx(2.1)
    assert requests["h2o"].tpot_s == pytest.approx(0.024, rel=0.05)
    assert state.engines["h2o"].cache_bytes == pytest.approx(0.3 * (state.engines["vllm"].cache_bytes or 0), rel=0.02)
    assert state.engines["infinigen"].host_bytes
    assert not state.busy


def test_pictures_are_those_of_the_wire_language() -> None:
    """The numpy reducer and `events.apply_cells` agree on every picture of a run."""
    state, before, tokens = RunState(), b"", 0
    for event in whole_race(prompt_tokens=300, new_tokens=30):
        state.apply(event)
        if isinstance(event, events.Cache) and event.engine == "h2o":
            before, tokens = events.apply_cells(before, tokens, event), event.tokens
            assert cache_of(state, "h2o").cells.tobytes() == before


def test_a_difference_without_its_beginning_waits_for_the_next_whole_picture() -> None:
    state = state_of([started(), submitted()])
    first, second = np.full((2, 3), 1, np.uint8), np.full((2, 4), 5, np.uint8)
    state.apply(picture(second, whole=False, before=first))
    assert state.engines["h2o"].cache is None
    state.apply(picture(first, whole=True))
    state.apply(picture(second, whole=False, before=first))
    assert (cache_of(state, "h2o").cells == second).all()


@pytest.mark.parametrize("tokens", [2, 5])
def test_a_picture_of_another_shape_is_refused(tokens: int) -> None:
    state = state_of([started(), submitted()])
    good = picture(np.ones((2, 3), np.uint8), whole=True)
    with pytest.raises(ValueError, match=r"shape|larger"):
        state.apply(events.Cache(**{**{f: getattr(good, f) for f in good.__struct_fields__}, "tokens": tokens}))


@pytest.mark.parametrize("order", [("vllm", "h2o"), ("h2o", "vllm")])
def test_differences_do_not_depend_on_who_comes_first(order: tuple[str, str]) -> None:
    said = {"vllm": [7, 8, 9, 10], "h2o": [7, 1, 9, 2, 3]}
    state = state_of([started(), submitted()])
    for engine in order:
        state.apply_all(token(engine, i, t, i * 0.1) for i, t in enumerate(said[engine]))
    request = state.engines["h2o"].requests[0]
    assert request.differs == [False, True, False, True]
    assert request.first_difference == 1


def test_a_preempted_request_says_its_tokens_again() -> None:
    state = state_of([started(), submitted(), *(token("vllm", i, i, i * 0.1) for i in range(4))])
    state.apply_all(token("vllm", i, i, 1 + i * 0.1) for i in range(2, 6))
    assert state.engines["vllm"].requests[0].tokens == [0, 1, 2, 3, 4, 5]


def test_speed_is_smoothed_over_half_a_second() -> None:
    state = state_of([started(), submitted()])
    clock_s = 0.0
    for index in range(40):
        clock_s += 0.05
        state.apply(token("vllm", index, 1, clock_s))
    request = state.engines["vllm"].requests[0]
    assert request.tokens_per_s == pytest.approx(20)
    state.apply(token("vllm", 40, 1, clock_s + 0.1))
    assert 14 < (request.tokens_per_s or 0) < 20  # one slow token moves it, but not all the way
    assert request.tpot_s == pytest.approx((39 * 0.05 + 0.1) / 40)


def test_a_new_run_begins_with_nothing() -> None:
    state = state_of(whole_race(prompt_tokens=64, new_tokens=4))
    again = started()
    state.apply(events.RunStarted(**{**{f: getattr(again, f) for f in again.__struct_fields__}, "run": "second"}))
    assert state.prompts == []
    assert all(not e.requests and e.clock_s == 0 and e.cache is None for e in state.engines.values())


def test_knobs_that_change_within_a_run_keep_the_prompts() -> None:
    state = state_of(whole_race(prompt_tokens=64, new_tokens=4))
    state.apply(started(("vllm", "h2o"), budget=0.5))
    assert [p.request for p in state.prompts] == [0]
    assert list(state.engines) == ["vllm", "h2o"]
    assert state.engines["h2o"].knobs["budget"] == 0.5
    assert state.engines["h2o"].requests[0].text


def test_a_follow_up_continues_and_a_new_prompt_begins_anew() -> None:
    state = state_of(whole_race(prompt_tokens=64, new_tokens=8))
    engine = state.engines["h2o"]
    samples = len(engine.memory_history.clock_s)
    state.apply(submitted(1, follow_up=True, engine="h2o", clock_s=9.0))
    assert engine.conversation == [0, 1]
    assert len(engine.memory_history.clock_s) == samples
    state.apply_all([token("h2o", 0, 5, 9.5, request=1), events.Outcome(engine="h2o", request=1, outcome="ok")])
    assert engine.requests[1].ttft_s == pytest.approx(0.5)
    state.apply(submitted(2, clock_s=10.0))
    assert engine.conversation == [2]
    assert engine.memory_history.clock_s == []
    assert engine.started_clock_s == 10.0


def test_out_of_memory_ends_one_engine_only() -> None:
    state = state_of(whole_race(prompt_tokens=512, new_tokens=10, oom="h2o"))
    assert state.engines["h2o"].requests[0].status == "device_oom"
    assert state.engines["vllm"].requests[0].status == "ok"
    assert [f.what for f in findings(state) if f.engine == "h2o"] == ["✖"]


def test_what_counts_as_cache() -> None:
    assert cache_bytes({"weights": 100, "kv": 7, "partial keys": 2, "scores": 50, "skew matrices": 9}) == 9


def test_findings_name_the_fast_the_small_and_the_forgetful() -> None:
    found = {f.what: f for f in findings(state_of(whole_race(prompt_tokens=512, new_tokens=40)))}
    assert (found["fastest"].engine, found["smallest"].engine) == ("h2o", "infinigen")
    assert found["≠"].fact == "differs from token 5 on, 70 % of its cache evicted"
    assert found["="].engine == "infinigen"


def test_speeds_are_compared_in_the_columns_figures_and_when_all_have_one() -> None:
    state = RunState()
    found: list[str] = []
    for event in whole_race(prompt_tokens=512, new_tokens=40):
        state.apply(event)
        requests = [r for e in state.engines.values() if (r := e.current) is not None]
        fastest = next((f for f in findings(state) if f.what == "fastest"), None)
        judged = len(requests) == 3 and all(len(r.tokens) >= 4 for r in requests)
        assert (fastest is not None) == judged
        if fastest is not None:
            speeds = [r.tokens_per_s or 0.0 for r in requests]
            assert fastest.fact == f"{max(speeds):.1f} tok/s, {max(speeds) / min(speeds):.1f}× the slowest"
            found.append(fastest.fact)
    assert len(set(found)) > 5


def test_an_engine_without_memory_holds_up_no_comparison_of_speeds() -> None:
    race = Race(prompt_tokens=512, new_tokens=40, oom="vllm")
    found = {f.what: f for f in findings(state_of([started(), race.submitted(), *race.merged()]))}
    assert found["fastest"].engine == "h2o"


@pytest.mark.parametrize(("count", "said"), [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (1024, "1,024 tokens")])
def test_one_is_not_many(count: int, said: str) -> None:
    assert figures.counted(count, "token") == said


def test_no_findings_before_there_is_something_to_judge() -> None:
    race = Race(prompt_tokens=64)
    assert findings(state_of([started(), race.submitted()])) == []


def test_status_words_and_notices() -> None:
    state = state_of([started(), events.Status(state="paused"), events.Notice(level="warning", text="so")])
    assert state.status == "paused"
    assert state.notices[0].text == "so"


def test_long_histories_stay_bounded() -> None:
    state = state_of([started(), submitted()])
    for i in range(10_000):
        state.apply(
            events.Memory(
                engine="vllm",
                clock_s=i * 0.1,
                device_bytes={"kv": i},
                host_bytes={},
                device_peak_bytes=i,
                host_peak_bytes=0,
                device_kv_peak_bytes=i,
                host_kv_peak_bytes=0,
            )
        )
    history = state.engines["vllm"].memory_history
    assert len(history.clock_s) <= 4097
    assert history.held(500.05) == pytest.approx((5000.0, 0.0), abs=8)
    assert history.values[-1] == (9999, 0)


def small_picture(tokens: int, states: list[list[int]], whole: bool) -> events.Cache:
    return events.Cache(
        engine="h2o",
        request=0,
        tokens=tokens,
        layers=len(states),
        whole=whole,
        states=events.deflate(bytes(cell for row in states for cell in row)),
        mass=events.deflate(bytes(len(states))),
        mass_bins=1,
    )


def test_a_state_knows_since_which_token_it_holds() -> None:
    state = state_of([started()])
    state.apply(small_picture(2, [[1, 1]], whole=True))
    state.apply(small_picture(4, [[0, 1 ^ 5, 1, 1]], whole=False))
    state.apply(small_picture(5, [[0, 0, 0, 0, 1]], whole=False))
    cache = state.engines["h2o"].cache
    assert cache is not None
    assert (cache.cells & 7).tolist() == [[1, 5, 1, 1, 1]]
    assert cache.since.tolist() == [[2, 4, 4, 4, 5]]


def test_a_layer_is_seen_head_by_head() -> None:
    state = state_of([started()])
    state.apply(small_picture(2, [[1, 1]], whole=True))
    heads = events.Heads(
        engine="h2o",
        request=0,
        layer=0,
        kv_heads=2,
        tokens=2,
        states=events.deflate(bytes([1, 5, 1, 1])),
        mass=events.deflate(bytes([0, 255, 128, 1])),
    )
    state.apply(heads)
    cache = state.engines["h2o"].cache
    assert cache is not None
    assert cache.heads[0].states.tolist() == [[1, 5], [1, 1]]
    state.apply(small_picture(3, [[0, 0, 1]], whole=False))
    assert state.engines["h2o"].cache.heads[0].tokens == 2  # type: ignore[union-attr]
    with pytest.raises(ValueError):
        state.apply(msgspec.structs.replace(heads, tokens=3))


def huge(engine: str, tokens: int, layers: int = 30) -> events.Cache:
    """Far smaller on its way than in memory."""
    cells = events.deflate(bytes(layers * tokens))
    mass = events.deflate(bytes(layers))
    return events.Cache(
        engine=engine, request=0, tokens=tokens, layers=layers, whole=True, states=cells, mass=mass, mass_bins=1
    )


def test_a_picture_larger_than_the_models_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="before the run's start"):
        RunState().apply(huge("h2o", 8))
    state = state_of([started(), submitted()])
    state.apply(huge("h2o", 8192))
    head = events.Heads(engine="h2o", request=0, layer=0, kv_heads=3, tokens=8, states=b"", mass=b"")
    for wrong in (
        huge("h2o", 8193),
        huge("h2o", 8, layers=31),
        msgspec.structs.replace(head, tokens=8193),
        msgspec.structs.replace(head, layer=30),
        msgspec.structs.replace(head, kv_heads=4),
    ):
        with pytest.raises(ValueError, match="larger than the model's"):
            state.apply(wrong)
    assert cache_of(state, "h2o").tokens == 8192


@pytest.mark.parametrize("size", [7, 9, 1 << 20])
def test_unpacking_stops_at_the_size_that_is_expected(size: int) -> None:
    state = state_of([started(), submitted()])
    event = msgspec.structs.replace(huge("h2o", 8, layers=1), states=events.deflate(bytes(size)))
    with pytest.raises(ValueError):
        state.apply(event)
    with pytest.raises(ValueError):
        events.apply_cells(b"", 0, event)
    assert events.inflate(events.deflate(b""), 0) == b""
    with pytest.raises(ValueError):
        events.inflate(events.deflate(b"x"), 0)


def test_all_pictures_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_state, "MOST_CELLS", 1000)
    monkeypatch.setattr(cache_state, "MOST_CELLS_OF_HEADS", 30)
    state = state_of([started(), submitted()])
    state.apply(huge("vllm", 16))
    state.apply(huge("h2o", 14))
    state.apply(huge("vllm", 17))  # in place of its own
    with pytest.raises(ValueError, match="too much memory"):
        state.apply(huge("infinigen", 1))
    cells = events.deflate(bytes(12))
    for engine, layer in (("h2o", 0), ("h2o", 1), ("h2o", 2), ("h2o", 1)):
        state.apply(events.Heads(engine=engine, request=0, layer=layer, kv_heads=3, tokens=4, states=cells, mass=cells))
    assert list(cache_of(state, "h2o").heads) == [2, 1]


def test_there_are_at_most_so_many_engines() -> None:
    state = state_of([started(), submitted()])
    state.apply_all(token(f"e{number}", 0, 1, 0.0) for number in range(29))
    with pytest.raises(ValueError, match="engines"):
        state.apply(token("e29", 0, 1, 0.0))
    assert len(state.engines) == 32
