"""Where a decode step's entries go in the blocks of an arena, and where those that it attends to are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines.upload import upload


@dataclass
class Placement:
    """Of B sequences. `block` and `offset` int64, for one layer or all: [B] (paged), [layers, B, G] (H2O); `tables`
    int32 [B, width], zeros behind each; `lengths` int32 [B], the step's own entry with them; `mass` float32 [layers, B,
    G, slots] for what the step's queries give, where a policy wants it."""

    block: Tensor
    offset: Tensor
    tables: Tensor
    lengths: Tensor
    mass: Tensor | None = None

    def like(self, width: int, slots: int) -> Placement:
        """Empty, of the same batch, with tables so wide and mass of so many slots."""
        rows = len(self.tables)
        return Placement(
            torch.zeros_like(self.block),
            torch.zeros_like(self.offset),
            self.tables.new_zeros(rows, width),
            torch.ones_like(self.lengths),
            None if self.mass is None else self.mass.new_zeros(*self.mass.shape[:3], slots),
        )

    def take(self, other: Placement) -> None:
        """Becomes the other, whose tables are no wider. Mass is what a step leaves: there is none to take yet."""
        self.block.copy_(other.block)
        self.offset.copy_(other.offset)
        self.lengths.copy_(other.lengths)
        width = other.tables.shape[1]
        self.tables[:, :width].copy_(other.tables)
        self.tables[:, width:] = 0


def padded_tables(tables: list[list[int]], device: torch.device) -> Tensor:
    """int32 [B, width of the longest], zeros behind each."""
    width = max(map(len, tables))
    return upload([table + [0] * (width - len(table)) for table in tables], torch.int32, device)
