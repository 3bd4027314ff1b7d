"""InfiniGen's KV in host memory: one sequence's entries, whole or under a cap with victims.

Lee et al., OSDI 2024, 4.4: when the pool is full, the entry to overwrite is chosen by a counter that every fetch bumps
(halved for a whole head when one saturates), or by LRU or FIFO.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.errors import HostOutOfMemory
from engines.memory import Pool

COUNTER_LIMIT = 255
ROUND_TOKENS = 64


@dataclass(frozen=True)
class HostKvShape:
    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class HostKv:
    """`keys` and `values` [layers, G, capacity, d], pinned where there is a GPU. `positions` int64 [layers, G,
    capacity]: the true position in each slot, -1 when empty. Slots fill in order; then victims give theirs up, each
    layer and head its own. `filled` slots are in use, the same number in every layer and head."""

    def __init__(self, pool: Pool, shape: HostKvShape, tokens: int, victim: str) -> None:
        self.pool, self.shape, self.victim = pool, shape, victim
        wanted = -(-tokens // ROUND_TOKENS) * ROUND_TOKENS
        self.capacity = wanted
        if pool.cap_bytes is not None:
            fits = (pool.cap_bytes - pool.used_bytes) // shape.token_bytes
            if fits < 1:
                raise HostOutOfMemory("KV", shape.token_bytes, pool.used_bytes, pool.cap_bytes)
            self.capacity = min(wanted, fits)
        self.capped = self.capacity < tokens
        extent = (shape.layers, shape.kv_heads, self.capacity, shape.head_dim)
        self.keys = pool.tensor("kv", extent, shape.dtype, "cpu")
        self.values = pool.tensor("kv", extent, shape.dtype, "cpu")
        self.positions = torch.full(extent[:3], -1, dtype=torch.int64)
        self.rank = torch.zeros(extent[:3], dtype=torch.int64)
        self.filled = 0
        self._steps = 0
        self._incoming: Tensor | None = None

    def wants(self, tokens: int) -> bool:
        """Whether larger buffers would help: not where a cap forbids them."""
        return tokens > self.capacity and not self.capped

    def make_room(self, count: int) -> None:
        """Chooses the slots that the step's entries will take: free ones, then victims. Of more entries than the pool
        holds only the last will be stored."""
        count = min(count, self.capacity)
        layers, heads = self.positions.shape[:2]
        fresh = torch.arange(self.filled, min(self.filled + count, self.capacity)).expand(layers, heads, -1)
        missing = count - fresh.shape[2]
        self._incoming = fresh
        if missing:
            # Ties go to the oldest. FIFO has nothing but age to go by.
            order = (self.rank << 32) + self.positions
            victims = order[:, :, : self.filled].topk(missing, dim=-1, largest=False).indices
            self._incoming = torch.cat([victims, fresh], dim=-1)

    def incoming(self, layer: int) -> Tensor:
        """int64 [G, c]: where the step's last c entries of this layer go."""
        assert self._incoming is not None
        return self._incoming[layer]

    def occupied(self) -> Tensor:
        """int64 [G, filled]: every slot in use."""
        return torch.arange(self.filled).expand(self.shape.kv_heads, -1)

    def store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """keys and values [G, T, d], the last of them into the slots that `make_room` chose."""
        slots = self.incoming(layer)
        count = slots.shape[1]
        keys, values = keys[:, keys.shape[1] - count :], values[:, values.shape[1] - count :]
        if not self.capped:
            rows = slice(self.filled, self.filled + count)
            self.keys[layer, :, rows].copy_(keys, non_blocking=True)
            self.values[layer, :, rows].copy_(values, non_blocking=True)
        else:
            heads = torch.arange(self.shape.kv_heads).unsqueeze(1)
            self.keys[layer][heads, slots] = keys.cpu()
            self.values[layer][heads, slots] = values.cpu()

    def gather(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """The entries at slots [G, m] into keys and values [G, m, d] on the device."""
        if slots.shape[1] == self.filled:
            keys.copy_(self.keys[layer, :, : self.filled], non_blocking=True)
            values.copy_(self.values[layer, :, : self.filled], non_blocking=True)
            return
        row = torch.arange(self.shape.kv_heads).unsqueeze(1) * self.capacity
        flat = (slots.cpu() + row).flatten()
        for target, source in ((keys, self.keys[layer]), (values, self.values[layer])):
            picked = source.view(-1, self.shape.head_dim).index_select(0, flat)
            if target.device.type == "cuda":
                picked = picked.pin_memory()
            target.copy_(picked.view(target.shape), non_blocking=True)

    def used(self, layer: int, slots: Tensor) -> None:
        """Notes a fetch, for the choice of victims."""
        if not self.capped or self.victim == "fifo":
            return
        slots = slots.cpu()
        if self.victim == "lru":
            self.rank[layer].scatter_(1, slots, self._steps + 1)
        else:
            self.rank[layer].scatter_add_(1, slots, torch.ones_like(slots))

    def advance(self, count: int, position: int) -> None:
        """The step is over: its entries, true positions `position` on, are in their slots."""
        assert self._incoming is not None
        stored = self._incoming.shape[2]
        if stored:
            new = torch.arange(position + count - stored, position + count).expand_as(self._incoming)
            self.positions.scatter_(2, self._incoming, new)
            self._steps += 1
            if self.capped:
                start = self._steps if self.victim == "lru" else 0
                self.rank.scatter_(2, self._incoming, start)
                if self.victim == "counter":
                    saturated = self.rank.amax(-1, keepdim=True) >= COUNTER_LIMIT
                    self.rank = torch.where(saturated, self.rank >> 1, self.rank)
        self.filled = min(self.capacity, self.filled + stored)
        self._incoming = None

    def positions_at(self, layer: int, slots: Tensor) -> Tensor:
        """True positions int64 [G, m] of the entries at slots [G, m]."""
        return self.positions[layer].gather(1, slots.cpu())

    def kept_positions(self, layer: int) -> Tensor:
        return self.positions[layer, :, : self.filled].sort(-1).values

    def existing(self, tokens: int) -> Tensor:
        """bool [layers, tokens]: positions that at least one KV head still has."""
        if not self.capped:
            return torch.ones(self.shape.layers, tokens, dtype=torch.bool)
        seen = torch.zeros(self.shape.layers, tokens, dtype=torch.bool)
        seen.scatter_(1, self.positions[:, :, : self.filled].flatten(1), True)
        return seen

    def take_over(self, old: HostKv) -> None:
        """A later turn moved to larger buffers: the entries of the old ones."""
        rows = slice(0, old.filled)
        self.keys[:, :, rows], self.values[:, :, rows] = old.keys[:, :, rows], old.values[:, :, rows]
        self.positions[:, :, rows] = old.positions[:, :, rows]
        self.filled = old.filled

    def close(self) -> None:
        self.pool.drop("kv", self.keys, self.values)
