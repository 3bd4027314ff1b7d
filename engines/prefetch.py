"""What stays on the device between two decode steps, so that only the difference has to be fetched.

Most of what a layer selects it selected a step ago. `WorkingSet` keeps the entries that were wanted last, at fixed
places, and finds out what is missing; `FirstLayer` keeps a prefix of the layer that attends to everything. Both are
copies: the host has every entry, so a place can be given away at any moment without a transfer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines import kernels, native
from engines.hostpool import HostKvShape
from engines.memory import Pool
from engines.upload import upload

KIND = "resident KV"
EMPTY = -1


@dataclass(frozen=True)
class Taken:
    """Where a step's m selected entries and its own (the last) are: `rows` int32 [G, m + 1] of `WorkingSet.keys`. What
    is not there yet: entries (`heads`, `slots`) of the host pool, int64 [k], that go to rows `into`, int64 [k]."""

    rows: Tensor
    heads: Tensor
    slots: Tensor
    into: Tensor


class WorkingSet:
    """The layers after the first. `keys` and `values` [rows, 1, 1, d] on the device: `places` rows a KV head and layer,
    then two areas, used by turns, for what a step selects beyond those. Which slot of the host pool has its copy where
    is known on the host: `place_of` int32 [layers, G, capacity + 1], `slot_of` int32 and `used` int64 [layers, G,
    places + 1]. Their last columns belong to nobody: what must not be written goes there."""

    def __init__(
        self, pool: Pool, shape: HostKvShape, capacity: int, places: int, overflow: int, device: torch.device
    ) -> None:
        self.pool, self.shape, self.capacity, self.places, self.overflow = pool, shape, capacity, places, overflow
        layers, groups = shape.layers - 1, shape.kv_heads
        self._areas = layers * groups * places
        rows = self._areas + 2 * groups * overflow
        both = pool.tensor(KIND, (2, rows, 1, 1, shape.head_dim), shape.dtype, device)
        self.keys, self.values = both
        self.place_of = torch.full((layers, groups, capacity + 1), EMPTY, dtype=torch.int32)
        self.slot_of = torch.full((layers, groups, places + 1), EMPTY, dtype=torch.int32)
        self.used = torch.full((layers, groups, places + 1), EMPTY, dtype=torch.int64)
        self._now = 0

    def take(self, layer: int, slots: Tensor, own: Tensor) -> Taken:
        """Finds the entries at slots [G, m] of the host pool, and makes room for those that are missing and for the
        step's own, which will go to slots own [G, 1]: in the places that were used longest ago. A copy of what was at
        `own` before is forgotten; this step may still read it. All int64, on the CPU."""
        self._now += self.places + 1
        now, (groups, m) = self._now, slots.shape
        place_of, slot_of, used = self.place_of[layer - 1], self.slot_of[layer - 1], self.used[layer - 1]
        beyond = self._areas + layer % 2 * groups * self.overflow
        if kernels.use_native:
            at = self._first_row(layer), beyond, self.overflow
            return Taken(*native.take(place_of, slot_of, used, slots, own, now, *at))
        place = place_of.gather(1, slots).long()
        missing = place < 0
        used.scatter_(1, torch.where(missing, self.places, place), now)
        # The step's own comes first, then the missing in the order of their slots.
        order = missing.cumsum(1)
        count = min(int(order[:, -1].max()) + 1 if m else 1, self.places)
        oldest = used[:, : self.places].topk(count, largest=False, sorted=True)
        free = oldest.values < now
        turn = order.clamp(max=count - 1)
        placed = missing & (order < count) & free.gather(1, turn)
        into = torch.where(placed, oldest.indices.gather(1, turn), self.places)
        own_place = torch.where(free[:, :1], oldest.indices[:, :1], self.places)
        for taken in (into, own_place):
            gone = slot_of.gather(1, taken).long()
            place_of.scatter_(1, torch.where(gone < 0, self.capacity, gone), EMPTY)
        self._enter(layer, torch.where(placed, slots, self.capacity), into, now)
        stale = place_of.gather(1, own).long()
        stale.masked_fill_(stale < 0, self.places)
        slot_of.scatter_(1, stale, EMPTY)
        used.scatter_(1, stale, EMPTY)
        place_of.scatter_(1, own, EMPTY)
        self._enter(layer, torch.where(free[:, :1], own, self.capacity), own_place, now)

        head = torch.arange(groups).unsqueeze(1)
        places = torch.cat([torch.where(missing, into, place), own_place], 1)
        rows = self._first_row(layer) + head * self.places + places
        if self.overflow:
            spilled = places == self.places
            rows = torch.where(spilled, beyond + head * self.overflow + spilled.cumsum(1) - 1, rows)
        heads = head.expand(groups, m)[missing]
        return Taken(rows.int(), heads, slots[missing], rows[:, :m][missing])

    def fill(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor, weight: Tensor) -> None:
        """Starts a layer's set anew from keys and values [G, n, d] that are all on the device, at slots [G, n] of the
        host pool (negative: nowhere): the entries of the largest weight [G, n]."""
        self._now += self.places + 1
        count = min(self.places, keys.shape[1])
        best = weight.masked_fill(slots.to(weight.device) < 0, -1).topk(count, dim=-1).indices
        at = best.unsqueeze(2).expand(-1, -1, keys.shape[2])
        start = self._first_row(layer)
        for target, source in ((self.keys, keys), (self.values, values)):
            whole = target[start : start + len(keys) * self.places].view(len(keys), self.places, -1)
            whole[:, :count] = source.gather(1, at)
        chosen = slots.gather(1, best.cpu())
        place = torch.arange(count).expand_as(chosen)
        for table in (self.place_of, self.slot_of, self.used):
            table[layer - 1].fill_(EMPTY)
        known = chosen >= 0
        self._enter(layer, torch.where(known, chosen, self.capacity), torch.where(known, place, self.places), self._now)
        self.used[layer - 1, :, :count] -= torch.where(known, place, 0)  # the least of them goes first

    def resident(self, layer: int) -> tuple[Tensor, Tensor]:
        """KV heads and slots of all entries that are here, int64 [k]."""
        slots = self.slot_of[layer - 1, :, : self.places]
        heads, places = (slots >= 0).nonzero(as_tuple=True)
        return heads, slots[heads, places].long()

    def close(self) -> None:
        self.pool.drop(KIND, self.keys, self.values)

    def _enter(self, layer: int, slots: Tensor, places: Tensor, now: int) -> None:
        self.place_of[layer - 1].scatter_(1, slots, places.int())
        self.place_of[layer - 1, :, self.capacity] = EMPTY
        self.slot_of[layer - 1].scatter_(1, places, slots.int())
        self.slot_of[layer - 1, :, self.places] = EMPTY
        self.used[layer - 1].scatter_(1, places, now)

    def _first_row(self, layer: int) -> int:
        return (layer - 1) * self.shape.kv_heads * self.places


class FirstLayer:
    """The layer that attends to everything: `keys` and `values` [G, slots + 1, d], entry for entry the first slots of
    the host pool, of which the first `loaded` are here; the last row is for the step's own entry."""

    def __init__(self, pool: Pool, shape: HostKvShape, slots: int, device: torch.device) -> None:
        self.pool, self.slots, self.loaded = pool, slots, 0
        both = pool.tensor(KIND, (2, shape.kv_heads, slots + 1, shape.head_dim), shape.dtype, device)
        self.keys, self.values = both

    def keep(self, filled: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """New entries, keys and values [G, c, d], that go to slots [G, c] of a host pool with `filled` in use."""
        heads = torch.arange(len(keys), device=keys.device).unsqueeze(1)
        rows = upload(slots.clamp(max=self.slots), torch.int64, keys.device)
        self.keys[heads, rows], self.values[heads, rows] = keys, values
        if self.loaded >= min(filled, self.slots):
            self.loaded = max(self.loaded, min(int(slots.max()) + 1, self.slots))

    def take_over(self, old: FirstLayer) -> None:
        rows = self.loaded = min(old.loaded, self.slots)
        self.keys[:, :rows], self.values[:, :rows] = old.keys[:, :rows], old.values[:, :rows]

    def close(self) -> None:
        self.pool.drop(KIND, self.keys, self.values)
