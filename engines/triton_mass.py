"""Column mass on CUDA, in Triton: the second pass of `engines.importance` as one kernel.

A program holds one tile of keys and walks down the rows that see it, for one query head: scores exist a tile at a time,
in registers, and are never written. What the keys received is written once, so equal inputs give equal sums. Nothing
here is for import without Triton; under TRITON_INTERPRET=1 the same kernel runs on CPU tensors.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 4
_KEY_BYTES = 256


@triton.jit
def _walk(
    total,
    keys,
    q,
    lse,
    row,
    stop,
    count,
    place,
    every,
    q_row,
    lse_row,
    scale,
    DIMS: tl.constexpr,
    DIM: tl.constexpr,
    TYPE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Adds probabilities of the rows from `row` up to `stop` to total [ROWS, COLUMNS], tile upon tile. Row r sees the
    tile's columns up to `place` + r * `every`; without CAUSAL, all of them."""
    dim = tl.arange(0, DIM)
    columns = tl.arange(0, COLUMNS)
    for start in range(row, stop, ROWS):
        rows = start + tl.arange(0, ROWS)
        real = rows < count
        at = rows.to(tl.int64)
        queries = tl.load(q + at[:, None] * q_row + dim[None, :], mask=real[:, None] & (dim < DIMS)[None, :], other=0.0)
        # A row beyond the last has an infinite log-sum-exp, hence no probability.
        norm = tl.load(lse + at * lse_row, mask=real, other=float("inf")) * 1.4426950408889634
        scores = tl.dot(queries.to(TYPE), keys, input_precision="tf32x3") * scale - norm[:, None]
        if CAUSAL:
            scores = tl.where(columns[None, :] <= (place + rows * every)[:, None], scores, float("-inf"))
        total += tl.exp2(scores)
    return total


@triton.jit(do_not_specialize=["count", "length", "first", "lse_head"])
def _column_mass(
    q,
    k,
    lse,
    mass,
    count,
    length,
    first,
    every,
    group,
    q_row,
    q_head,
    k_head,
    k_row,
    lse_head,
    lse_row,
    scale,
    weight,
    DIMS: tl.constexpr,
    DIM: tl.constexpr,
    TYPE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """mass float32 [H, length], overwritten. Row r stands at `first` + r * `every`; `scale` holds a log2(e)."""
    left = tl.program_id(0) * COLUMNS
    head = tl.program_id(1).to(tl.int64)
    dim = tl.arange(0, DIM)
    columns = left + tl.arange(0, COLUMNS)
    held = columns < length
    at = k + head // group * k_head + columns.to(tl.int64) * k_row
    keys = tl.load(at[None, :] + dim[:, None], mask=held[None, :] & (dim < DIMS)[:, None], other=0.0).to(TYPE)
    q += head * q_head
    lse += head * lse_head
    # From row `some` on a row sees some of the tile; from `whole` on, a multiple of ROWS later, all of it.
    place = first - left
    some = tl.maximum(every - 1 - place, 0) // every
    beyond = tl.maximum(COLUMNS - 1 + every - 1 - place, 0) // every - some
    whole = tl.minimum(some + (beyond + ROWS - 1) // ROWS * ROWS, count)
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for causal in tl.static_range(1, -1, -1):
        total = _walk(
            total,
            keys,
            q,
            lse,
            some if causal else whole,
            whole if causal else count,
            count,
            place,
            every,
            q_row,
            lse_row,
            scale,
            DIMS,
            DIM,
            TYPE,
            ROWS,
            COLUMNS,
            causal,
        )
    tl.store(mass + head * length + columns, tl.sum(total, 0) * weight, mask=held)


def column_mass(q: Tensor, k: Tensor, lse: Tensor, scale: float, first: int, every: int, weight: float) -> Tensor:
    """float32 [G, n]: `weight` times the sum over rows r, and over each KV head's query heads, of exp(scale · q[r]·k -
    lse[r]), over the first `first` + r * `every` + 1 keys.

    q [T, H, d] and k [G, n, d], with stride 1 along d and any others; lse float32 [H, T]; q's dtype is the product's.
    """
    count, heads, dims = q.shape
    groups, length, _ = k.shape
    dim = max(16, triton.next_power_of_2(dims))
    # The interpreter multiplies no bfloat16; in float32 the product is the same.
    wide = q.dtype == torch.float32 or triton.knobs.runtime.interpret
    # Tiles that fit: two programs share an SM's memory and registers where a key has the usual 256 bytes or fewer.
    shrink = max(2 if wide else 1, dim * q.element_size() // _KEY_BYTES)
    rows, columns = max(16, 64 // shrink), max(16, 128 // shrink)
    mass = torch.empty(heads, length, device=q.device)
    with torch.cuda.device_of(q):
        _column_mass[(triton.cdiv(length, columns), heads)](
            q,
            k,
            lse,
            mass,
            count,
            length,
            first,
            every,
            heads // groups,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            lse.stride(0),
            lse.stride(1),
            scale * math.log2(math.e),
            weight,
            DIMS=dims,
            DIM=dim,
            TYPE=tl.float32 if wide else getattr(tl, str(q.dtype).removeprefix("torch.")),
            ROWS=rows,
            COLUMNS=columns,
            num_warps=_WARPS,
            num_stages=3 if shrink == 1 else 2,
        )
    return mass.view(groups, -1, length).sum(1)
