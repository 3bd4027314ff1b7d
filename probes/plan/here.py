"""What this machine achieves, from short micro-benchmarks of the kernels that decode steps are made of.

Rates come from tensors of the model's sizes that no cache holds; fixed times from engines on models so small that
little else is left. Nothing here times the model that is planned for.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor

import engines
from engines import kernels
from engines.engine import Engine
from engines.errors import KvtuiError
from engines.events import Outcome, Token
from engines.model import Model
from probes.plan.footprint import BLOCK_TOKENS, ENGINES, Request
from probes.plan.planned_model import PlannedModel, of_config
from probes.plan.rates import Link, Rates
from probes.plan.roofline import EVICTION_BYTES, decode_s, scored_bytes
from probes.prefetch import small_model

PILE_BYTES = 96 << 20  # more than a last-level cache
SHORT, LONG = 512, 2048  # slots; the difference between them is free of what a call costs
PREFILL_ROWS = 256
SMALL_LAYERS, SMALL_CONTEXT, SMALL_STEPS = (2, 12), 64, 24
REPEATS = 9
_FREE_S = dict.fromkeys(ENGINES, 0.0)


def settled(times: Iterable[float]) -> float:
    """The lower quartile: what else a machine does only ever adds."""
    known = sorted(times)
    return known[len(known) // 4]


def timed(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return settled(times)


class Bench:
    """For a model's sizes and dtype on its device. What is timed is made once; `rates` times it anew."""

    def __init__(self, model: Model, planned: PlannedModel, partial_ratio: float) -> None:
        self._model, self._planned, self._partial_ratio = model, planned, partial_ratio
        shape = model.shape
        row_bytes = shape.hidden * model.dtype.itemsize
        self._matrix = _pile(model, PILE_BYTES // row_bytes, shape.hidden)
        self._block_bytes = 2 * shape.kv_heads * BLOCK_TOKENS * shape.head_dim * model.dtype.itemsize
        extent = (PILE_BYTES // self._block_bytes, shape.kv_heads, BLOCK_TOKENS, shape.head_dim)
        self._keys, self._values = _pile(model, *extent), _pile(model, *extent)
        self._small = {
            engine_id: [self._small_engine(engine_id, layers) for layers in SMALL_LAYERS] for engine_id in ENGINES
        }

    def rates(self) -> Rates:
        model = self._model
        with torch.inference_mode():
            with kernels.torch_alone():  # as decode steps are computed
                x = self._random(1, model.shape.hidden)
                weights = self._matrix.nbytes / timed(lambda: kernels.linear(x, self._matrix))
                kv, mass = (self._kv_bytes_per_s(with_mass=wanted) for wanted in (False, True))
                speculation, copied = self._speculation_bytes_per_s(), self._copy_bytes_per_s()
            linear, attention, float32 = self._many_rows()
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
        step_s, layer_s = self._fixed_times(known)
        return dataclasses.replace(known, step_s=step_s, layer_s=layer_s)

    def _kv_bytes_per_s(self, *, with_mass: bool) -> float:
        """Decode attention over the blocks of a long arena, one stretch after the other."""
        shape, device = self._model.shape, self._model.device
        q = self._random(1, shape.heads, shape.head_dim)

        def a_call_s(slots: int) -> float:
            width = slots // BLOCK_TOKENS
            starts = range(0, len(self._keys) - width, width)
            tables = [torch.arange(at, at + width, dtype=torch.int32, device=device)[None] for at in starts]
            length = torch.tensor([slots], dtype=torch.int32, device=device)
            mass = torch.empty(1, shape.kv_heads, slots, device=device) if with_mass else None

            def work() -> None:
                for table in tables:
                    kernels.decode_attention(q, self._keys, self._values, table, length, shape.scale, mass)

            return timed(work) / len(tables)

        return self._block_bytes / BLOCK_TOKENS * _slope(a_call_s)

    def _speculation_bytes_per_s(self) -> float:
        """InfiniGen's choice among so many keys, in the bytes that `probes.plan.roofline` counts for it."""
        shape = self._model.shape
        width = max(1, round(self._partial_ratio * shape.head_dim))
        q = self._random(shape.kv_heads, shape.group, width)

        def a_call_s(entries: int) -> float:
            pile = _pile(self._model, 16, shape.kv_heads, width, entries)

            def work() -> None:
                for keys in pile:
                    kernels.speculate(q, keys, shape.scale, torch.inf, entries * 3 // 10)

            return timed(work) / len(pile)

        return scored_bytes(self._planned, self._partial_ratio) * _slope(a_call_s)

    def _copy_bytes_per_s(self) -> float:
        """The element-wise work of H2O's eviction."""
        shape, device = self._model.shape, self._model.device
        extent = (shape.layers, shape.kv_heads, LONG * 3 // 10)
        mass, received = (torch.rand(extent, device=device) for _ in range(2))
        positions = torch.randint(0, LONG, extent, device=device)

        def work() -> None:
            mass.add_(received)
            mass.masked_fill(positions >= LONG // 2, torch.inf).argmin(-1)

        return EVICTION_BYTES * mass.numel() / timed(work)

    def _many_rows(self) -> tuple[float, float, float]:
        """Operations a second: linear, FlashAttention (causal), and scores in float32."""
        shape = self._model.shape
        weight = _pile(self._model, shape.ffn, shape.hidden)
        x = self._random(PREFILL_ROWS, shape.hidden)
        linear = 2 * PREFILL_ROWS * weight.numel() / timed(lambda: kernels.linear(x, weight))
        rows = 2 * PREFILL_ROWS
        q, k = self._random(rows, shape.heads, shape.head_dim), _pile(self._model, shape.kv_heads, rows, shape.head_dim)
        causal = 2 * shape.heads * shape.head_dim * rows * rows
        attention = causal / timed(lambda: kernels.flash_attention(q, k, k, shape.scale))
        wide = torch.randn(rows, rows, device=self._model.device)
        return linear, attention, 2 * rows**3 / timed(lambda: wide @ wide)

    def _small_engine(self, engine_id: str, layers: int) -> Engine:
        small = small_model(1024, layers, self._model.shape.vocab, self._model.dtype)
        engine = engines.create_engine(
            engine_id,
            small,
            partial_ratio=self._partial_ratio,
            prefill="flash",
            link="unscaled:1000",
            arena_tokens=1024,
        )
        assert isinstance(engine, Engine)
        return engine

    def _fixed_times(self, known: Rates) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds a step and a layer, by engine. Of decode steps of small models with few and with many layers, and
        with the planned one's vocabulary: what the rates leave unexplained is the same in every step, or layer."""
        step_s, layer_s = {}, {}
        few, many = SMALL_LAYERS
        for engine_id, pair in self._small.items():
            left_s = [max(0.0, self._unexplained(engine, known)) for engine in pair]
            layer_s[engine_id] = max(0.0, left_s[1] - left_s[0]) / (many - few)
            step_s[engine_id] = max(0.0, left_s[0] - few * layer_s[engine_id])
        return step_s, layer_s

    def _unexplained(self, engine: Engine, known: Rates) -> float:
        small = engine.model
        planned = of_config("small", small.config, small.dtype.itemsize, small.decoder.compute_dtype.itemsize)
        request = Request(engine.id, SMALL_CONTEXT, SMALL_STEPS, partial_ratio=self._partial_ratio)
        info = engine.link.info
        link = Link(info.bytes_per_s, info.latency_s)
        decoding = Decoding(engine, [at % 97 for at in range(SMALL_CONTEXT)])
        measured_s = settled(decoding.steps(SMALL_STEPS))
        return measured_s - decode_s(planned, request, known, link, SMALL_CONTEXT + SMALL_STEPS / 2)

    def _random(self, *extent: int) -> Tensor:
        return torch.randn(extent, device=self._model.device, dtype=self._model.decoder.compute_dtype)


def _slope(a_call_s: Callable[[int], float]) -> float:
    """Slots a second, without what a call costs."""
    return (LONG - SHORT) / max(a_call_s(LONG) - a_call_s(SHORT), 1e-9)


class Decoding:
    """An engine that has read a prompt and goes on for as many tokens as one likes (and its model's context has)."""

    def __init__(self, engine: Engine, ids: list[int]) -> None:
        self.engine = engine
        engine.reset()
        engine.submit(1, ids, engine.model.context_limit, ignore_eos=True)
        self._moments: list[float] = []
        while not self._moments:
            self._advance()

    @property
    def context(self) -> int:
        """Tokens before the next one."""
        return len(self.engine.scheduler.running[0].tokens)

    def steps(self, count: int) -> list[float]:
        """Seconds of so many decode steps, on the engine's own clock."""
        start = len(self._moments)
        while len(self._moments) < start + count:
            self._advance()
        return [now - before for before, now in pairwise(self._moments[start - 1 :])]

    def _advance(self) -> None:
        for event in self.engine.advance():
            if isinstance(event, Outcome):
                raise KvtuiError(f"{self.engine.label} ended: {event.outcome} {event.detail}")
            if isinstance(event, Token):
                self._moments.append(event.clock_s)


def _pile(model: Model, *extent: int) -> Tensor:
    return kernels.allocate(extent, model.dtype, model.device).normal_(std=0.02)
