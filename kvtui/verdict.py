"""Findings from the measured facts of the current prompt: who is fast, who is small, who has forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from kvtui import figures
from kvtui.state import PAGED, EngineState, RequestState, RunState
from probes.advice import Advice, Aspect, Candidate, Figure, Limits, judge

TOKENS_TO_JUDGE = 4
LEAST_AGREEMENT = 0.9  # of its tokens: whoever says less of what the paged engine says is not advised

_DECIDED: dict[Aspect | None, str] = {
    "tpot_s": "fastest",
    "accuracy": "as fast, and nearest",
    "device_bytes": "as fast, and smallest",
    "ttft_s": "as fast, and first",
    None: "as good as any",
}


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
    leading = [*_fastest(rows), *_smallest(rows)]
    others, same = [], []
    for engine, request in rows:
        outcome = request.outcome
        if outcome is not None and outcome.outcome == "device_oom":
            others.append(Finding("✖", engine.id, engine.label, "ran out of device memory", "out of memory"))
        elif request.first_difference is not None:
            others.append(_differs(engine, request, request.first_difference))
        elif len(request.differs) >= TOKENS_TO_JUDGE:
            tokens = figures.counted(len(request.differs), "token")
            same.append(Finding("=", engine.id, engine.label, f"same {tokens} as paged", tokens))
    advised = _advised(rows)
    if not advised:
        return [*leading, *others, *same]
    # There is room for four or so: what is said twice goes, and before a rank in the race comes what was the matter.
    ranks = [one for one in leading if one.what != "fastest" or one.engine != advised[0].engine]
    return [*advised, *others, *ranks, *same]


def advice(rows: list[tuple[EngineState, RequestState]]) -> Advice | None:
    """What `kvtui study advise` would make of one request: the fastest of those that say what the paged engine says,
    which stands for accuracy here. None before all have ended, and without the paged engine's answer. A server is not
    judged: its memory is not known, and its clock another one."""
    rows = [(engine, request) for engine, request in rows if not engine.remote]
    paged = next((request for engine, request in rows if engine.id == PAGED), None)
    if len(rows) < 2 or any(request.outcome is None for _, request in rows):
        return None
    if paged is None or paged.status != "ok" or len(paged.tokens) < TOKENS_TO_JUDGE:
        return None
    candidates = [_candidate(engine, request, paged) for engine, request in rows]
    return judge(candidates, Limits(accuracy=LEAST_AGREEMENT))


def _candidate(engine: EngineState, request: RequestState, paged: RequestState) -> Candidate:
    held = engine.memory.device_kv_peak_bytes if engine.memory is not None else None
    return Candidate(
        engine.id,
        device_bytes=_figure(held),
        accuracy=_figure(_agreement(request, paged)),
        tpot_s=_figure(request.tpot_s),
        ttft_s=_figure(request.ttft_s),
        lost="" if request.status == "ok" else request.status,
    )


def _figure(value: float | None) -> Figure | None:
    return None if value is None else Figure(value)


def _agreement(request: RequestState, paged: RequestState) -> float:
    """The share (0..1) of the longer answer's tokens that both say in the same place."""
    same = sum(one == other for one, other in zip(request.tokens, paged.tokens, strict=False))
    return same / max(len(request.tokens), len(paged.tokens))


def _advised(rows: list[tuple[EngineState, RequestState]]) -> list[Finding]:
    found = advice(rows)
    if found is None or found.best is None:
        return []
    engine = next(engine for engine, _ in rows if engine.id == found.best.name)
    least = f"≥ {100 * LEAST_AGREEMENT:.0f} %"
    if found.runner_up is not None:
        how = _DECIDED[found.decided_by]
        fact, short = f"{how} with {least} of paged's tokens", f"{how} that agrees"
    elif engine.id == PAGED:
        fact, short = f"no other says {least} of its tokens", "no other agrees"
    else:
        fact, short = f"alone says {least} of paged's tokens", "alone agrees"
    return [Finding("advised", engine.id, engine.label, fact, short)]


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
