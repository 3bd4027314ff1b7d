"""Which engine a request should go to: what kind of task it is, how long, and how much memory is free right now.

Paged when it fits: it forgets nothing and is fast. When memory is tight, H2O where a lost fact is tolerable, as it is
nearly as fast; InfiniGen where every fact may count, as it keeps them all in host memory. If nothing fits, whichever
needs least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.events import ENGINE_LABELS
from engines.sizes import counted, size

# Tasks that a single lost fact spoils. From this probability of one of them on, nothing is to be lost.
EXACT_TASKS = ("lookup", "reasoning")
CAUTION = 0.4
TOLERANT_ORDER = ("vllm", "h2o+", "h2o", "infinigen+", "infinigen")
EXACT_ORDER = ("vllm", "infinigen+", "infinigen", "h2o+", "h2o")

_SHORT = {"vllm": "paged"}
_WHY = {"h2o": "keeps the pace and may lose a fact", "infinigen": "keeps every fact", "vllm": "needs no tricks"}


@dataclass(frozen=True)
class Need:
    """Peak bytes that a request takes from its engine's pools, from its prompt to the end of its answer."""

    device_bytes: int
    host_bytes: int = 0


@dataclass(frozen=True)
class Choice:
    """An engine's id, and why it was chosen, in one line."""

    engine: str
    reason: str


def decide(
    tasks: Mapping[str, float],
    tokens: int,
    needs: Mapping[str, Need],
    free_bytes: int | None,
    free_host_bytes: int | None = None,
) -> Choice:
    """`tasks` are the probabilities of `engines.classify.TASKS`; `tokens` the prompt's; `needs` what each engine that
    there is would take; `free_bytes` what the device pool has left under its cap (None: no cap), `free_host_bytes` the
    host pool. More of either never leads to an engine that comes later in the order of preference."""
    exact = sum(tasks.get(task, 0.0) for task in EXACT_TASKS) >= CAUTION
    known = {task: share for task, share in tasks.items() if not exact or task in EXACT_TASKS}
    task = max(known, key=known.__getitem__, default="chat")
    order = [engine for engine in (EXACT_ORDER if exact else TOLERANT_ORDER) if engine in needs]
    free = "" if free_bytes is None else f", {size(free_bytes)} free"
    asked = f"{task} in {counted(tokens, 'token')}{free}"
    for place, engine in enumerate(order):
        if _fits(needs[engine], free_bytes, free_host_bytes):
            return Choice(engine, f"{asked}: {_reason(engine, order[:place], needs, free_bytes)}")
    least = min(order, key=lambda engine: (needs[engine].device_bytes, needs[engine].host_bytes))
    return Choice(least, f"{asked}: nothing fits, and {name(least)} needs least, {size(needs[least].device_bytes)}")


def name(engine: str) -> str:
    """An engine within a sentence."""
    return _SHORT.get(engine) or ENGINE_LABELS.get(engine, engine)


def _fits(need: Need, free_bytes: int | None, free_host_bytes: int | None) -> bool:
    return (free_bytes is None or need.device_bytes <= free_bytes) and (
        free_host_bytes is None or need.host_bytes <= free_host_bytes
    )


def _reason(engine: str, refused: list[str], needs: Mapping[str, Need], free_bytes: int | None) -> str:
    needed = size(needs[engine].device_bytes)
    if not refused:
        return f"{name(engine)} fits, with {needed}"
    tight = [other for other in refused if free_bytes is not None and needs[other].device_bytes > free_bytes]
    too_much = " and ".join(f"{name(other)} would need {size(needs[other].device_bytes)}" for other in tight)
    return f"{too_much or 'host memory is short'}, so {name(engine)} {_WHY[engine.rstrip('+')]}"
