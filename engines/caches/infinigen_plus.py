"""InfiniGen+: the same selection as InfiniGen, but only what has changed since the last step is moved.

The entries that the last steps selected stay on the device, as the prediction of what the next will; the speculation of
the layer before corrects it, and the difference is fetched while that layer computes. The first layer, which attends
to everything, is kept whole, or as far as `resident_tokens` goes: the rest of it streams past in chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import CacheView, HeadsView, Surroundings, head_shares, normalised
from engines.caches.infinigen import Fetch, Held, InfiniGenCache, InfiniGenKnobs
from engines.errors import BadRequest
from engines.events import KvState
from engines.hostpool import HostKv
from engines.prefetch import FirstLayer, Taken, WorkingSet
from engines.sequence import Sequence, Span

RESIDENT_SLACK = 1.5  # times the budget: room for what the last steps selected beside what this one does
TAIL_ROWS = 16  # of a prompt: their attention says what is kept on the device for the first decode step
LATENCY_SHARE = 16  # a chunk takes the link this many times its latency
CHUNK_TOKENS = (1024, 65536)


@dataclass
class _HeldPlus(Held):
    """`came`: KV heads and true positions of what each layer had to fetch in the last step."""

    first: FirstLayer
    working: WorkingSet | None
    chunks: list[Tensor]
    came: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass
class _Difference(Fetch):
    """What is missing on the device is under way: `taken` says where a selecting layer's entries are (or will be);
    the first layer's chunks have an arrival each."""

    taken: Taken | None
    chunk_arrivals: list[Any]


