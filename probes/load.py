"""A load: requests that arrive at an engine at set moments of its own clock, and what became of each.

A batch is a load whose requests all arrive at once. Times are those of the engine's fair clock, so a modelled link's
time is in them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from engines import events
from engines.hybrid import AnyEngine, HybridEngine

Figures = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """`arrival_s`: seconds after the load's beginning. It is answered with exactly `new_tokens`, whatever they say."""

    token_ids: list[int]
    new_tokens: int
    arrival_s: float = 0.0


@dataclass(frozen=True)
class Objective:
    """What a request must meet to count as served well: seconds until its first token, and seconds a token after it."""

    ttft_s: float
    tpot_s: float


@dataclass
class Served:
    """Moments are seconds after the load's beginning, None for what never came: `started_s` is when the engine first
    worked on it. `outcome` is "ok", "device_oom", "host_oom", "too_long" or "error"; `reached_tokens` is how many
    tokens, prompt and answer, the engine had to hold when it gave up."""

    request: Request
    outcome: str = ""
    detail: str = ""
    started_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    new_tokens: int = 0
    reached_tokens: int = 0

    @property
    def queue_s(self) -> float | None:
        """From arrival to the first step, whatever kept the engine from it."""
        return None if self.started_s is None else self.started_s - self.request.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """From arrival, and not from when the engine took it in: it may have been in the middle of a step."""
        return None if self.first_s is None else self.first_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | None:
        if self.first_s is None or self.last_s is None or self.new_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.new_tokens - 1)

    @property
    def latency_s(self) -> float | None:
        """From arrival to the last token, of those that were answered to the end."""
        return None if self.last_s is None or self.outcome != "ok" else self.last_s - self.request.arrival_s

    def meets(self, objective: Objective) -> bool:
        return (
            self.outcome == "ok"
            and self.ttft_s is not None
            and self.ttft_s <= objective.ttft_s
            and (self.tpot_s is None or self.tpot_s <= objective.tpot_s)
        )


def poisson(rate_per_s: float, count: int, rng: random.Random) -> list[float]:
    """Arrivals of a Poisson process: gaps are exponential with a mean of 1 / rate. The same generator gives the same
    pattern at every rate, stretched."""
    arrivals, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(1.0)
        arrivals.append(now / rate_per_s)
    return arrivals


def serve(
    engine: AnyEngine, requests: list[Request], ended: Callable[[int], None] = lambda count: None
) -> list[Served]:
    """Submits each request when the engine's clock has come to its arrival, and works until all have ended; an idle
    clock jumps to the next arrival. The hybrid takes one at a time, so the others wait in front of it. `ended` is told
    how many have. What runs out of memory, or is longer than the context, is an outcome."""
    load = [Served(request) for request in requests]
    begun_s = engine.clock_s
    coming = deque(sorted(range(len(load)), key=lambda number: requests[number].arrival_s))
    under_way: dict[int, Served] = {}
    while coming or under_way:
        while coming and begun_s + requests[coming[0]].arrival_s <= engine.clock_s:
            if under_way and isinstance(engine, HybridEngine):
                break
            number = coming.popleft()
            if not _refused(engine, load[number]):
                engine.submit(number, requests[number].token_ids, requests[number].new_tokens, ignore_eos=True)
                under_way[number] = load[number]
        if not under_way:
            if coming:
                engine.start_clock_at(begun_s + requests[coming[0]].arrival_s)
            continue
        assert engine.has_work, "a request was lost"
        before_s = engine.clock_s - begun_s
        try:
            happened = engine.advance()
        except (MemoryError, RuntimeError) as fault:
            _machine_full(fault, under_way)
            continue
        for event in happened:
            _take(event, under_way, before_s, begun_s)
        ended(len(load) - len(coming) - len(under_way))
    return load


