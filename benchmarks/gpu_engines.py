"""GPU checks of whole engines at a 7B model's shapes, random weights: time per token, graphs, memory, overlap, link."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch

import engines
from benchmarks.gpu_decode import spent_ms
from benchmarks.gpu_table import Row
from engines import events
from engines.engine import Engine
from engines.forward import forward, whole
from engines.model import Model
from engines.sequence import Step

NEW_TOKENS = 64  # of the model's context: the rest is the prompt
BUDGET = 0.3
READ_SHARE = 0.6  # of the bandwidth that a copy reaches, in reading weights and KV
INFINIGEN_PLUS_RATIO, H2O_RATIO = 2.0, 1.0  # of the time per token over the paged engine's
HIDDEN_SHARE = 0.8  # of InfiniGen+'s copies
ACCOUNT_ERROR = 0.05
GRAPH_ERROR = 0.05  # in terms of the largest value; another split of the slots rounds otherwise
LINK_SHARE = 0.9
WAYS: dict[str, dict[str, Any]] = {
    "vllm": {"prefix_sharing": False},
    "h2o": {"budget": BUDGET, "scoring": "flash"},
    "infinigen+": {"budget": BUDGET},
    "infinigen": {"budget": BUDGET},
}


@dataclass(frozen=True)
class Decoded:
    """Times on the engine's clock; bytes and seconds of the link are of the decode steps alone."""

    tpot_s: float
    h2d_bytes: int
    busy_s: float
    hidden_s: float


def decoded(engine: Any, ids: list[int], new_tokens: int) -> Decoded:
    """An answer to a prompt: medians over its tokens, the first few aside."""
    engine.submit(0, ids, new_tokens, ignore_eos=True)
    moments: list[float] = []
    traffic = engine.link.traffic
    before = (0, 0.0, 0.0)
    while engine.has_work:
        for event in engine.advance():
            if isinstance(event, events.Token):
                moments.append(event.clock_s)
                if len(moments) == 1:
                    before = traffic.h2d_bytes, traffic.busy_s, traffic.hidden_s
            elif isinstance(event, events.Outcome) and event.outcome != "ok":
                raise RuntimeError(f"{engine.id}: {event.detail}")
    steps = [after - moment for moment, after in pairwise(moments)][3:]
    return Decoded(
        median(steps), traffic.h2d_bytes - before[0], traffic.busy_s - before[1], traffic.hidden_s - before[2]
    )


def prompt(model: Model) -> list[int]:
    return [3 + 37 * place % (model.shape.vocab - 3) for place in range(model.context_limit - NEW_TOKENS)]


def build(id: str, model: Model, **more: Any) -> Engine:
    """An arena of no more slots than one context takes, so that what the pool counts is what is there."""
    tokens = int(BUDGET * model.context_limit) if id == "h2o" else model.context_limit
    engine = engines.create_engine(id, model, arena_tokens=tokens + 32, **(WAYS[id] | more))
    assert isinstance(engine, Engine)
    return engine


def replayed(engine: Engine) -> float:
    """How far a replayed step's hidden states are from the same step's, launched one by one: the next step of the
    conversation that has just ended."""
    sequence = engine._latest()
    assert engine.graphs is not None
    with torch.inference_mode():
        step = Step([(sequence, [sequence.tokens[-1]])])
        engine.cache.reserve(sequence, 1)
        engine.cache.begin(step)
        eager = whole(forward(engine.cache, step)).float()
        hidden = engine.graphs.decode(engine.cache, step)
        if hidden is None:
            return float("nan")
        error = (hidden.float() - eager).abs().max() / eager.abs().max()
        engine.cache.end(step)
        return float(error)


def read_bytes(model: Model, tokens: int) -> int:
    """Weights and KV that a token at batch 1 reads. Of an embedding that is not the output's, one row."""
    decoder = model.decoder
    apart = 0 if decoder.embedding is decoder.head else decoder.embedding.nbytes
    return model.weights_bytes - apart + tokens * model.kv_bytes_per_token


def expected_peak_bytes(engine: Engine) -> int:
    """The device pool's peak, and the blocks of its arena that were in nobody's use."""
    pool, blocks = engine.device_pool, engine.cache.around.blocks
    idle = 0 if blocks is None else blocks.blocks * blocks.block_bytes - pool.peak_by_kind.get("kv", 0)
    return pool.peak_bytes + idle


def measured(id: str, model: Model, ids: list[int], **more: Any) -> tuple[Decoded, list[Row]]:
    """One engine, built and let go: its figures; rows of its memory and its graphs."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated() - model.weights_bytes
    torch.cuda.reset_peak_memory_stats()
    engine = build(id, model, **more)
    decoded(engine, ids, 8)  # compiles, records and warms up
    found = decoded(engine, ids, NEW_TOKENS)
    peak = torch.cuda.max_memory_allocated() - before
    error = abs(peak / expected_peak_bytes(engine) - 1)
    rows = [Row(f"{id}: allocator's peak against the pool's", error, "", ACCOUNT_ERROR)]
    if engine.graphs is not None and engine.cache.placed is not None:
        rows.append(Row(f"{id}: steps replayed against launched", replayed(engine), "", GRAPH_ERROR))
    return found, rows


def rows(model: Model, bandwidth: float) -> Iterator[Row]:
    ids = prompt(model)
    n = model.context_limit
    yield from link(model)
    found: dict[str, Decoded] = {}
    for id in WAYS:
        found[id], more = measured(id, model, ids)
        yield Row(f"{id}: time per token, n={n}", found[id].tpot_s * 1e3, "ms")
        yield from more
    for id in ("vllm", "h2o"):
        eager, _ = measured(id, model, ids, graphs=False)
        yield Row(f"{id}: without graphs over with", eager.tpot_s / found[id].tpot_s, "×", 1.0, at_least=True)
    yield from targets(found, read_bytes(model, n) / bandwidth)


def targets(found: dict[str, Decoded], floor_s: float) -> Iterator[Row]:
    """What is to be reached. `floor_s`: the time in which a copy would move what a token reads."""
    paged, plus = found["vllm"], found["infinigen+"]
    yield Row("vllm: share of the copy's bandwidth", floor_s / paged.tpot_s, "", READ_SHARE, at_least=True)
    yield Row(f"h2o at {BUDGET:g}: time per token over vllm's", found["h2o"].tpot_s / paged.tpot_s, "×", H2O_RATIO)
    yield Row("infinigen+: time per token over vllm's", plus.tpot_s / paged.tpot_s, "×", INFINIGEN_PLUS_RATIO)
    hidden = plus.hidden_s / plus.busy_s if plus.busy_s else float("nan")
    yield Row("infinigen+: share of its copies that is hidden", hidden, "", HIDDEN_SHARE, at_least=True)
    for id in ("infinigen", "infinigen+"):
        one = found[id]
        yield Row(f"{id}: its copies while they run", one.h2d_bytes / one.busy_s / 1e9 if one.busy_s else 0.0, "GB/s")


def link(model: Model) -> Iterator[Row]:
    """The bandwidth that engines go by, over a large pinned copy's."""
    from engines.link import measured as measured_link

    source = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=model.device)
    best = source.nbytes / (spent_ms(lambda: target.copy_(source, non_blocking=True), 5) / 1e3)
    yield Row("a pinned copy from the host", best / 1e9, "GB/s")
    share = measured_link(model.device).bytes_per_s / best
    yield Row("the link's bandwidth over it", share, "", LINK_SHARE, at_least=True)