class InfiniGenPlusCache(InfiniGenCache):
    def __init__(self, around: Surroundings, knobs: InfiniGenKnobs) -> None:
        super().__init__(around, knobs)
        if knobs.resident is not None and not 0 < knobs.resident <= 1:
            raise BadRequest(f"resident {knobs.resident:g} is outside (0, 1]")
        if knobs.resident_tokens is not None and knobs.resident_tokens < 1:
            raise BadRequest(f"resident_tokens {knobs.resident_tokens} must be positive")
        info, token_bytes = around.link.info, self.model.kv_bytes_per_token // self.shape.layers
        few, many = CHUNK_TOKENS
        self._chunk_tokens = min(max(few, int(LATENCY_SHARE * info.latency_s * info.bytes_per_s / token_bytes)), many)

    def kv_kinds(self) -> tuple[str, ...]:
        return ("resident KV", *super().kv_kinds())

    def kept_slots(self, capacity: int) -> tuple[int, int]:
        """How many entries a KV head keeps on the device of the first layer, and of every other."""
        most = capacity if self.knobs.resident_tokens is None else min(capacity, self.knobs.resident_tokens)
        share = self.knobs.resident or min(1.0, RESIDENT_SLACK * self.knobs.budget)
        return most, min(most, math.ceil(share * capacity)) + 1

    def _buffers_bytes(self, capacity: int) -> int:
        slots, places = self.kept_slots(capacity)
        overflow = max(0, max(1, math.floor(self.knobs.budget * capacity + 1e-9)) + 1 - places)
        kept = slots + 1 + (self.shape.layers - 1) * places + 2 * overflow
        if slots < capacity:
            kept += 2 * self._chunk_tokens
        return kept * self.layer_token_bytes

    def view(self, sequence: Sequence) -> CacheView:
        held, n, layers, groups = sequence.held, sequence.computed, self.shape.layers, self.shape.kv_heads
        cells = np.empty((layers, n), np.uint8)
        fetched = 0
        for layer in range(layers):
            states = self._states(held, layer, n)
            on_device = (states == KvState.DEVICE) | (states == KvState.FETCHED)
            share = np.round(on_device.sum(0) * 31 / groups).astype(np.uint8) << 3
            # A position shows its nearest state: fetched, then resident, then the tiers below, then gone.
            order = np.array([0, 4, 3, 2, 5, 1, 6], np.uint8)
            nearest = np.take_along_axis(states, order[states].argmax(0)[None], 0)[0]
            cells[layer] = nearest | share
            fetched += len(held.came[layer][0]) if layer in held.came else 0
        mass = normalised(held.mass.sum(1), n)
        return CacheView(n, layers, cells, mass, fetched / (layers * groups), float(n - held.host.filled))

    def heads(self, sequence: Sequence, layer: int) -> HeadsView:
        held, n = sequence.held, sequence.computed
        return HeadsView(self._states(held, layer, n), head_shares(held.mass[layer], n))

    def _states(self, held: Any, layer: int, n: int) -> np.ndarray:
        """events.KvState of one layer, head by head: uint8 [G, n]."""
        states = np.full((self.shape.kv_heads, n), KvState.EVICTED, np.uint8)
        np.put_along_axis(states, held.host.kept_positions(layer).numpy(), np.uint8(KvState.HOST), axis=1)
        states[:, held.host.disk_position :] = KvState.DISK
        if layer:
            heads, slots = held.working.resident(layer)
            states[heads.numpy(), held.host.positions[layer, heads, slots].numpy()] = KvState.DEVICE
        else:
            here = held.host.positions[0, :, : held.first.loaded].numpy()
            np.put_along_axis(states, here, np.uint8(KvState.DEVICE), axis=1)
        if layer in held.came:
            heads, positions = held.came[layer]
            states[heads.numpy(), positions.numpy()] = KvState.FETCHED
        return states

    def _open(self, host: HostKv) -> Held:
        plain = super()._open(host)
        pool, device, shape = self.around.device, self.model.device, self.shape
        most = max(1, math.floor(self.knobs.budget * host.capacity + 1e-9))
        slots, places = self.kept_slots(host.capacity)
        held = _HeldPlus(**vars(plain), first=None, working=None, chunks=[])  # type: ignore[arg-type]
        try:
            held.first = FirstLayer(pool, host.shape, slots, device)
            if shape.layers > 1:
                held.working = WorkingSet(pool, host.shape, host.capacity, places, max(0, most + 1 - places), device)
            if slots < host.capacity:
                extent = (2, shape.kv_heads, self._chunk_tokens, shape.head_dim)
                for _ in range(2):
                    held.chunks.append(pool.tensor("staging", extent, self.model.dtype, device))
        except Exception:
            self._close(held)
            raise
        return held

    def _close(self, held: Held) -> None:
        super()._close(held)
        assert isinstance(held, _HeldPlus)
        for part in (held.first, held.working):
            if part is not None:
                part.close()
        self.around.device.drop("staging", *held.chunks)

    def _staging_slots(self, capacity: int) -> tuple[int, ...]:
        return ()

    def _widen(self, sequence: Sequence, capacity: int) -> None:
        """The working set starts empty: the turn that needs the room sees everything, and fills it anew."""
        old = sequence.held
        super()._widen(sequence, capacity)
        if sequence.held is not old:
            sequence.held.first.take_over(old.first)

    def _saw_all(self, span: Span, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> None:
        """A prompt's keys and values [G, n, d] are on the device, what the host already had and then the span's own:
        those that its last rows attend to most stay."""
        held = span.sequence.held
        if layer == 0:
            return
        n, groups, d = keys.shape[1], self.shape.kv_heads, self.shape.head_dim
        incoming = held.host.incoming(layer)
        slots = torch.full((groups, n), -1)
        slots[:, : n - span.count] = torch.arange(n - span.count)
        slots.scatter_(1, incoming, -1)
        slots[:, n - incoming.shape[1] :] = incoming
        tail = q[-TAIL_ROWS:].float().view(-1, groups, self.shape.group, d).permute(1, 2, 0, 3).reshape(groups, -1, d)
        scores = torch.matmul(tail, keys.float().mT).mul_(self.shape.scale)
        held.working.fill(layer, keys, values, slots, torch.softmax(scores, -1).sum(1))

    def _fetch(self, span: Span, layer: int, slots: Tensor) -> Fetch:
        if not self._selects(span):
            return super()._fetch(span, layer, slots)
        return self._difference(span, layer, slots) if layer else self._first_chunks(span, slots)

    def _difference(self, span: Span, layer: int, slots: Tensor) -> _Difference:
        held, link = span.sequence.held, self.around.link
        working, slots = held.working, slots.cpu()
        taken = working.take(layer, slots, held.host.incoming(layer))
        missing, entry_bytes = len(taken.into), self._entry_bytes
        arrival = None
        if missing:

            def copy() -> None:
                picked = held.host.pick(layer, taken.heads, taken.slots).to(working.keys.device, non_blocking=True)
                into = taken.into.to(picked.device, non_blocking=True)
                for target, source in ((working.keys, picked[0]), (working.values, picked[1])):
                    target.view(-1, self.shape.head_dim).index_copy_(0, into, source)

            # On a GPU what arrives is scattered to its places from a buffer that lives as long as the copy.
            with self.around.device.transient("staging", missing * entry_bytes):
                arrival = self._to_device(held, missing * entry_bytes, copy)
        link.traffic.wanted += slots.numel()
        link.traffic.found += slots.numel() - missing
        link.traffic.saved_bytes += (slots.numel() - missing) * entry_bytes
        return _Difference(slots, arrival, working.keys, working.values, True, taken, [])

    def _first_chunks(self, span: Span, slots: Tensor) -> _Difference:
        """Of the first layer: what its resident part lacks, and the first two chunks of what streams past."""
        held, filled = span.sequence.held, slots.shape[1]
        first, groups = held.first, self.shape.kv_heads
        begin, end = first.loaded, min(filled, first.slots)
        arrival = None
        if begin < end:
            keys, values = first.keys[:, begin:end], first.values[:, begin:end]
            size = groups * (end - begin) * self._entry_bytes
            arrival = self._to_device(held, size, lambda: held.host.gather_run(0, begin, end, keys, values))
            first.loaded = end
        self.around.link.traffic.saved_bytes += groups * min(begin, end) * self._entry_bytes
        fetch = _Difference(slots, arrival, first.keys, first.values, True, None, [])
        for index in range(2):
            self._fetch_chunk(held, fetch, index)
        return fetch

    def _fetch_chunk(self, held: Any, fetch: _Difference, index: int) -> None:
        begin = held.first.slots + index * self._chunk_tokens
        end = min(begin + self._chunk_tokens, fetch.slots.shape[1])
        if begin < end:
            keys, values = held.chunks[index % 2][:, :, : end - begin]
            size = self.shape.kv_heads * (end - begin) * self._entry_bytes
            arrival = self._to_device(held, size, lambda: held.host.gather_run(0, begin, end, keys, values))
            fetch.chunk_arrivals.append((arrival, keys, values))

    def _decode(self, span: Span, layer: int, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: Fetch) -> Tensor:
        assert isinstance(fetch, _Difference)
        if fetch.arrival is not None:
            self.around.link.wait(fetch.arrival)
        if layer == 0:
            return self._decode_first(span, q, own_keys, own_values, fetch)
        assert fetch.taken is not None
        rows, device, groups = fetch.taken.rows.to(q.device), q.device, self.shape.kv_heads
        own = rows[:, -1].long()
        fetch.keys[own, 0, 0], fetch.values[own, 0, 0] = own_keys[:, 0], own_values[:, 0]
        # Each KV head is a sequence of its own to the kernel, each entry a block.
        lengths = torch.full((groups,), rows.shape[1], dtype=torch.int32, device=device)
        asked = q.view(groups, self.shape.group, self.shape.head_dim)
        blocks = (fetch.keys, fetch.values, rows, lengths, self.shape.scale)
        out = kernels.decode_attention(asked, *blocks)
        if self.step is not None and self.step.observe:
            with self.around.clock.excluded():
                mass = torch.empty(groups, 1, rows.shape[1], device=device)
                kernels.decode_attention(asked, *blocks, mass)
                self._observe(span, layer, fetch.slots, mass[:, 0])
        return out.view(1, -1, self.shape.head_dim)

    def _decode_first(self, span: Span, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: _Difference) -> Tensor:
        held, filled = span.sequence.held, fetch.slots.shape[1]
        here = min(filled, held.first.slots)
        fetch.keys[:, here : here + 1], fetch.values[:, here : here + 1] = own_keys, own_values
        keys, values = fetch.keys[:, : here + 1], fetch.values[:, : here + 1]
        if here == filled:
            return self._one_query(span, 0, q, keys, values, fetch.slots)
        observe = self.step is not None and self.step.observe
        out, lse = kernels.flash_attention(q, keys, values, self.shape.scale)
        scores = [self._scores_of(q, keys)] if observe else []
        index = 0
        while index < len(fetch.chunk_arrivals):
            arrival, keys, values = fetch.chunk_arrivals[index]
            self.around.link.wait(arrival)
            part, part_lse = kernels.flash_attention(q, keys, values, self.shape.scale)
            whole = torch.logaddexp(lse, part_lse)
            out, lse = torch.lerp(out, part, (part_lse - whole).exp().view(1, -1, 1).to(out.dtype)), whole
            if observe:
                scores.append(self._scores_of(q, keys))
            index += 1
            self._fetch_chunk(held, fetch, index + 1)
        if observe:
            with self.around.clock.excluded():
                shares = [(part - lse.unsqueeze(0).view(self.shape.kv_heads, -1, 1)).exp().sum(1) for part in scores]
                own = shares[0][:, -1:]
                mass = torch.cat([shares[0][:, :-1], *shares[1:], own], 1)
                self._observe(span, 0, fetch.slots, mass)
        return out

    def _scores_of(self, q: Tensor, keys: Tensor) -> Tensor:
        """float32 [G, group, n]."""
        with self.around.clock.excluded():
            asked = q.view(self.shape.kv_heads, self.shape.group, -1).float()
            return torch.matmul(asked, keys.float().mT).mul_(self.shape.scale)

    def _note(self, held: Held, layer: int, fetch: Fetch) -> None:
        assert isinstance(held, _HeldPlus)
        held.came.pop(layer, None)
        if isinstance(fetch, _Difference) and fetch.taken is not None:
            heads, slots = fetch.taken.heads, fetch.taken.slots
            held.came[layer] = heads, held.host.positions[layer, heads, slots]

    def _offload(self, held: Held, layer: int, keys: Tensor, values: Tensor) -> None:
        super()._offload(held, layer, keys, values)
        assert isinstance(held, _HeldPlus)
        if layer == 0:
            slots = held.host.incoming(0)
            kept = keys.shape[1] - slots.shape[1]
            held.first.keep(held.host.filled, slots, keys[:, kept:], values[:, kept:])

    @property
    def _entry_bytes(self) -> int:
        """A key and a value of one KV head."""
        return 2 * self.shape.head_dim * self.model.dtype.itemsize
