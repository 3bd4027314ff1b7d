"""What this machine achieves, from short micro-benchmarks of the kernels that decode steps are made of.

Rates come from tensors of the model's sizes that no cache holds; fixed times from engines on models so small that little
else is left. Nothing here times the model that is planned for. Medians, as the machine may have other work.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import engines
from engines import kernels
from engines.events import Token
from engines.model import Model
from probes.plan.footprint import BLOCK_TOKENS, Request
from probes.plan.planned_model import PlannedModel, of_config
from probes.plan.rates import Link, Rates
from probes.plan.roofline import EVICTION_BYTES, SPECULATION_PASSES, decode_s
from probes.prefetch import small_model

ENGINES = ("vllm", "h2o", "infinigen")
PILE_BYTES = 96 << 20  # more than a last-level cache
SHORT, LONG = 512, 2048  # slots; the difference between them is free of what a call costs
PREFILL_ROWS = 256
SMALL_LAYERS, SMALL_CONTEXT, SMALL_STEPS = (2, 12), 64, 24
REPEATS = 7
_FREE_S = dict.fromkeys(ENGINES, 0.0)


def median_s(work: Callable[[], object], repeats: int = REPEATS) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rates(model: Model, planned: PlannedModel, partial_ratio: float = 0.3) -> Rates:
    """For `model`'s sizes and dtype on its device."""
    with torch.inference_mode():
        with kernels.torch_alone():
            weights = _weights_bytes_per_s(model)
            kv, mass = (_kv_bytes_per_s(model, with_mass=wanted) for wanted in (False, True))
            speculation = _speculation_bytes_per_s(model, planned, partial_ratio)
            copied = _copy_bytes_per_s(model)
        linear, attention, float32 = _many_rows(model)
    known = Rates(
        weights_bytes_per_s=weights,
        kv_bytes_per_s=kv,
        mass_bytes_per_s=mass,
        speculation_bytes_per_s=speculation,
        copy_bytes_per_s=copied,
        linear_flops=linear,
        attention_flops=attention,
        float32_flops=float32,
        step_s=_FREE_S,
        layer_s=_FREE_S,
        sequence_layer_s=_FREE_S,
    )
    return _with_fixed_times(model, known, partial_ratio)