def figures(load: list[Served], objective: Objective) -> Figures:
    """Of all that were answered; None where nothing was. Rates are over the time from the first arrival to the last
    token, `decode_tok_s` is what one reader sees. `good` counts those that met the objective."""
    answered = [served for served in load if served.outcome == "ok"]
    failed = next((served for served in load if served.outcome != "ok"), None)
    good = sum(served.meets(objective) for served in load)
    span_s = _span_s(load)
    ttfts, tpots, latencies, queued = (
        [value for served in answered if (value := getattr(served, name)) is not None]
        for name in ("ttft_s", "tpot_s", "latency_s", "queue_s")
    )
    return {
        "outcome": "ok" if failed is None else failed.outcome,
        "detail": "" if failed is None else failed.detail,
        "reached_tokens": None if failed is None else failed.reached_tokens,
        "requests": len(load),
        "answered": len(answered),
        "ttft_s": _at(ttfts, 50),
        "ttft_p95_s": _at(ttfts, 95),
        "tpot_s": _at(tpots, 50),
        "tpot_p95_s": _at(tpots, 95),
        "decode_tok_s": median(1 / tpot for tpot in tpots) if tpots and min(tpots) > 0 else None,
        "tok_s": sum(served.new_tokens for served in answered) / span_s if answered and span_s else None,
        "latency_p50_s": _at(latencies, 50),
        "latency_p95_s": _at(latencies, 95),
        "queue_s": _at(queued, 50),
        "good": good,
        "goodput": good / len(load),
        "good_per_s": good / span_s if span_s else None,
    }


def ran_out(fault: BaseException) -> str | None:
    """Which memory a fault of torch or Python says is full: "device_oom", "host_oom"; None for any other fault."""
    if isinstance(fault, torch.OutOfMemoryError):
        return "device_oom"
    return "host_oom" if isinstance(fault, MemoryError) or "can't allocate memory" in str(fault) else None


def first_line(fault: BaseException) -> str:
    return (str(fault) or type(fault).__name__).splitlines()[0]


def _refused(engine: AnyEngine, served: Served) -> bool:
    """What would be cut short by the end of the context is not begun."""
    request, limit = served.request, engine.model.context_limit
    wanted = len(request.token_ids) + request.new_tokens
    if wanted <= limit:
        return False
    served.outcome, served.reached_tokens = "too_long", 0
    served.detail = f"{wanted:,} tokens with the answer, the model's context is {limit:,}"
    return True


def _take(event: events.Event, under_way: dict[int, Served], before_s: float, begun_s: float) -> None:
    """`before_s` is when the slice began in which it happened."""
    match event:
        case events.Prefill(request=number) if number in under_way and under_way[number].started_s is None:
            under_way[number].started_s = before_s
        case events.Token(request=number) if number in under_way:
            served = under_way[number]
            served.last_s = event.clock_s - begun_s
            served.first_s = served.last_s if served.first_s is None else served.first_s
            served.new_tokens += 1
        case events.Outcome(request=number) if number in under_way:
            served = under_way.pop(number)
            # Engines report "device_oom" as such, and a host that is full in words.
            full = event.outcome == "error" and event.detail.startswith("out of host memory")
            served.outcome, served.detail = "host_oom" if full else event.outcome, event.detail
            served.reached_tokens = event.prompt_tokens + event.new_tokens


def _machine_full(fault: Exception, under_way: dict[int, Served]) -> None:
    """The machine has no more, whatever the caps say: the engine has let go of all that was under way."""
    outcome = ran_out(fault)
    if outcome is None:
        raise fault
    for served in under_way.values():
        served.outcome, served.detail = outcome, first_line(fault)
        served.reached_tokens = len(served.request.token_ids) + served.new_tokens
    under_way.clear()


def _span_s(load: list[Served]) -> float | None:
    last = max((served.last_s for served in load if served.last_s is not None), default=None)
    return None if last is None else last - min(served.request.arrival_s for served in load)


def _at(values: list[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
