"""What a sparse cache holds of one sequence: each layer and KV head has positions of its own, slot by slot."""

from __future__ import annotations

import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import CacheView, HeadsView, head_shares, normalised
from engines.events import KvState
from engines.memory import BLOCK_TOKENS, BlockPool

KIND = "importance"
_SLOT_BYTES = torch.int64.itemsize + torch.float32.itemsize


class Entries:
    """`count` entries in every layer and head, in the blocks of `table`. `positions` int64 [layers, G, slots] (-1:
    empty), `mass` float32 the same shape: attention received. `hole` int64 [layers, G]: the slot for the next token.
    Positions and mass are charged to the device; raises DeviceOutOfMemory, and takes nothing, when there is no room."""

    def __init__(self, blocks: BlockPool, table: list[int], layers: int, kv_heads: int, device: torch.device) -> None:
        self.blocks, self.table, self.count = blocks, table, 0
        self.positions = torch.full((layers, kv_heads, 0), -1, dtype=torch.int64, device=device)
        self.mass = torch.zeros(layers, kv_heads, 0, device=device)
        self.hole = torch.zeros(layers, kv_heads, dtype=torch.int64, device=device)
        self.resize()

    @property
    def slots(self) -> int:
        return self.positions.shape[-1]

    @staticmethod
    def size_bytes(layers: int, kv_heads: int, blocks: int) -> int:
        """Of the positions and the mass of that many blocks."""
        return layers * kv_heads * blocks * BLOCK_TOKENS * _SLOT_BYTES

    def resize(self) -> None:
        """As many slots as the table's blocks have: wider, or without the last. Raises DeviceOutOfMemory."""
        more = len(self.table) * BLOCK_TOKENS - self.slots
        size = self.hole.numel() * abs(more) * _SLOT_BYTES
        if more < 0:
            self.blocks.pool.release(KIND, size)
        else:
            self.blocks.pool.charge(KIND, size)
        self.positions = torch.nn.functional.pad(self.positions, (0, more), value=-1)
        self.mass = torch.nn.functional.pad(self.mass, (0, more))

    def close(self) -> None:
        """Gives back what was charged; the blocks belong to whoever allocated them."""
        self.blocks.pool.release(KIND, self.hole.numel() * self.slots * _SLOT_BYTES)

    def take(self, position: int, table: Tensor) -> tuple[Tensor, Tensor]:
        """The holes become that position's entries: their blocks, by the sequence's own as a tensor, int [blocks], and
        the offsets within, int64 [layers, G]."""
        self.positions.scatter_(2, self.hole.unsqueeze(-1), position)
        self.mass.scatter_(2, self.hole.unsqueeze(-1), 0.0)
        return table[self.hole // BLOCK_TOKENS].long(), self.hole % BLOCK_TOKENS

    def drop(self, slots: Tensor) -> None:
        """One entry a layer and head goes, int64 [layers, G], and leaves its hole."""
        self.hole = slots
        self.positions.scatter_(2, slots.unsqueeze(-1), -1)
        self.count -= 1

    def of(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A layer's, by ascending position: keys, values [G, count, d], positions and mass [G, count]."""
        order = self.positions[layer].argsort(-1)[:, self.slots - self.count :]
        table = torch.tensor(self.table, dtype=torch.int64, device=order.device)
        keys = pick(kernels.gather_blocks(self.blocks.keys[layer], table, self.slots), order)
        values = pick(kernels.gather_blocks(self.blocks.values[layer], table, self.slots), order)
        return keys, values, self.positions[layer].gather(1, order), self.mass[layer].gather(1, order)

    def store(self, layer: int, keys: Tensor, values: Tensor, positions: Tensor, mass: Tensor) -> None:
        """Makes these [G, count, ...] the layer's entries, from the first slot on. The last layer's make the count."""
        count = keys.shape[1]
        self.positions[layer].fill_(-1)
        self.positions[layer, :, :count] = positions
        self.mass[layer, :, :count] = mass
        self.hole[layer] = count
        if layer == len(self.positions) - 1:
            self.count = count
        table = torch.tensor(self.table, dtype=torch.int64, device=keys.device)
        for arena, rows in ((self.blocks.keys[layer], keys), (self.blocks.values[layer], values)):
            padded = torch.nn.functional.pad(rows, (0, 0, 0, self.slots - count))
            arena[table] = padded.view(len(rows), len(table), BLOCK_TOKENS, -1).transpose(0, 1)

    def kept(self, layer: int) -> Tensor:
        """int64 [G, count], ascending."""
        return self.positions[layer].sort(-1).values[:, self.slots - self.count :].cpu()

    def view(self, n: int, anchors: Tensor) -> CacheView:
        """Of `n` positions; `anchors` bool [n] are shown as such where they are held."""
        layers, groups = self.hole.shape
        kept = (self.positions >= 0) & (self.positions < n)  # a later turn being read holds more
        row = torch.arange(layers, device=kept.device).view(-1, 1, 1) * n
        flat = (self.positions + row)[kept]
        heads = torch.bincount(flat, minlength=layers * n).view(layers, n)
        mass = torch.bincount(flat, self.mass[kept].double(), minlength=layers * n).view(layers, n)
        cells = torch.where(heads > 0, int(KvState.DEVICE), int(KvState.EVICTED)).to(torch.uint8)
        cells[:, anchors & (heads > 0).any(0)] = int(KvState.ANCHOR)
        cells |= (heads * 31 / groups).round().to(torch.uint8) << 3
        return CacheView(n, layers, cells.cpu().numpy(), normalised(mass, n), evicted_tokens=float(n - self.count))

    def heads(self, layer: int, n: int, anchors: Tensor) -> HeadsView:
        groups = self.hole.shape[1]
        positions = self.positions[layer]
        kept = (positions >= 0) & (positions < n)
        where = (positions + torch.arange(groups, device=kept.device).unsqueeze(1) * n)[kept]
        states = torch.full((groups * n,), int(KvState.EVICTED), dtype=torch.uint8, device=kept.device)
        mass = torch.zeros(groups * n, device=kept.device)
        states[where], mass[where] = int(KvState.DEVICE), self.mass[layer][kept]
        states[anchors.repeat(groups) & (states == int(KvState.DEVICE))] = int(KvState.ANCHOR)
        return HeadsView(states.view(groups, n).cpu().numpy(), head_shares(mass.view(groups, n), n))


def pick(rows: Tensor, index: Tensor) -> Tensor:
    """rows [G, n, d] at index [G, m] -> [G, m, d]."""
    heads = torch.arange(len(rows), device=rows.device).unsqueeze(1)
    return rows[heads, index]