def _weights_bytes_per_s(model: Model) -> float:
    """One row times one matrix as wide as the model's residual stream."""
    hidden = model.shape.hidden
    pile = _pile(model, PILE_BYTES // (hidden * model.dtype.itemsize), hidden)
    x = torch.randn(1, hidden, device=model.device, dtype=model.decoder.compute_dtype)
    return pile.nbytes / median_s(lambda: kernels.linear(x, pile))


def _kv_bytes_per_s(model: Model, *, with_mass: bool) -> float:
    """Decode attention over blocks of a long arena, one stretch after the other."""
    shape, device = model.shape, model.device
    block_bytes = 2 * shape.kv_heads * BLOCK_TOKENS * shape.head_dim * model.dtype.itemsize
    blocks = PILE_BYTES // block_bytes
    extent = (blocks, shape.kv_heads, BLOCK_TOKENS, shape.head_dim)
    keys, values = _pile(model, *extent), _pile(model, *extent)
    q = torch.randn(1, shape.heads, shape.head_dim, device=device, dtype=model.decoder.compute_dtype)

    def a_call_s(slots: int) -> float:
        width = slots // BLOCK_TOKENS
        starts = range(0, blocks - width, width)
        tables = [torch.arange(at, at + width, dtype=torch.int32, device=device)[None] for at in starts]
        length = torch.tensor([slots], dtype=torch.int32, device=device)
        mass = torch.empty(1, shape.kv_heads, slots, device=device) if with_mass else None

        def work() -> None:
            for table in tables:
                kernels.decode_attention(q, keys, values, table, length, shape.scale, mass)

        return median_s(work) / len(tables)

    per_slot_s = max(a_call_s(LONG) - a_call_s(SHORT), 1e-9) / (LONG - SHORT)
    return block_bytes / BLOCK_TOKENS / per_slot_s


def _speculation_bytes_per_s(model: Model, planned: PlannedModel, partial_ratio: float) -> float:
    """InfiniGen's choice among so many keys, in the bytes that `probes.plan.roofline` counts for it."""
    shape = model.shape
    width = max(1, round(partial_ratio * shape.head_dim))
    counted = shape.kv_heads * width * planned.width + shape.heads * 4 * SPECULATION_PASSES
    q = torch.randn(shape.kv_heads, shape.group, width, device=model.device, dtype=model.decoder.compute_dtype)

    def a_call_s(entries: int) -> float:
        count = max(2, PILE_BYTES // (shape.kv_heads * width * entries * model.dtype.itemsize) // 8)
        pile = _pile(model, count, shape.kv_heads, width, entries)
        most = max(1, entries * 3 // 10)

        def work() -> None:
            for keys in pile:
                kernels.speculate(q, keys, shape.scale, 9.0, most)

        return median_s(work, 3) / count

    return counted * (LONG - SHORT) / max(a_call_s(LONG) - a_call_s(SHORT), 1e-9)


def _copy_bytes_per_s(model: Model) -> float:
    """The element-wise work of H2O's eviction."""
    shape = model.shape
    extent = (shape.layers, shape.kv_heads, LONG * 3 // 10)
    mass, received = (torch.rand(extent, device=model.device) for _ in range(2))
    positions = torch.randint(0, LONG, extent, device=model.device)

    def work() -> None:
        mass.add_(received)
        mass.masked_fill(positions >= LONG // 2, torch.inf).argmin(-1)

    return EVICTION_BYTES * mass.numel() / median_s(work)


def _many_rows(model: Model) -> tuple[float, float, float]:
    """Operations a second: linear, FlashAttention (causal), and scores in float32."""
    shape, device, dtype = model.shape, model.device, model.decoder.compute_dtype
    weight = _pile(model, shape.ffn, shape.hidden)
    x = torch.randn(PREFILL_ROWS, shape.hidden, device=device, dtype=dtype)
    linear = 2 * PREFILL_ROWS * weight.numel() / median_s(lambda: kernels.linear(x, weight), 3)
    rows = 2 * PREFILL_ROWS
    q = torch.randn(rows, shape.heads, shape.head_dim, device=device, dtype=dtype)
    k = torch.randn(shape.kv_heads, rows, shape.head_dim, device=device).to(model.dtype)
    causal = 2 * shape.heads * shape.head_dim * rows * rows
    attention = causal / median_s(lambda: kernels.flash_attention(q, k, k, shape.scale), 3)
    wide = torch.randn(rows, rows, device=device)
    float32 = 2 * rows**3 / median_s(lambda: wide @ wide, 3)
    return linear, attention, float32


def _with_fixed_times(model: Model, known: Rates, partial_ratio: float) -> Rates:
    """Decode steps of small models with few and with many layers, of the planned one's vocabulary: what the rates do
    not explain of them is the same in every step, or in every layer."""
    step_s, layer_s = {}, {}
    smalls = [small_model(1024, layers, model.shape.vocab, model.dtype) for layers in SMALL_LAYERS]
    for engine_id in ENGINES:
        unexplained = []
        for small in smalls:
            engine = engines.create_engine(
                engine_id, small, partial_ratio=partial_ratio, link="unscaled:1000", arena_tokens=1024
            )
            planned = of_config("small", small.config, small.dtype.itemsize, wide=small.decoder.compute_dtype.itemsize)
            ids = [at % 97 for at in range(SMALL_CONTEXT)]
            measured_s = statistics.median(step_times(engine, ids, SMALL_STEPS))
            request = Request(engine_id, SMALL_CONTEXT, SMALL_STEPS, partial_ratio=partial_ratio)
            link = Link(engine.link.info.bytes_per_s, engine.link.info.latency_s)
            context = SMALL_CONTEXT + SMALL_STEPS / 2
            unexplained.append(max(0.0, measured_s - decode_s(planned, request, known, link, context)))
        few, many = SMALL_LAYERS
        layer_s[engine_id] = max(0.0, unexplained[1] - unexplained[0]) / (many - few)
        step_s[engine_id] = max(0.0, unexplained[0] - few * layer_s[engine_id])
    fixed = {**vars(known), "step_s": step_s, "layer_s": layer_s}
    return Rates(**fixed)


def step_times(engine: Any, ids: list[int], new_tokens: int) -> Iterator[float]:
    """Of the decode steps after the first token, on the engine's own clock."""
    engine.reset()
    engine.submit(1, ids, new_tokens + 1, ignore_eos=True)
    before_s = None
    while engine.has_work:
        for event in engine.advance():
            if isinstance(event, Token):
                if before_s is not None:
                    yield event.clock_s - before_s
                before_s = event.clock_s


def _pile(model: Model, *extent: int) -> Tensor:
    return kernels.allocate(extent, model.dtype, model.device).normal_(std=0.02)
