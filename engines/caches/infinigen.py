"""InfiniGen: dynamic selection. All KV lives in host memory; a few keys that matter are fetched a step.

Lee et al., "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management",
OSDI 2024. Prefill sends every entry to the host and leaves partial keys on the device. In decode, while layer i - 1
runs, its input says which of them layer i will want (4.3), and those are prefetched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import Cache, CacheView, HeadsView, Surroundings
from engines.caches.host_entries import Fetch, HostEntries
from engines.caches.partial_keys import PartialKeys
from engines.caches.speculation import Speculation
from engines.controller import Need
from engines.errors import BadRequest
from engines.hostpool import HostKv, HostKvShape, rounded
from engines.sequence import Sequence, Span, Step
from engines.skew import skew
from engines.upload import upload


@dataclass
class InfiniGenKnobs:
    """`budget`: most of the context's entries fetched a layer. `alpha`: how far (in logits) below the maximum a
    speculated score may lie. The paper has 4 to 5 on OPT; on SmolLM2 at budget 0.2 the selected keys carry 0.76 of the
    attention mass at 5, 0.90 at 8 and 0.91 at 9 or without a limit, hence the default. `partial_ratio`: share of skewed
    columns kept on the device. `victim`: whom a capped host pool evicts: "counter", "lru" or "fifo". `prefill`:
    "flash", or "eager" with all scores on the device. `prefetch`: "off", or "predictive" (see
    caches/infinigen_plus.py), which keeps the share `resident` of the context on the device (None: 1.5 budgets), at
    most `resident_tokens` a layer."""

    budget: float
    alpha: float = 9.0
    partial_ratio: float = 0.3
    victim: str = "counter"
    prefill: str = "flash"
    prefetch: str = "off"
    resident: float | None = None
    resident_tokens: int | None = None


class InfiniGenCache(Cache):
    one_shot = True
    grows_in_place = False

    def __init__(self, around: Surroundings, knobs: InfiniGenKnobs) -> None:
        super().__init__(around)
        if not 0 < knobs.budget <= 1:
            raise BadRequest(f"budget {knobs.budget:g} is outside (0, 1]")
        if not knobs.alpha > 0:
            raise BadRequest(f"alpha {knobs.alpha:g} must be positive")
        if knobs.victim not in ("counter", "lru", "fifo"):
            raise BadRequest(f"host-pool victim {knobs.victim!r}: choose counter, lru or fifo")
        self.knobs = knobs
        self.skew = skew(self.model)
        if not around.device.bytes_by_kind.get("skew matrices"):  # of all caches around one pool
            around.device.charge("skew matrices", self.skew.nbytes)
        self.speculation = Speculation(self.model, around.device, knobs.budget, knobs.alpha)
        self.partial_width = max(1, round(knobs.partial_ratio * self.shape.head_dim))
        shape = self.shape
        self._kv = HostKvShape(shape.layers, shape.kv_heads, shape.head_dim, self.model.dtype)
        self._pending: dict[Sequence, Fetch] = {}
        self._looks: dict[Sequence, Tensor] = {}
        self._scores: Tensor | None = None

    def kv_kinds(self) -> tuple[str, ...]:
        return ("staging", "partial keys")

    def reserve(self, sequence: Sequence, count: int) -> None:
        """Room in host memory, for partial keys and in the staging buffers: for what the request may still need."""
        needed = sequence.computed + count + max(0, sequence.max_new_tokens - sequence.new_tokens)
        if sequence.held is None:
            host = HostKv(self.around.host, self._kv, needed, self.knobs.victim, self.around.disk)
            try:
                sequence.held = self._open(host)
            except Exception:
                host.close()
                raise
        elif sequence.held.host.wants(needed):
            self._widen(sequence, needed)

    def begin(self, step: Step) -> None:
        self.step = step
        self._positions = upload(step.positions, torch.int64, self.model.device)
        if self.knobs.prefill == "eager":
            first = [span for span in step if span.position == 0]
            if first:
                rows = max(span.count for span in first)
                self._scores = self.around.device.tensor(
                    "scores", (self.shape.heads, rows, rows), torch.float32, self.model.device
                )
        for span in step:
            held = span.sequence.held
            held.host.make_room(span.count)
            if span.position:
                # The first layer has no layer before it to speculate from: it fetches all.
                self._pending[span.sequence] = self._fetch(span, 0, held.host.occupied())

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        assert self.step is not None
        out = q.new_empty(q.shape)
        for span in self.step:
            rows = span.rows
            if span.position == 0:
                out[rows] = self._prefill(span, layer, q[rows], k[rows], v[rows])
            else:
                out[rows] = self._selected(span, layer, q[rows], k[rows], v[rows], x[rows])
        return out.reshape(q.shape[0], -1)

    def end(self, step: Step) -> None:
        self._drop_scores()
        for span in step:
            if step.keep:
                span.sequence.held.host.advance(span.count, span.position)
                span.sequence.computed += span.count
        self._looks.clear()
        self.step = None

    def abort(self, step: Step) -> None:
        self._drop_scores()
        for sequence, fetch in self._pending.items():
            sequence.held.give_back(fetch)
        self._pending.clear()
        self._looks.clear()
        super().abort(step)

    def release(self, sequence: Sequence) -> None:
        held = sequence.held
        if held is not None:
            held.host.close()
            held.close()
        sequence.held, sequence.computed = None, 0

    def adopt(self, sequence: Sequence, blocks: Iterable[list[tuple[Tensor, Tensor]]]) -> None:
        """KV that was computed elsewhere becomes a sequence's: blocks of its positions in order, each with keys and
        values [G, tokens, d] a layer."""
        self.reserve(sequence, len(sequence.tokens))
        held = sequence.held
        held.partial.columns.copy_(self.skew[..., : self.partial_width])
        for block in blocks:
            count = block[0][0].shape[1]
            held.host.make_room(count)
            for layer, (keys, values) in enumerate(block):
                held.offload(layer, keys, values)
            held.host.advance(count, sequence.computed)
            sequence.computed += count

    def kept_positions(self, sequence: Sequence, layer: int) -> Tensor:
        return sequence.held.host.kept_positions(layer)

    def need(self, prompt_tokens: int, new_tokens: int) -> Need:
        """Buffers for the whole answer, and a layer of the prompt on its way through the device."""
        capacity = rounded(prompt_tokens + new_tokens)
        partial_keys = PartialKeys.size_bytes(self._kv, self.partial_width, capacity, self.model.decoder.compute_dtype)
        passing = prompt_tokens * self.layer_token_bytes
        if self.knobs.prefill == "eager":
            passing += 4 * self.shape.heads * prompt_tokens**2
        passing = max(passing, 2 * self.shape.kv_heads * capacity * 4)  # as much as speculation takes in a decode step
        # What finds no room in host memory goes to the disk, where there is one.
        host_bytes = 0 if self.around.disk is not None else capacity * self.model.kv_bytes_per_token
        return Need(partial_keys + self._buffers_bytes(capacity) + passing, host_bytes)

    def _buffers_bytes(self, capacity: int) -> int:
        """What stands on the device beside the partial keys."""
        return sum(self._staging_slots(capacity)) * self.layer_token_bytes

    def view(self, sequence: Sequence) -> CacheView:
        return sequence.held.view(sequence.computed)

    def heads(self, sequence: Sequence, layer: int) -> HeadsView:
        return sequence.held.heads(layer, sequence.computed)

    def _open(self, host: HostKv) -> HostEntries:
        """What a sequence needs beside its entries in `host`. Takes nothing when there is no room."""
        return HostEntries(self.around, host, self.partial_width, self._staging_slots(host.capacity))

    def _staging_slots(self, capacity: int) -> tuple[int, ...]:
        """Even layers share the first buffer with layer 0, which fetches all; odd layers need their budget. Both end
        with room for the step's own rows."""
        return capacity + 1, math.ceil(self.knobs.budget * capacity) + 1

    def _widen(self, sequence: Sequence, capacity: int) -> None:
        """A later turn needs more room: everything moves to larger buffers."""
        old = sequence.held
        host = old.host.wider(capacity)
        if host.capacity == old.partial.capacity:
            return
        try:
            new = self._open(host)
        except Exception:
            if host is not old.host:
                host.close()
            raise
        new.take_over(old)
        if host is not old.host:
            old.host.close()
        old.close()
        sequence.held = new

    def _prefill(self, span: Span, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Full attention over a first prompt, layer by layer; then the layer's KV goes to the host, and the columns
        with the largest sum of |q| + |k| are chosen for its partial keys (4.3)."""
        keys, values = self.to_storage(k), self.to_storage(v)
        with self.around.device.transient("layer KV", keys.nbytes + values.nbytes):
            if self._scores is not None:
                scores = self._scores.view(-1)[: self.shape.heads * span.count**2]
                scores = scores.view(self.shape.heads, span.count, span.count)
                out, _ = kernels.eager_attention(q.transpose(0, 1), keys, values, scores, self.shape.scale)
                out = out.transpose(0, 1)
            else:
                out, _ = kernels.flash_attention(q, keys, values, self.shape.scale)
            if self.step is not None and self.step.keep:
                held = span.sequence.held
                held.partial.choose(layer, q, keys, self.skew[layer])
                held.saw(layer, q, keys, values)
                held.offload(layer, keys, values)
        return out

    def _selected(self, span: Span, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """Attention over what was fetched for this layer and the step's own rows; the next layer's fetch starts first,
        so that it moves while this layer computes. One token at a time selects; a later turn's prompt, like the first
        one, attends to everything."""
        held = span.sequence.held
        fetch = self._pending.pop(span.sequence)
        selects = self._selects(span)
        if layer + 1 < self.shape.layers:
            slots = self._speculate(span, layer + 1, x) if selects else held.host.occupied()
            self._pending[span.sequence] = self._fetch(span, layer + 1, slots)
        own_keys, own_values = self.to_storage(k), self.to_storage(v)
        if selects:
            out = self._decode(span, layer, q, own_keys, own_values, fetch)
        else:
            out = self._turn(span, layer, q, own_keys, own_values, fetch)
        if not self._keeps():
            self._looks[span.sequence] = x.clone()
        else:
            held.used(layer, fetch)
            held.offload(layer, own_keys, own_values)
        held.give_back(fetch)
        return out

    def _turn(self, span: Span, layer: int, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: Fetch) -> Tensor:
        """Several rows over everything, or rows that only look."""
        keys, values = span.sequence.held.arrived(fetch, own_keys, own_values)
        if self._keeps():
            span.sequence.held.saw(layer, q, keys, values)
        if self._keeps() or layer == 0:
            return kernels.flash_attention(q, keys, values, self.shape.scale)[0]
        return self._look(span, layer, q, keys, values)

    def _decode(self, span: Span, layer: int, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: Fetch) -> Tensor:
        """One query over what was fetched for it and its own entry."""
        keys, values = span.sequence.held.arrived(fetch, own_keys, own_values)
        return self._one_query(span, layer, q, keys, values, fetch.slots)

    def _one_query(self, span: Span, layer: int, q: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> Tensor:
        """A query over keys and values [G, n, d]: those at the host's slots [G, n - 1], and its own."""
        n, device = keys.shape[1], q.device
        table = torch.zeros(1, 1, dtype=torch.int32, device=device)
        length = torch.full((1,), n, dtype=torch.int32, device=device)
        block = (keys.unsqueeze(0), values.unsqueeze(0), table, length, self.shape.scale)
        out = kernels.decode_attention(q, *block)
        if self.step is not None and self.step.observe:
            with self.around.clock.excluded():
                mass = torch.empty(1, self.shape.kv_heads, n, device=device)
                kernels.decode_attention(q, *block, mass)
                span.sequence.held.observe(layer, slots, mass[0], span.position + 1)
        return out

    def _look(self, span: Span, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Rows q [T, H, d] that only look: each selects for itself, as decoding would, and sees the rows before it."""
        rows, groups = span.count, self.shape.kv_heads
        x, positions = self._looks[span.sequence], self._positions[span.rows]
        seen = self.speculation.visible(span.sequence.held, layer, x, positions)
        grouped = q.view(rows, groups, -1, self.shape.head_dim).permute(1, 2, 0, 3).float()
        scores = torch.matmul(grouped, keys.float().mT.unsqueeze(1)) * self.shape.scale
        shares = torch.softmax(scores.masked_fill_(~seen.unsqueeze(1), -torch.inf), -1)
        out = torch.matmul(shares, values.float().unsqueeze(1))
        return out.permute(2, 0, 1, 3).reshape(rows, -1, self.shape.head_dim).to(q.dtype)

    def _speculate(self, span: Span, layer: int, x: Tensor) -> Tensor:
        return self.speculation.select(span.sequence.held, layer, x, self._positions[span.rows])

    def _selects(self, span: Span) -> bool:
        return span.count == 1 and self._keeps()

    def _keeps(self) -> bool:
        return self.step is not None and self.step.keep

    def _fetch(self, span: Span, layer: int, slots: Tensor) -> Fetch:
        """Starts moving the entries at slots [G, m] to the device."""
        held = span.sequence.held
        return held.fetch(layer, slots) if self._selects(span) else held.fetch_aside(layer, slots, span.count)

    def _drop_scores(self) -> None:
        if self._scores is not None:
            self.around.device.drop("scores", self._scores)
            self._scores = None
