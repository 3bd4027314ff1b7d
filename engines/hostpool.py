"""InfiniGen's KV in host memory: one sequence's entries, whole, or under a cap with a disk below it or with victims.

Lee et al., OSDI 2024, 4.4: when the pool is full, the entry to overwrite is chosen by a counter that every fetch bumps
(halved for a whole head when one saturates), or by LRU or FIFO.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.disktier import DiskTier
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


@dataclass(frozen=True)
class _Part:
    """Slots `start .. end` of the pool: keys and values [layers, G, end - start, d] in memory or in a mapped file."""

    start: int
    end: int
    keys: Tensor
    values: Tensor
    on_disk: bool


class HostKv:
    """`keys` and `values` [layers, G, memory_slots, d], pinned where there is a GPU; slots from there up to `capacity`
    lie on the disk, if one is given. `positions` int64 [layers, G, capacity]: the true position in each slot, -1 when
    empty. Slots fill in order; then victims give theirs up, each layer and head its own. `filled` slots are in use, the
    same number in every layer and head. `disk_s`: seconds spent reading and writing what lies on the disk."""

    def __init__(self, pool: Pool, shape: HostKvShape, tokens: int, victim: str, disk: DiskTier | None = None) -> None:
        self.pool, self.shape, self.victim, self.disk = pool, shape, victim, disk
        wanted = rounded(tokens)
        self.memory_slots = wanted
        if pool.cap_bytes is not None:
            fits = (pool.cap_bytes - pool.used_bytes) // shape.token_bytes
            if fits < 1:
                raise HostOutOfMemory("KV", shape.token_bytes, pool.used_bytes, pool.cap_bytes)
            self.memory_slots = min(wanted, fits)
        self.capacity = self.memory_slots
        extent = (shape.layers, shape.kv_heads, self.memory_slots, shape.head_dim)
        self.keys = pool.tensor("kv", extent, shape.dtype, "cpu")
        try:
            self.values = pool.tensor("kv", extent, shape.dtype, "cpu")
        except HostOutOfMemory:
            pool.drop("kv", self.keys)
            raise
        self._parts = [_Part(0, self.memory_slots, self.keys, self.values, on_disk=False)]
        self.positions = torch.full(extent[:3], -1, dtype=torch.int64)
        self.rank = torch.zeros(extent[:3], dtype=torch.int64)
        self.filled = 0
        self.disk_s = 0.0
        self._steps = 0
        self._incoming: Tensor | None = None
        if disk is not None and self.memory_slots < tokens:
            try:
                self._extend(tokens)
            except Exception:
                self.close()
                raise
        self.capped = self.capacity < tokens

    def wants(self, tokens: int) -> bool:
        """Whether larger buffers would help: not where a cap forbids them."""
        return tokens > self.capacity and not self.capped

    def wider(self, tokens: int) -> HostKv:
        """Room for `tokens`: a larger pool with the same entries; where the cap forbids it, this one with more of the
        disk, or with victims from now on."""
        if self.pool.cap_bytes is not None:
            fits = (self.pool.cap_bytes - self.pool.used_bytes) // self.shape.token_bytes
            if self.disk is not None and fits < tokens:
                self._extend(tokens)
                return self
            if fits <= self.capacity:
                self.capped = True
                return self
        new = HostKv(self.pool, self.shape, tokens, self.victim, self.disk)
        new._take_over(self)
        return new

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
            for part, here, there in self._within(self.filled, self.filled + count):
                start = self._disk_begins(part)
                part.keys[layer, :, here].copy_(keys[:, there], non_blocking=True)
                part.values[layer, :, here].copy_(values[:, there], non_blocking=True)
                self._disk_ends(start)
        else:
            heads = torch.arange(self.shape.kv_heads).unsqueeze(1)
            self.keys[layer][heads, slots] = keys.cpu()
            self.values[layer][heads, slots] = values.cpu()

    def gather(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """The entries at slots [G, m] into keys and values [G, m, d] on the device."""
        if slots.shape[1] == self.filled:
            self.gather_run(layer, 0, self.filled, keys, values)
            return
        slots = slots.cpu()
        heads = torch.arange(self.shape.kv_heads).unsqueeze(1).expand_as(slots)
        picked = self.pick(layer, heads.flatten(), slots.flatten())
        keys.copy_(picked[0].view(keys.shape), non_blocking=True)
        values.copy_(picked[1].view(values.shape), non_blocking=True)

    def gather_run(self, layer: int, begin: int, end: int, keys: Tensor, values: Tensor) -> None:
        """The entries at slots `begin .. end` of all heads into keys and values [G, end - begin, d] on the device."""
        for part, here, there in self._within(begin, end):
            start = self._disk_begins(part)
            keys[:, there].copy_(part.keys[layer, :, here], non_blocking=True)
            values[:, there].copy_(part.values[layer, :, here], non_blocking=True)
            self._disk_ends(start)

    def pick(self, layer: int, heads: Tensor, slots: Tensor) -> Tensor:
        """The keys and values [2, m, d] of single entries, heads and slots int64 [m], pinned where there is a GPU."""
        extent = (2, len(slots), self.shape.head_dim)
        picked = torch.empty(extent, dtype=self.shape.dtype, pin_memory=torch.cuda.is_available())
        for part in self._parts:
            size = part.end - part.start
            start = self._disk_begins(part)
            sources = [t[layer].view(-1, self.shape.head_dim) for t in (part.keys, part.values)]
            if len(self._parts) == 1:
                rows = heads * size + slots
                for target, source in zip(picked, sources, strict=True):
                    torch.index_select(source, 0, rows, out=target)
            else:
                found = ((slots >= part.start) & (slots < part.end)).nonzero().squeeze(1)
                rows = heads[found] * size + slots[found] - part.start
                for target, source in zip(picked, sources, strict=True):
                    target.index_copy_(0, found, source.index_select(0, rows))
            self._disk_ends(start)
        return picked

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
        return self.positions[layer].gather(1, slots.cpu()) if self.capped else slots.cpu()

    def positions_of(self, layer: int, heads: Tensor, slots: Tensor) -> Tensor:
        """Of single entries, heads and slots int64 [k]. Where nothing is evicted, slot and position are one number."""
        return self.positions[layer, heads, slots] if self.capped else slots

    def kept_positions(self, layer: int) -> Tensor:
        return self.positions[layer, :, : self.filled].sort(-1).values

    @property
    def disk_position(self) -> int:
        """The first true position whose entry lies on the disk. (With a disk nothing is evicted: slot = position.)"""
        return self.memory_slots if len(self._parts) > 1 else sys.maxsize

    def existing(self, tokens: int) -> Tensor:
        """bool [layers, tokens]: positions that at least one KV head still has."""
        if not self.capped:
            return torch.ones(self.shape.layers, tokens, dtype=torch.bool)
        seen = torch.zeros(self.shape.layers, tokens, dtype=torch.bool)
        seen.scatter_(1, self.positions[:, :, : self.filled].flatten(1), True)
        return seen

    def close(self) -> None:
        self.pool.drop("kv", self.keys, self.values)
        for part in self._parts:
            if part.on_disk:
                assert self.disk is not None
                self.disk.drop(part.keys, part.values)
        self._parts.clear()

    def _take_over(self, old: HostKv) -> None:
        """A later turn moved to larger buffers: the entries of the old ones."""
        for layer in range(self.shape.layers):
            for part, here, there in self._within(0, old.filled):
                old.gather_run(layer, there.start, there.stop, part.keys[layer, :, here], part.values[layer, :, here])
        self.positions[:, :, : old.filled] = old.positions[:, :, : old.filled]
        self.filled = old.filled

    def _extend(self, tokens: int) -> None:
        """Slots on the disk, behind those that there are, until there are `tokens`. Raises DiskFull."""
        assert self.disk is not None
        start, end = self.capacity, self.memory_slots + rounded(tokens - self.memory_slots)
        shape = self.shape
        extent = (shape.layers, shape.kv_heads, end - start, shape.head_dim)
        both = self.disk.tensor((2, *extent), shape.dtype)
        self._parts.append(_Part(start, end, both[0], both[1], on_disk=True))
        self.capacity = end
        more = (0, end - start)
        self.positions = torch.nn.functional.pad(self.positions, more, value=-1)
        self.rank = torch.nn.functional.pad(self.rank, more)

    def _within(self, begin: int, end: int) -> Iterator[tuple[_Part, slice, slice]]:
        """The parts that slots `begin .. end` lie in: each with the slice of the part and the slice of the run."""
        for part in self._parts:
            low, high = max(begin, part.start), min(end, part.end)
            if low < high:
                yield part, slice(low - part.start, high - part.start), slice(low - begin, high - begin)

    @staticmethod
    def _disk_begins(part: _Part) -> float | None:
        return time.perf_counter() if part.on_disk else None

    def _disk_ends(self, start: float | None) -> None:
        if start is not None:
            self.disk_s += time.perf_counter() - start


def rounded(tokens: int) -> int:
    return -(-tokens // ROUND_TOKENS) * ROUND_TOKENS
