"""Findings from the measured facts of the current prompt: who is fast, who is small, who has forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from kvtui import figures
from kvtui.state import PAGED, EngineState, RequestState, RunState

TOKENS_TO_JUDGE = 4


@dataclass(frozen=True)
class Finding:
    what: str
    engine: str
    label: str
    fact: str
    short: str


def paged_bytes(state: RunState, engine: str) -> int:
    """What the paged engine's cache holds on the device, for comparison with `engine`'s; 0 while the two cannot be
    compared: with a server, before both have read the same prompt, or when one of them failed to."""
    paged, other = state.engines.get(PAGED), state.engines.get(engine)
    if paged is None or other is None or other is paged or other.remote:
        return 0
    one, two = paged.current, other.current
    if one is None or two is None or one.request != two.request or not one.tokens or not two.tokens:
        return 0
    return paged.cache_bytes or 0


def findings(state: RunState) -> list[Finding]:
    """In order of importance. Engines are compared on the request that the prompt strip names, and on no other."""
    prompt = state.prompt
    if prompt is None:
        return []
    rows = [
        (engine, engine.requests[prompt.request])
        for engine in state.engines.values()
        if prompt.request in engine.requests
    ]
    found = [*_fastest(rows), *_smallest(rows)]
    for engine, request in rows:
        outcome = request.outcome
        if outcome is not None and outcome.outcome == "device_oom":
            found.append(Finding("✖", engine.id, engine.label, "ran out of device memory", "out of memory"))
        elif request.first_difference is not None:
            found.append(_differs(engine, request, request.first_difference))
        elif len(request.differs) >= TOKENS_TO_JUDGE:
            same = figures.counted(len(request.differs), "token")
            found.append(Finding("=", engine.id, engine.label, f"same {same} as paged", same))
    return found


def _fastest(rows: list[tuple[EngineState, RequestState]]) -> list[Finding]:
    """In the columns' figures, and not before all that have not ended yet have such."""
    if any(request.outcome is None and len(request.tokens) < TOKENS_TO_JUDGE for _, request in rows):
        return []
    speeds = [(request.tokens_per_s, engine) for engine, request in rows if request.tokens_per_s]
    if len(speeds) < 2:
        return []
    speeds.sort(key=lambda pair: pair[0], reverse=True)
    (best, engine), (second, last) = speeds[0], speeds[-1]
    fact = f"{figures.speed(best)} tok/s"
    apart = ", on clocks of their own" if engine.remote or last.remote else ""
    return [Finding("fastest", engine.id, engine.label, f"{fact}, {best / second:.1f}× the slowest{apart}", fact)]


def _smallest(rows: list[tuple[EngineState, RequestState]]) -> list[Finding]:
    sizes = [(engine.cache_bytes, engine) for engine, request in rows if engine.cache_bytes and request.tokens]
    if len(sizes) < 2:
        return []
    size, engine = min(sizes, key=lambda pair: pair[0])
    paged = next((size for size, other in sizes if other.id == PAGED), 0)
    change = f" {figures.change(size, paged)}" if paged and engine.id != PAGED else ""
    fact = figures.size(size)
    return [Finding("smallest", engine.id, engine.label, f"{fact} on the device{change}", fact + change)]


def _differs(engine: EngineState, request: RequestState, first: int) -> Finding:
    where = f"from token {first + 1:,} on"
    gone = ""
    if engine.cache is not None and engine.cache.tokens and engine.cache.evicted_tokens >= 1:
        gone = f"{100 * engine.cache.evicted_tokens / engine.cache.tokens:.0f} % of its cache evicted"
    fact = f"differs {where}" + (f", {gone}" if gone else "")
    return Finding("≠", engine.id, engine.label, fact, where)
