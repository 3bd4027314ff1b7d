"""Importance from FlashAttention: how much attention every key received, without the n×n matrix of scores.

FlashAttention (Dao et al., 2022) never has the probabilities, but it leaves each row's log-sum-exp. With it, a second
tiled pass over the scores gives any probability by itself, exp(q·k - lse), and their sums down the columns, in memory
that grows with n and not with its square. Rows are independent of one another, so a sample of them estimates the sums.

On CUDA that pass is one Triton kernel (`engines.triton_mass`); on a CPU, and where Triton is missing, tiles of torch.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from engines import kernels, native

TILE_ROWS = 256
TILE_COLUMNS = 2048


def column_mass(q: Tensor, k: Tensor, lse: Tensor, scale: float, every: int = 1) -> Tensor:
    """float32 [G, n]: attention mass of each key, summed over queries and over its KV head's query heads.

    q [T, H, d] are the last T of the n positions; k [G, n, d]; lse float32 [H, T] of scaled scores, as
    `kernels.flash_attention` returns it. With `every` > 1 only each such row counts, the last one among them, and
    stands for its neighbours: an estimate at that fraction of the cost.
    """
    rows, heads, _ = q.shape
    groups, length, _ = k.shape
    skipped = (rows - 1) % every
    q, lse = q[skipped::every], lse[:, skipped::every].contiguous()
    first = length - rows + skipped  # the true place of the first row that counts
    weight = rows / len(q)
    if (fused := _triton(q.device.type)) is not None:
        return fused.column_mass(q, k, lse, scale, first, every, weight)
    mass = torch.zeros(groups, length, device=q.device)
    for start in range(0, len(q), TILE_ROWS):
        part = q[start : start + TILE_ROWS]
        place = first + start * every
        seen = min(length, place + (len(part) - 1) * every + 1)
        for left in range(0, seen, TILE_COLUMNS):
            right = min(left + TILE_COLUMNS, seen)
            for group in range(groups):
                own = slice(group * heads // groups, (group + 1) * heads // groups)
                keys = k[group, left:right].to(q.dtype)
                _add_tile(
                    part[:, own],
                    keys,
                    lse[own, start : start + TILE_ROWS],
                    scale,
                    place - left,
                    every,
                    weight,
                    mass[group, left:right],
                )
    return mass


def tile_bytes(heads: int, groups: int, rows: int, length: int, device: torch.device) -> int:
    """Transient memory of `column_mass`: one tile's scores and the sums. In Triton the tile lies in registers, but each
    query head has sums of its own."""
    if _triton(device.type) is not None:
        return 4 * (heads * length + groups * length + heads * rows)
    return 4 * (heads // groups * min(rows, TILE_ROWS) * min(length, TILE_COLUMNS) + groups * length + heads * rows)


@cache
def _triton(device_type: str) -> ModuleType | None:
    """The Triton kernel if it runs on such a device. Triton comes with CUDA builds of torch; it wants a C compiler."""
    if device_type != "cuda":
        return None
    try:
        from engines import triton_mass

        row = torch.zeros(1, 1, 16, device=device_type)
        triton_mass.column_mass(row, row, row[0, :, :1], 1.0, 0, 1, 1.0)
    except ImportError:
        return None
    except Exception as fault:  # whatever a compiler, a driver or a card that is too old may raise
        warnings.warn(f"importance goes without Triton, more slowly: {fault}", stacklevel=2)
        return None
    return triton_mass


def _add_tile(
    q: Tensor, keys: Tensor, lse: Tensor, scale: float, first: int, every: int, weight: float, mass: Tensor
) -> None:
    """One tile's part of the sums: q [T, h, d], keys [n, d], lse [h, T] -> mass [n], increased. Row r sees the tile's
    columns up to `first` + r * `every`."""
    rows, heads, _ = q.shape
    if kernels.use_native and q.is_cpu and q.dtype == torch.float32:
        scores = kernels.scratch("scores", rows * heads, len(keys)).view(heads, rows, len(keys))
        for head in range(heads):
            torch.mm(q[:, head], keys.t(), out=scores[head])
            native.column_mass(scores[head], first, every, scale, lse[head], mass, weight)
        return
    scores = torch.matmul(q.transpose(0, 1).float(), keys.t().float()).mul_(scale)
    scores = scores.sub_(lse.unsqueeze(-1)).exp_()
    last = first + every * torch.arange(rows, device=q.device)
    scores.masked_fill_(torch.arange(len(keys), device=q.device) > last.unsqueeze(-1), 0.0)
    mass += scores.sum((0, 1)) * weight
