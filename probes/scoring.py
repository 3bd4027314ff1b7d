"""Improvement 1, importance from FlashAttention: the same kept sets as eager scoring, at what memory and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

import engines
from engines.caches.h2o import H2OCache
from engines.hybrid import AnyEngine
from engines.model import Model


@dataclass(frozen=True)
class Scoring:
    """One way of scoring at one length. `overlap` is the share of kept entries that eager scoring keeps too, `retained`
    the exact attention mass of the kept heavy hitters over that of the best possible ones; None where eager scoring or
    the exact mass was not computed. Bytes are transient ones of the scoring alone; `prefill_ratio` is the time to the
    first token over that of flash prefill without scoring."""

    scoring: str
    tokens: int
    overlap: float | None
    retained: float | None
    transient_bytes: int
    eager_bytes: int
    ttft_s: float
    prefill_ratio: float | None


def prompt(model: Model, tokens: int) -> list[int]:
    """Real prose of that many tokens, over and over if need be."""
    from probes.prose import passages

    ids = model.tokenizer.encode("\n\n".join(passages()), add_special_tokens=False)
    return (ids * (tokens // len(ids) + 1))[:tokens]


def study(
    model: Model,
    budget: float,
    equal_at: int,
    memory_at: int,
    time_at: int,
    repeats: int = 2,
    said: Callable[[str], None] = lambda line: None,
) -> list[dict]:
    """Rows for flash and sampled scoring: kept sets at `equal_at`, memory at `memory_at`, time at `time_at` tokens."""
    rows = []
    said(f"eager scoring of {equal_at:,} tokens")
    ids = prompt(model, equal_at)
    exact = _masses(model, ids, budget, "flash")
    eager = _kept(model, ids, budget, "eager")
    for scoring in ("flash", "sampled"):
        said(f"{scoring} scoring of {equal_at:,}, {memory_at:,} and {time_at:,} tokens")
        kept = _kept(model, ids, budget, scoring)
        overlap = sum(len(a & b) for a, b in zip(kept, eager, strict=True)) / sum(map(len, eager))
        retained = _retained(exact, kept, eager)
        memory, time = _memory(model, memory_at, budget, scoring), _time(model, time_at, budget, scoring, repeats)
        rows.append(Scoring(scoring, equal_at, overlap, retained, *memory, *time))
    return [asdict(row) | {"memory_at": memory_at, "time_at": time_at} for row in rows]


def _engine(model: Model, budget: float, scoring: str) -> AnyEngine:
    return engines.create_engine("h2o", model, budget=budget, scoring=scoring)


def _kept(model: Model, ids: list[int], budget: float, scoring: str) -> list[set[int]]:
    """By layer and head: what one-shot H2O keeps of a prompt."""
    engine = _engine(model, budget, scoring)
    engine.generate(ids, 0)
    return [set(head.tolist()) for layer in range(model.layers) for head in engine.kept_positions(layer)]


def _masses(model: Model, ids: list[int], budget: float, scoring: str) -> list[Tensor]:
    """By layer and head: the attention mass of every position, before anything goes."""
    engine = _engine(model, budget, scoring)
    cache = engine.cache
    assert isinstance(cache, H2OCache)
    seen: list[Tensor] = []
    choose = cache._chosen

    def noting(held, layer, positions, mass, slots):
        seen.extend(mass.clone())
        return choose(held, layer, positions, mass, slots)

    cache._chosen = noting  # type: ignore[method-assign]
    engine.generate(ids, 0)
    return seen


def _retained(exact: list[Tensor], kept: list[set[int]], best: list[set[int]]) -> float:
    """Exact mass of what is kept over that of what eager scoring keeps: the mean over layers and heads."""
    shares = []
    for mass, mine, theirs in zip(exact, kept, best, strict=True):
        shares.append(float(mass[sorted(mine)].sum() / mass[sorted(theirs)].sum()))
    return sum(shares) / len(shares)


def _memory(model: Model, tokens: int, budget: float, scoring: str) -> tuple[int, int]:
    """Peak transient bytes of scoring as charged to the pool, and what eager scores would have taken."""
    engine = _engine(model, budget, scoring)
    engine.generate(prompt(model, tokens), 0)
    return engine.device_pool.peak_by_kind["score tiles"], 4 * model.shape.heads * tokens**2


def _time(model: Model, tokens: int, budget: float, scoring: str, repeats: int) -> tuple[float, float]:
    """Time to the first token, and its ratio to flash prefill alone, the best of a few, taken in turns."""
    ids = prompt(model, tokens)
    plain = engines.create_engine("vllm", model, chunk_tokens=tokens, prefix_sharing=False)
    scored = _engine(model, budget, scoring)
    times: dict[AnyEngine, list[float]] = {plain: [], scored: []}
    for _ in range(repeats):
        for engine, found in times.items():
            engine.reset()
            found.append(engine.generate(ids, 1).ttft_s or torch.inf)
    return min(times[scored]), min(times[scored]) / min(times[plain])
