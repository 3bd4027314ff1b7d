"""Moments that a script can wait for, each a question to the `RunState`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvtui.state import EngineState, RequestState, RunState

Condition = Callable[[RunState, str, int | None], bool]


def _engines(state: RunState, engine: str) -> Iterator[EngineState]:
    return (e for e in state.engines.values() if engine in ("", e.id))


def _requests(state: RunState, engine: str, of: int | None) -> list[RequestState]:
    """The engines' current requests, or those of the stream's prompt number `of`; empty until all have begun it."""
    found = [e.current if of is None else e.requests.get(of - 1) for e in _engines(state, engine)]
    begun = [r for r in found if r is not None]
    return begun if of is None or len(begun) == len(found) else []


def _ready(state: RunState, engine: str, of: int | None) -> bool:
    return state.started is not None


def _prefill(state: RunState, engine: str, of: int | None) -> bool:
    return any(r.prefill is not None for r in _requests(state, engine, of))


def _first_token(state: RunState, engine: str, of: int | None) -> bool:
    return any(r.tokens for r in _requests(state, engine, of))


def _all_answering(state: RunState, engine: str, of: int | None) -> bool:
    requests = _requests(state, engine, of)
    return bool(requests) and all(r.tokens or r.outcome is not None for r in requests)


def _first_eviction(state: RunState, engine: str, of: int | None) -> bool:
    return any(e.cache is not None and e.cache.evicted_tokens >= 1 for e in _engines(state, engine))


def _first_fetch(state: RunState, engine: str, of: int | None) -> bool:
    return any(e.transfer is not None and e.transfer.h2d_total_bytes > 0 for e in _engines(state, engine))


def _divergence(state: RunState, engine: str, of: int | None) -> bool:
    return any(r.first_difference is not None for r in _requests(state, engine, of))


def _out_of_memory(state: RunState, engine: str, of: int | None) -> bool:
    return any(r.outcome is not None and r.outcome.outcome == "device_oom" for r in _requests(state, engine, of))


def _answered(state: RunState, engine: str, of: int | None) -> bool:
    requests = _requests(state, engine, of)
    return bool(requests) and all(r.outcome is not None for r in requests)


def _idle(state: RunState, engine: str, of: int | None) -> bool:
    return state.started is not None and state.status == "idle" and not state.busy


CONDITIONS: dict[str, Condition] = {
    "ready": _ready,
    "prefill": _prefill,
    "first token": _first_token,
    "all answering": _all_answering,
    "first eviction": _first_eviction,
    "first fetch": _first_fetch,
    "divergence": _divergence,
    "out of memory": _out_of_memory,
    "answered": _answered,
    "idle": _idle,
}


def holds(condition: str, state: RunState, engine: str = "", of: int | None = None) -> bool:
    """Whether it is so now, for the current prompt (or number `of` of the stream): in any engine (or in the one named);
    "answered" and "all answering" mean all of them."""
    return CONDITIONS[condition](state, engine, of)
