"""What InfiniGen+ holds of one sequence beside what InfiniGen does: copies on the device, so that less has to move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engines.caches.base import Surroundings
from engines.caches.host_entries import STAGING, Fetch, HostEntries
from engines.events import KvState
from engines.hostpool import HostKv
from engines.prefetch import FirstLayer, Taken, WorkingSet
from engines.upload import upload

TAIL_ROWS = 16  # of a prompt: their attention says what is kept on the device for the first decode step


@dataclass(frozen=True)
class Room:
    """What a KV head may keep on the device: `first` entries of the first layer and `places` for each other; two times
    `overflow` for what a step selects beyond those, and two chunks of `chunk` for what of the first layer streams past
    (0: nothing)."""

    first: int
    places: int
    overflow: int
    chunk: int

    def entries(self, layers: int) -> int:
        """In all layers together; the first has a place for the step's own."""
        return self.first + 1 + (layers - 1) * self.places + 2 * self.overflow + 2 * self.chunk


@dataclass
class Difference(Fetch):
    """What is missing on the device is under way: `taken` says where a selecting layer's entries are (or will be); the
    first layer's `chunks` are keys and values [G, m, d], behind their arrival."""

    taken: Taken | None
    chunks: list[tuple[Any, Tensor, Tensor]]


class ResidentEntries(HostEntries):
    """`first` and `working` are what stays on the device; `fetched` is only what they lacked."""

    working: WorkingSet  # where there is a second layer

    def __init__(self, around: Surroundings, host: HostKv, partial_width: int, room: Room) -> None:
        super().__init__(around, host, partial_width, ())
        pool, shape, device = around.device, self.shape, around.model.device
        self.room = room
        self._kept: list[FirstLayer | WorkingSet] = []
        self._chunks: list[Tensor] = []
        try:
            self.first = FirstLayer(pool, shape, room.first, device)
            self._kept.append(self.first)
            if shape.layers > 1:
                self.working = WorkingSet(pool, shape, host.capacity, room.places, room.overflow, device)
                self._kept.append(self.working)
            if room.chunk:
                extent = (2, shape.kv_heads, room.chunk, shape.head_dim)
                for _ in range(2):
                    self._chunks.append(pool.tensor(STAGING, extent, shape.dtype, device))
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        for part in self._kept:
            part.close()
        self.around.device.drop(STAGING, *self._chunks)

    def take_over(self, old: HostEntries) -> None:
        """The working set starts empty: the turn that needs the room sees everything, and fills it anew."""
        assert isinstance(old, ResidentEntries)
        super().take_over(old)
        self.fetched = {}
        self.first.take_over(old.first)

    def saw(self, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> None:
        """What the host already had and then the span's own: those that its last rows attend to most stay."""
        if layer == 0:
            return
        groups, n, d = keys.shape
        before = n - len(q)
        incoming = self.host.incoming(layer)
        slots = torch.full((groups, n), -1)
        slots[:, :before] = torch.arange(before)
        slots.scatter_(1, incoming, -1)
        slots[:, n - incoming.shape[1] :] = incoming
        tail = q[-TAIL_ROWS:].float().view(-1, groups, q.shape[1] // groups, d).permute(1, 2, 0, 3)
        scores = torch.matmul(tail.reshape(groups, -1, d), keys.float().mT).mul_(self.around.model.shape.scale)
        self.working.fill(layer, keys, values, slots, torch.softmax(scores, -1).sum(1))

    def offload(self, layer: int, keys: Tensor, values: Tensor) -> None:
        super().offload(layer, keys, values)
        if layer == 0:
            slots = self.host.incoming(0)
            kept = keys.shape[1] - slots.shape[1]
            self.first.keep(self.host.filled, slots, keys[:, kept:], values[:, kept:])

    def fetch(self, layer: int, slots: Tensor) -> Difference:
        return self._missing(layer, slots) if layer else self._first_chunks(slots)

    def fetch_chunk(self, fetch: Difference, index: int) -> None:
        """Starts moving the chunk of that number behind the first layer's entries on the device, if there is one, into
        the buffer of the last but one."""
        begin = self.room.first + index * self.room.chunk
        end = min(begin + self.room.chunk, fetch.slots.shape[1])
        if begin < end:
            keys, values = self._chunks[index % 2][:, :, : end - begin]
            fetch.chunks.append((self._run(begin, end, keys, values), keys, values))

    def used(self, layer: int, fetch: Fetch) -> None:
        self.host.used(layer, fetch.slots)
        self.fetched.pop(layer, None)
        if isinstance(fetch, Difference) and fetch.taken is not None:
            heads, slots = fetch.taken.heads, fetch.taken.slots
            self.fetched[layer] = heads, self.host.positions_of(layer, heads, slots)

    def _missing(self, layer: int, slots: Tensor) -> Difference:
        """Of a selecting layer: what the last steps did not select."""
        working, slots = self.working, slots.cpu()
        taken = working.take(layer, slots, self.host.incoming(layer))
        missing = taken.into.shape[0]
        arrival = None
        if missing:

            def copy() -> None:
                picked = self.host.pick(layer, taken.heads, taken.slots).to(working.keys.device, non_blocking=True)
                into = upload(taken.into, torch.int64, picked.device)
                for target, source in ((working.keys, picked[0]), (working.values, picked[1])):
                    target.view(-1, self.shape.head_dim).index_copy_(0, into, source)

            # On a GPU what arrives is scattered to its places from a buffer that lives as long as the copy.
            with self.around.device.transient(STAGING, missing * self._entry_bytes):
                arrival = self._to_device(missing, copy)
        traffic, found = self.around.link.traffic, slots.numel() - missing
        traffic.wanted += slots.numel()
        traffic.found += found
        traffic.saved_bytes += found * self._entry_bytes
        return Difference(slots, arrival, working.keys, working.values, True, taken, [])

    def _first_chunks(self, slots: Tensor) -> Difference:
        """Of the first layer: what its resident part lacks, and the first two chunks of what streams past."""
        first = self.first
        begin, end = first.loaded, min(slots.shape[1], first.slots)
        arrival = None
        if begin < end:
            arrival = self._run(begin, end, first.keys[:, begin:end], first.values[:, begin:end])
            first.loaded = end
        self.around.link.traffic.saved_bytes += self.shape.kv_heads * min(begin, end) * self._entry_bytes
        fetch = Difference(slots, arrival, first.keys, first.values, True, None, [])
        for index in range(2):
            self.fetch_chunk(fetch, index)
        return fetch

    def _run(self, begin: int, end: int, keys: Tensor, values: Tensor) -> Any:
        """Starts moving the first layer's slots `begin .. end` to keys and values [G, end - begin, d]; says when they
        are there."""
        entries = self.shape.kv_heads * (end - begin)
        return self._to_device(entries, lambda: self.host.gather_run(0, begin, end, keys, values))

    def _here(self, layer: int) -> list[tuple[KvState, Tensor, Tensor]]:
        if layer:
            heads, slots = self.working.resident(layer)
        else:
            heads, slots = self._heads, torch.arange(self.first.loaded)
        return [(KvState.DEVICE, heads, self.host.positions_of(layer, heads, slots)), *super()._here(layer)]
