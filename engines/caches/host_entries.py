"""What InfiniGen holds of one sequence: all entries in host memory, and what finds and takes those that matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.caches.base import CacheView, HeadsView, Surroundings, head_shares, normalised
from engines.caches.partial_keys import PartialKeys
from engines.events import KvState
from engines.hostpool import HostKv

STAGING = "staging"
ASIDE = "layer KV"


@dataclass
class Fetch:
    """Entries under way to keys and values [G, >= m, d] on the device: `slots` int64 [G, m] of the host pool, and when
    they are there. `lasting` buffers serve one fetch after the other."""

    slots: Tensor
    arrival: Any
    keys: Tensor
    values: Tensor
    lasting: bool


class HostEntries:
    """`host` has the entries, and belongs to whoever opened it. `fetched`: of each layer, KV heads and true positions
    of what came last, to be broadcast against each other. `mass` float32 [layers, G, tokens]: observed last."""

    def __init__(self, around: Surroundings, host: HostKv, partial_width: int, staging_slots: tuple[int, ...]) -> None:
        """Two staging buffers of so many slots, for the layers of even and of odd number; () for none. Raises
        OutOfMemory, and takes nothing, when there is no room."""
        self.around, self.host, self.shape = around, host, host.shape
        self._device = around.model.device
        self._heads = torch.arange(self.shape.kv_heads).unsqueeze(1)
        self.fetched: dict[int, tuple[Tensor, Tensor]] = {}
        self.mass = torch.zeros(self.shape.layers, self.shape.kv_heads, 0)
        self._staging: list[Tensor] = []
        dtype = around.model.decoder.compute_dtype
        self.partial = PartialKeys(around.device, self.shape, partial_width, host.capacity, dtype, self._device)
        try:
            for slots in staging_slots:
                extent = (2, self.shape.kv_heads, slots, self.shape.head_dim)
                self._staging.append(around.device.tensor(STAGING, extent, self.shape.dtype, self._device))
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """Gives back all but `host`."""
        self.partial.close()
        self.around.device.drop(STAGING, *self._staging)

    def take_over(self, old: HostEntries) -> None:
        """A later turn moved to larger buffers: what is on the device."""
        self.partial.take_over(old.partial)
        self.fetched, self.mass = old.fetched, old.mass

    def saw(self, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> None:
        """A prompt's rows q [T, H, d] have all the layer's keys and values [G, n, d] on the device, the last T their
        own: a chance to keep some there. Here none are."""

    def offload(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """The step's own entries, [G, T, d], to the host; their partial keys stay on the device."""
        self.partial.keep(layer, keys, self.host)
        size = self.host.incoming(layer).numel() * self._entry_bytes
        self.around.link.to_host(size, lambda: self.host.store(layer, keys, values), (keys, values))

    def fetch(self, layer: int, slots: Tensor) -> Fetch:
        """Starts moving the entries at slots [G, m] to the device, for one query, while the layer before computes."""
        keys, values = self._staging[layer % 2]
        return self._fetch_into(layer, slots, keys, values, lasting=True)

    def fetch_aside(self, layer: int, slots: Tensor, rows: int) -> Fetch:
        """The same for so many rows, into buffers that live for one layer; see `give_back`. Raises OutOfMemory."""
        extent = (2, self.shape.kv_heads, slots.shape[1] + rows, self.shape.head_dim)
        keys, values = self.around.device.tensor(ASIDE, extent, self.shape.dtype, self._device)
        return self._fetch_into(layer, slots, keys, values, lasting=False)

    def arrived(self, fetch: Fetch, own_keys: Tensor, own_values: Tensor) -> tuple[Tensor, Tensor]:
        """Waits, and gives keys and values [G, n, d]: what was fetched, and the step's own [G, T, d] behind it."""
        self.around.link.wait(fetch.arrival)
        m, n = fetch.slots.shape[1], fetch.slots.shape[1] + own_keys.shape[1]
        fetch.keys[:, m:n], fetch.values[:, m:n] = own_keys, own_values
        return fetch.keys[:, :n], fetch.values[:, :n]

    def give_back(self, fetch: Fetch) -> None:
        if not fetch.lasting:
            self.around.device.drop(ASIDE, fetch.keys, fetch.values)

    def used(self, layer: int, fetch: Fetch) -> None:
        """Notes what a step attended to: for the choice of victims, and for the picture."""
        self.host.used(layer, fetch.slots)
        self.fetched[layer] = self._heads, self.host.positions_at(layer, fetch.slots)

    def observe(self, layer: int, slots: Tensor, mass: Tensor, n: int) -> None:
        """The mass [G, m + 1] that one query gave to the entries at slots [G, m] and to its own, the last of n."""
        if self.mass.shape[2] < n:
            self.mass = torch.nn.functional.pad(self.mass, (0, n - self.mass.shape[2]))
        rows = torch.zeros(self.shape.kv_heads, n)
        rows.scatter_add_(1, self.host.positions_at(layer, slots), mass[:, :-1].cpu())
        rows[:, n - 1] = mass[:, -1].cpu()
        self.mass[layer, :, :n] = rows

    def view(self, n: int) -> CacheView:
        """Of `n` positions. A position shows the nearest state that any KV head has its entry in."""
        layers, groups = self.shape.layers, self.shape.kv_heads
        cells = np.full((layers, n), KvState.EVICTED, np.uint8)
        cells[self.host.existing(n).numpy()] = KvState.HOST
        cells[:, self.host.disk_position :] = KvState.DISK
        for layer in range(layers):
            here = np.zeros((groups, n), bool)
            for state, heads, positions in self._here(layer):
                here[heads.numpy(), positions.numpy()] = True
                cells[layer, positions.numpy()] = state
            cells[layer] |= np.round(here.sum(0) * 31 / groups).astype(np.uint8) << 3
        fetched = sum(positions.numel() for _, positions in self.fetched.values()) / (layers * groups)
        return CacheView(n, layers, cells, normalised(self.mass.sum(1), n), fetched, float(n - self.host.filled))

    def heads(self, layer: int, n: int) -> HeadsView:
        states = np.full((self.shape.kv_heads, n), KvState.EVICTED, np.uint8)
        np.put_along_axis(states, self.host.kept_positions(layer).numpy(), np.uint8(KvState.HOST), axis=1)
        states[:, self.host.disk_position :] = KvState.DISK
        for state, heads, positions in self._here(layer):
            states[heads.numpy(), positions.numpy()] = state
        return HeadsView(states, head_shares(self.mass[layer], n))

    def _here(self, layer: int) -> list[tuple[KvState, Tensor, Tensor]]:
        """What of a layer is on the device, the nearest last: KV heads and true positions, as in `fetched`."""
        return [(KvState.FETCHED, *self.fetched[layer])] if layer in self.fetched else []

    def _fetch_into(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor, *, lasting: bool) -> Fetch:
        count = slots.shape[1]

        def copy() -> None:
            self.host.gather(layer, slots, keys[:, :count], values[:, :count])

        return Fetch(slots, self._to_device(slots.numel(), copy), keys, values, lasting)

    def _to_device(self, entries: int, copy: Callable[[], None]) -> Any:
        """Over the link; a stretch of the way that begins on the disk takes what the disk took."""
        before_s = self.host.disk_s
        return self.around.link.to_device(entries * self._entry_bytes, copy, lambda: self.host.disk_s - before_s)

    @property
    def _entry_bytes(self) -> int:
        """A key and a value of one KV head."""
        return 2 * self.shape.head_dim * self.shape.dtype.itemsize
