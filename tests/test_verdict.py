"""The verdict of the run on the screen: judged as `kvtui study advise` judges, at its end and not before."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from engines import events
from kvtui.panes.lines import Lines, pieces_len
from kvtui.panes.verdict import Verdict
from kvtui.state import RunState
from kvtui.verdict import Finding, findings
from tests.synthetic import Race, started


def race(**options: object) -> list[events.AnyEvent]:
    one = Race(prompt_tokens=512, new_tokens=40, **options)  # type: ignore[arg-type]
    return [started(), one.submitted(), *one.merged()]


def state_of(batch: list[events.AnyEvent]) -> RunState:
    state = RunState()
    state.apply_all(batch)
    return state


def advised(state: RunState) -> Finding | None:
    return next((finding for finding in findings(state) if finding.what == "advised"), None)


def ended(said: dict[str, list[int]], tpot_s: dict[str, float], peak_bytes: dict[str, int]) -> RunState:
    """Engines that each said these tokens, at that pace."""
    state = state_of([started(tuple(said)), Race(prompt_tokens=512).submitted()])
    for engine, tokens in said.items():
        for index, token in enumerate(tokens):
            at_s = 1 + index * tpot_s[engine]
            told = {"engine": engine, "clock_s": at_s, "request": 0, "index": index, "text": " x", "logprob": 0.0}
            state.apply(events.Token(**told, token_id=token))
        memory = {"device_bytes": {"kv": 1}, "host_bytes": {}, "device_peak_bytes": 1, "host_peak_bytes": 0}
        peaks = {"device_kv_peak_bytes": peak_bytes[engine], "host_kv_peak_bytes": 0}
        state.apply(events.Memory(engine=engine, clock_s=9, **memory, **peaks))
        state.apply(events.Outcome(engine=engine, clock_s=9, request=0, outcome="ok", tpot_s=tpot_s[engine]))
    return state


def test_nothing_is_advised_before_all_have_ended() -> None:
    state, moments = RunState(), []
    for event in race():
        state.apply(event)
        done = [request.outcome is not None for e in state.engines.values() for request in e.requests.values()]
        moments.append((advised(state) is not None, len(done) == 3 and all(done)))
    assert all(said == over for said, over in moments)
    assert moments[-1] == (True, True)


def test_the_fastest_that_says_what_paged_says_is_advised_and_not_the_fastest() -> None:
    found = findings(state_of(race()))
    assert [finding.what for finding in found] == ["advised", "≠", "fastest", "smallest", "="]
    assert (found[0].engine, found[2].engine) == ("vllm", "h2o")
    assert found[0].fact == "fastest with ≥ 90 % of paged's tokens"


def test_nine_of_ten_tokens_are_enough_and_eight_are_not() -> None:
    paged = list(range(10))
    pace, peaks = {"vllm": 0.03, "h2o": 0.01}, {"vllm": 100, "h2o": 30}
    found = advised(ended({"vllm": paged, "h2o": [*paged[:9], 99]}, pace, peaks))
    assert (found.engine, found.short) == ("h2o", "fastest that agrees")  # type: ignore[union-attr]
    found = advised(ended({"vllm": paged, "h2o": [*paged[:8], 99, 99]}, pace, peaks))
    assert (found.engine, found.short) == ("vllm", "no other agrees")  # type: ignore[union-attr]
    found = advised(ended({"vllm": paged, "h2o": paged[:8]}, pace, peaks))  # which stopped too early
    assert found.engine == "vllm"  # type: ignore[union-attr]


def test_as_fast_as_each_other_the_smaller_is_advised() -> None:
    paged = list(range(10))
    state = ended({"vllm": paged, "h2o": paged}, {"vllm": 0.0300, "h2o": 0.0305}, {"vllm": 100, "h2o": 30})
    found = advised(state)
    assert (found.engine, found.short) == ("h2o", "as fast, and smallest that agrees")  # type: ignore[union-attr]


def test_without_the_full_cache_answer_there_is_nothing_to_agree_with() -> None:
    assert advised(state_of(race(oom="vllm"))) is None
    both = ("h2o", "infinigen")
    state = ended(dict.fromkeys(both, [1] * 9), dict.fromkeys(both, 0.1), dict.fromkeys(both, 1))
    assert advised(state) is None


def test_who_ran_out_of_memory_is_not_advised_and_said_to_have() -> None:
    found = findings(state_of(race(oom="h2o")))
    assert [finding.what for finding in found] == ["advised", "✖", "smallest", "="]
    assert found[0].engine == "vllm"  # so "fastest" would say it twice


@pytest.mark.parametrize(
    ("width", "first", "second"),
    [
        (80, ["advised Paged", "≠ H2O from token 5 on"], ["fastest H2O", "smallest InfiniGen"]),
        (120, ["advised Paged", "fastest H2O"], ["≠ H2O differs from token 5 on", "smallest InfiniGen"]),
    ],
)
def test_two_lines_hold_what_matters(width: int, first: list[str], second: list[str]) -> None:
    pane = Verdict()
    with patch.object(Lines, "redraw"):
        pane.show(state_of(race()))
    for line, words in zip(pane.draw(width, 2), (first, second), strict=False):
        text = "".join(piece for piece, _ in line)
        assert pieces_len(line) <= width
        assert all(word in text for word in words), text
