"""InfiniGen: dynamic selection. All KV lives in host memory; a few keys that matter are fetched a step.

Lee et al., "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management",
OSDI 2024. While layer i - 1 runs, its input is taken for layer i's (residual streams change slowly), projected to a
partial, skewed query, scored against partial keys on the device (4.3), and the keys within `alpha` of the maximum are
prefetched, at most `budget` of the context. With grouped queries, selection is per KV head, by the group's summed
speculated softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import Cache, CacheView, HeadsView, Surroundings, head_shares, normalised
from engines.controller import Need
from engines.errors import BadRequest, OutOfMemory
from engines.events import KvState, pack_cell
from engines.hostpool import HostKv, HostKvShape, rounded
from engines.sequence import Sequence, Span, Step
from engines.skew import skew


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


@dataclass
class Held:
    """One sequence: its host KV, the columns chosen at prefill as projections [layers, G, d, p], the partial keys
    [layers, G, p, capacity], two staging buffers on the device, what the last step fetched, and the mass that was
    observed last [layers, G, tokens]."""

    host: HostKv
    columns: Tensor
    partial_keys: Tensor
    staging: list[tuple[Tensor, Tensor]]
    fetched: list[Tensor | None]
    mass: Tensor


@dataclass
class Fetch:
    """Entries under way to keys and values [G, >= m, d] on the device: `slots` int64 [G, m] of the host pool, and when
    they are there. `lasting` buffers are the staging ones."""

    slots: Tensor
    arrival: Any
    keys: Tensor
    values: Tensor
    lasting: bool


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
        self.partial = max(1, round(knobs.partial_ratio * self.shape.head_dim))
        self._pending: dict[Sequence, Fetch] = {}
        self._looks: dict[Sequence, Tensor] = {}
        self._scores: Tensor | None = None

    def kv_kinds(self) -> tuple[str, ...]:
        return ("staging", "partial keys")

    def reserve(self, sequence: Sequence, count: int) -> None:
        """Room in host memory, for partial keys and in the staging buffers: for what the request may still need."""
        needed = sequence.computed + count + max(0, sequence.max_new_tokens - sequence.new_tokens)
        if sequence.held is None:
            host = self._host(needed)
            try:
                sequence.held = self._open(host)
            except Exception:
                host.close()
                raise
        elif sequence.held.host.wants(needed):
            self._widen(sequence, needed)

    def begin(self, step: Step) -> None:
        self.step = step
        self._positions = torch.tensor(step.positions, dtype=torch.int64, device=self.model.device)
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
        return out.reshape(len(q), -1)

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
        for fetch in self._pending.values():
            self._return(fetch)
        self._pending.clear()
        self._looks.clear()
        super().abort(step)

    def release(self, sequence: Sequence) -> None:
        held = sequence.held
        if held is not None:
            held.host.close()
            self._close(held)
        sequence.held, sequence.computed = None, 0

    def adopt(self, sequence: Sequence, blocks: Iterable[list[tuple[Tensor, Tensor]]]) -> None:
        """KV that was computed elsewhere becomes a sequence's: blocks of its positions in order, each with keys and
        values [G, tokens, d] a layer."""
        self.reserve(sequence, len(sequence.tokens))
        held = sequence.held
        held.columns.copy_(self.skew[..., : self.partial])
        for block in blocks:
            count = block[0][0].shape[1]
            held.host.make_room(count)
            for layer, (keys, values) in enumerate(block):
                self._offload(held, layer, keys, values)
            held.host.advance(count, sequence.computed)
            sequence.computed += count

    def kept_positions(self, sequence: Sequence, layer: int) -> Tensor:
        return sequence.held.host.kept_positions(layer)

    def need(self, prompt_tokens: int, new_tokens: int) -> Need:
        """Buffers for the whole answer, and a layer of the prompt on its way through the device."""
        capacity = rounded(prompt_tokens + new_tokens)
        shape, size = self.shape, self.model.dtype.itemsize
        heads = shape.layers * shape.kv_heads
        partial_keys = heads * self.partial * capacity * size
        columns = heads * shape.head_dim * self.partial * self.model.decoder.compute_dtype.itemsize
        passing = prompt_tokens * self.layer_token_bytes
        if self.knobs.prefill == "eager":
            passing += 4 * shape.heads * prompt_tokens**2
        passing = max(passing, 2 * shape.kv_heads * capacity * 4)  # as much as speculation takes in a decode step
        # What finds no room in host memory goes to the disk, where there is one.
        host_bytes = 0 if self.around.disk is not None else capacity * self.model.kv_bytes_per_token
        return Need(partial_keys + columns + self._buffers_bytes(capacity) + passing, host_bytes)

    def _buffers_bytes(self, capacity: int) -> int:
        """What stands on the device beside the partial keys."""
        return sum(self._staging_slots(capacity)) * self.layer_token_bytes

    def view(self, sequence: Sequence) -> CacheView:
        held, n, layers = sequence.held, sequence.computed, self.shape.layers
        cells = np.full((layers, n), pack_cell(KvState.EVICTED, 0), dtype=np.uint8)
        cells[held.host.existing(n).numpy()] = pack_cell(KvState.HOST, 0)
        cells[:, held.host.disk_position :] = pack_cell(KvState.DISK, 0)
        fetched = 0
        for layer, positions in enumerate(held.fetched):
            if positions is not None:
                heads = np.bincount(positions.flatten().numpy(), minlength=n)[:n]
                share = np.round(heads * 31 / self.shape.kv_heads).astype(np.uint8) << 3
                cells[layer] = np.where(heads > 0, int(KvState.FETCHED) | share, cells[layer])
                fetched += positions.shape[1]
        mass = normalised(held.mass.sum(1), n)
        return CacheView(n, layers, cells, mass, fetched / layers, float(n - held.host.filled))

    def heads(self, sequence: Sequence, layer: int) -> HeadsView:
        held, n, groups = sequence.held, sequence.computed, self.shape.kv_heads
        states = np.full((groups, n), KvState.EVICTED, np.uint8)
        np.put_along_axis(states, held.host.kept_positions(layer).numpy(), np.uint8(KvState.HOST), axis=1)
        states[:, held.host.disk_position :] = KvState.DISK
        if (fetched := held.fetched[layer]) is not None:
            np.put_along_axis(states, fetched.numpy(), np.uint8(KvState.FETCHED), axis=1)
        return HeadsView(states, head_shares(held.mass[layer], n))

    def _host(self, tokens: int) -> HostKv:
        shape = self.shape
        entry = HostKvShape(shape.layers, shape.kv_heads, shape.head_dim, self.model.dtype)
        return HostKv(self.around.host, entry, tokens, self.knobs.victim, self.around.disk)

    def _open(self, host: HostKv) -> Held:
        """What a sequence needs beside its entries in `host`. Takes nothing when there is no room."""
        shape, device, pool = self.shape, self.model.device, self.around.device
        taken: list[tuple[str, Tensor]] = []

        def tensor(kind: str, *extent: int, dtype: torch.dtype = self.model.dtype) -> Tensor:
            made = pool.tensor(kind, extent, dtype, device)
            taken.append((kind, made))
            return made

        try:
            partial_keys = tensor("partial keys", shape.layers, shape.kv_heads, self.partial, host.capacity)
            columns = tensor(
                "partial weights",
                shape.layers,
                shape.kv_heads,
                shape.head_dim,
                self.partial,
                dtype=self.model.decoder.compute_dtype,
            )
            staging = []
            for slots in self._staging_slots(host.capacity):
                extent = (1, shape.kv_heads, slots, shape.head_dim)
                staging.append((tensor("staging", *extent), tensor("staging", *extent)))
        except Exception:
            for kind, made in taken:
                pool.drop(kind, made)
            raise
        fetched: list[Tensor | None] = [None] * shape.layers
        mass = torch.zeros(shape.layers, shape.kv_heads, 0)
        return Held(host, columns, partial_keys, staging, fetched, mass)

    def _close(self, held: Held) -> None:
        """Everything of a sequence but its host KV."""
        self.around.device.drop("partial keys", held.partial_keys)
        self.around.device.drop("partial weights", held.columns)
        self.around.device.drop("staging", *(t for pair in held.staging for t in pair))

    def _staging_slots(self, capacity: int) -> tuple[int, ...]:
        """Even layers share the first buffer with layer 0, which fetches all; odd layers need their budget. Both end
        with room for the step's own rows."""
        return capacity + 1, math.ceil(self.knobs.budget * capacity) + 1

    def _widen(self, sequence: Sequence, capacity: int) -> None:
        """A later turn needs more room: everything moves to larger buffers."""
        old = sequence.held
        host = old.host.wider(capacity)
        if host.capacity == old.partial_keys.shape[3]:
            return
        try:
            new = self._open(host)
        except Exception:
            if host is not old.host:
                host.close()
            raise
        new.columns.copy_(old.columns)
        new.partial_keys[..., : old.partial_keys.shape[3]] = old.partial_keys
        new.fetched, new.mass = old.fetched, old.mass
        if host is not old.host:
            old.host.close()
        self._close(old)
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
                rotation = self.skew[layer]
                weight = self._skewed(q, rotation).abs().sum((1, 2)) + torch.matmul(keys.float(), rotation).abs().sum(1)
                best = weight.topk(self.partial, dim=-1).indices.unsqueeze(1).expand(-1, self.shape.head_dim, -1)
                held.columns[layer] = rotation.gather(2, best)
                self._saw_all(span, layer, q, keys, values)
                self._offload(held, layer, keys, values)
        return out

    def _saw_all(self, span: Span, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> None:
        """A prompt's rows q [T, H, d] have all the keys and values [G, n, d] of the layer before them, on the device:
        a chance to keep some there. Here none are."""

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
            self._note(held, layer, fetch)
            held.host.used(layer, fetch.slots)
            self._offload(held, layer, own_keys, own_values)
        self._return(fetch)
        return out

    def _arrived(self, span: Span, fetch: Fetch, own_keys: Tensor, own_values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [G, n, d]: what was fetched, and the step's own behind it."""
        self.around.link.wait(fetch.arrival)
        m, n = fetch.slots.shape[1], fetch.slots.shape[1] + span.count
        fetch.keys[:, m:n], fetch.values[:, m:n] = own_keys, own_values
        return fetch.keys[:, :n], fetch.values[:, :n]

    def _turn(self, span: Span, layer: int, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: Fetch) -> Tensor:
        """Several rows over everything, or rows that only look."""
        keys, values = self._arrived(span, fetch, own_keys, own_values)
        if self._keeps():
            self._saw_all(span, layer, q, keys, values)
        if self._keeps() or layer == 0:
            return kernels.flash_attention(q, keys, values, self.shape.scale)[0]
        return self._look(span, layer, q, keys, values)

    def _decode(self, span: Span, layer: int, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: Fetch) -> Tensor:
        """One query over what was fetched for it and its own entry."""
        keys, values = self._arrived(span, fetch, own_keys, own_values)
        return self._one_query(span, layer, q, keys, values, fetch.slots)

    def _one_query(self, span: Span, layer: int, q: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> Tensor:
        """A query over keys and values [G, n, d]: those at the host's slots [G, n - 1], and its own."""
        n, device = keys.shape[1], q.device
        table = torch.zeros(1, 1, dtype=torch.int32, device=device)
        length = torch.tensor([n], dtype=torch.int32, device=device)
        block = (keys.unsqueeze(0), values.unsqueeze(0), table, length, self.shape.scale)
        out = kernels.decode_attention(q, *block)
        if self.step is not None and self.step.observe:
            with self.around.clock.excluded():
                mass = torch.empty(1, self.shape.kv_heads, n, device=device)
                kernels.decode_attention(q, *block, mass)
                self._observe(span, layer, slots, mass[0])
        return out

    def _note(self, held: Held, layer: int, fetch: Fetch) -> None:
        """What was fetched, for the picture."""
        held.fetched[layer] = held.host.positions_at(layer, fetch.slots)

    def _look(self, span: Span, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Rows q [T, H, d] that only look: each selects for itself, as decoding would, and sees the rows before it."""
        rows, groups = span.count, self.shape.kv_heads
        chosen, count = kernels.speculated(*self._asked(span, layer, self._looks[span.sequence]))
        place = chosen.argsort(-1, descending=True).argsort(-1)
        seen = torch.ones(groups, rows, keys.shape[1], dtype=torch.bool, device=q.device)
        seen[:, :, :-rows] = place < count.unsqueeze(-1)
        seen[:, :, -rows:].tril_()
        grouped = q.view(rows, groups, -1, self.shape.head_dim).permute(1, 2, 0, 3).float()
        scores = torch.matmul(grouped, keys.float().mT.unsqueeze(1)) * self.shape.scale
        shares = torch.softmax(scores.masked_fill_(~seen.unsqueeze(1), -torch.inf), -1)
        out = torch.matmul(shares, values.float().unsqueeze(1))
        return out.permute(2, 0, 1, 3).reshape(rows, -1, self.shape.head_dim).to(q.dtype)

    def _speculate(self, span: Span, layer: int, x: Tensor) -> Tensor:
        """Host slots int64 [G, m] that the row x [1, hidden], the input of the layer before, will want of `layer`."""
        held = span.sequence.held
        if math.isinf(self.knobs.alpha) and self.knobs.budget == 1:
            return held.host.occupied()
        q, keys, scale, alpha, most = self._asked(span, layer, x)
        with self.around.device.transient("speculation", 2 * self.shape.kv_heads * held.host.filled * 4):
            return kernels.speculate(q[:, :, 0], keys, scale, alpha, most)

    def _asked(self, span: Span, layer: int, x: Tensor) -> tuple[Tensor, Tensor, float, float, int]:
        """What speculation starts from, for rows x [T, hidden]: partial queries [G, group, T, p], the partial keys
        [G, p, n] of what is in the host, the scores' scale, alpha, and the budget in entries."""
        held = span.sequence.held
        occupied = held.host.filled
        q = self.model.decoder.queries(layer, x, self._positions[span.rows])
        most = max(1, math.floor(self.knobs.budget * occupied + 1e-9))
        keys = held.partial_keys[layer, :, :, :occupied]
        return self._skewed(q, held.columns[layer]), keys, self.shape.scale, self.knobs.alpha, most

    def _selects(self, span: Span) -> bool:
        return span.count == 1 and self._keeps()

    def _keeps(self) -> bool:
        return self.step is not None and self.step.keep

    def _skewed(self, q: Tensor, rotation: Tensor) -> Tensor:
        """q [T, H, d] by each KV head's rotation [G, d, p] -> [G, group, T, p]."""
        grouped = q.view(len(q), self.shape.kv_heads, -1, self.shape.head_dim).permute(1, 2, 0, 3)
        rotated = torch.bmm(grouped.flatten(1, 2), rotation.to(q.dtype))
        return rotated.view(*grouped.shape[:3], -1)

    def _fetch(self, span: Span, layer: int, slots: Tensor) -> Fetch:
        """Starts moving the entries at slots [G, m] to the device: into the staging buffers, or, for a whole turn's
        rows, into buffers that live for one layer."""
        held = span.sequence.held
        count, lasting = slots.shape[1], self._selects(span)
        if lasting:
            keys, values = (buffer[0] for buffer in held.staging[layer % 2])
        else:
            extent = (self.shape.kv_heads, count + span.count, self.shape.head_dim)
            pool, model = self.around.device, self.model
            keys = pool.tensor("layer KV", extent, model.dtype, model.device)
            try:
                values = pool.tensor("layer KV", extent, model.dtype, model.device)
            except OutOfMemory:
                pool.drop("layer KV", keys)
                raise

        def copy() -> None:
            held.host.gather(layer, slots, keys[:, :count], values[:, :count])

        size = 2 * slots.numel() * self.shape.head_dim * self.model.dtype.itemsize
        return Fetch(slots, self._to_device(held, size, copy), keys, values, lasting)

    def _to_device(self, held: Held, size: int, copy: Callable[[], None]) -> Any:
        """Over the link; a stretch of the way that begins on the disk takes what the disk took."""
        before_s = held.host.disk_s
        return self.around.link.to_device(size, copy, lambda: held.host.disk_s - before_s)

    def _return(self, fetch: Fetch) -> None:
        if not fetch.lasting:
            self.around.device.drop("layer KV", fetch.keys, fetch.values)

    def _offload(self, held: Held, layer: int, keys: Tensor, values: Tensor) -> None:
        """The step's own entries, [G, T, d], to the host; their partial keys stay on the device."""
        slots = held.host.incoming(layer)
        count = slots.shape[1]
        rotated = torch.bmm(keys.to(held.columns.dtype), held.columns[layer])
        partial_keys = held.partial_keys[layer]
        if not held.host.capped:
            start = held.host.filled
            partial_keys[:, :, start : start + count] = rotated.mT
        else:
            heads = torch.arange(len(rotated), device=rotated.device).unsqueeze(1)
            kept = rotated[:, rotated.shape[1] - count :].to(partial_keys.dtype)
            partial_keys[heads, :, slots.to(rotated.device)] = kept
        size = 2 * keys.shape[0] * count * keys.shape[2] * keys.element_size()
        self.around.link.to_host(size, lambda: held.host.store(layer, keys, values))

    def _observe(self, span: Span, layer: int, slots: Tensor, mass: Tensor) -> None:
        held = span.sequence.held
        n = span.position + 1
        if held.mass.shape[2] < n:
            held.mass = torch.nn.functional.pad(held.mass, (0, n - held.mass.shape[2]))
        rows = torch.zeros(self.shape.kv_heads, n)
        positions = held.host.positions_at(layer, slots)
        rows.scatter_add_(1, positions, mass[:, :-1].cpu())
        rows[:, n - 1] = mass[:, -1].cpu()
        held.mass[layer, :, :n] = rows

    def _drop_scores(self) -> None:
        if self._scores is not None:
            self.around.device.drop("scores", self._scores)
            self._scores = None
