"""InfiniGen+: the same selection as InfiniGen, but only what has changed since the last step is moved.

The entries that the last steps selected stay on the device, as the prediction of what the next will; the speculation of
the layer before corrects it, and the difference is fetched while that layer computes. The first layer, which attends
to everything, is kept whole, or as far as `resident_tokens` goes: the rest of it streams past in chunks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import Surroundings
from engines.caches.host_entries import Fetch
from engines.caches.infinigen import InfiniGenCache, InfiniGenKnobs
from engines.caches.resident_entries import Difference, ResidentEntries, Room
from engines.errors import BadRequest
from engines.hostpool import HostKv
from engines.sequence import Span
from engines.upload import upload

RESIDENT_SLACK = 1.5  # times the budget: room for what the last steps selected beside what this one does
LATENCY_SHARE = 16  # a chunk takes the link this many times its latency
CHUNK_TOKENS = (1024, 65536)


class InfiniGenPlusCache(InfiniGenCache):
    def __init__(self, around: Surroundings, knobs: InfiniGenKnobs) -> None:
        super().__init__(around, knobs)
        if knobs.resident is not None and not 0 < knobs.resident <= 1:
            raise BadRequest(f"resident {knobs.resident:g} is outside (0, 1]")
        if knobs.resident_tokens is not None and knobs.resident_tokens < 1:
            raise BadRequest(f"resident_tokens {knobs.resident_tokens} must be positive")
        info, few, many = around.link.info, *CHUNK_TOKENS
        tokens = int(LATENCY_SHARE * info.latency_s * info.bytes_per_s / self.layer_token_bytes)
        self._chunk_tokens = min(max(few, tokens), many)

    def kv_kinds(self) -> tuple[str, ...]:
        return ("resident KV", *super().kv_kinds())

    def room(self, capacity: int) -> Room:
        """What is kept on the device of a host pool with that many slots."""
        most = capacity if self.knobs.resident_tokens is None else min(capacity, self.knobs.resident_tokens)
        share = self.knobs.resident or min(1.0, RESIDENT_SLACK * self.knobs.budget)
        places = min(most, math.ceil(share * capacity)) + 1
        overflow = max(0, self.speculation.most(capacity) + 1 - places)
        return Room(most, places, overflow, self._chunk_tokens if most < capacity else 0)

    def _buffers_bytes(self, capacity: int) -> int:
        return self.room(capacity).entries(self.shape.layers) * self.layer_token_bytes

    def _open(self, host: HostKv) -> ResidentEntries:
        return ResidentEntries(self.around, host, self.partial_width, self.room(host.capacity))

    def _decode(self, span: Span, layer: int, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: Fetch) -> Tensor:
        assert isinstance(fetch, Difference)
        if fetch.arrival is not None:
            self.around.link.wait(fetch.arrival)
        if fetch.taken is None:
            return self._decode_first(span, q, own_keys, own_values, fetch)
        device, groups = q.device, self.shape.kv_heads
        rows = upload(fetch.taken.rows, torch.int32, device)
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
                span.sequence.held.observe(layer, fetch.slots, mass[:, 0], span.position + 1)
        return out.view(1, -1, self.shape.head_dim)

    def _decode_first(self, span: Span, q: Tensor, own_keys: Tensor, own_values: Tensor, fetch: Difference) -> Tensor:
        """The first layer attends to what of it is on the device, and then chunk by chunk to the rest."""
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
        while index < len(fetch.chunks):
            arrival, keys, values = fetch.chunks[index]
            self.around.link.wait(arrival)
            part, part_lse = kernels.flash_attention(q, keys, values, self.shape.scale)
            whole = torch.logaddexp(lse, part_lse)
            out, lse = torch.lerp(out, part, (part_lse - whole).exp().view(1, -1, 1).to(out.dtype)), whole
            if observe:
                scores.append(self._scores_of(q, keys))
            index += 1
            held.fetch_chunk(fetch, index + 1)
        if observe:
            with self.around.clock.excluded():
                shares = [(part - lse.unsqueeze(0).view(self.shape.kv_heads, -1, 1)).exp().sum(1) for part in scores]
                own = shares[0][:, -1:]
                mass = torch.cat([shares[0][:, :-1], *shares[1:], own], 1)
                held.observe(0, fetch.slots, mass, span.position + 1)
        return out

    def _scores_of(self, q: Tensor, keys: Tensor) -> Tensor:
        """float32 [G, group, n]."""
        with self.around.clock.excluded():
            asked = q.view(self.shape.kv_heads, self.shape.group, -1).float()
            return torch.matmul(asked, keys.float().mT).mul_(self.shape.scale)
