"""Attention of one query over paged KV on CUDA, in Triton: what `kernels.decode_attention` runs there.

One query a sequence would leave most of a GPU idle, so the slots are split: programs attend to a part each and leave
their output with its log-sum-exp, and a second kernel joins the parts (Dao et al., "Flash-Decoding for long-context
inference", 2023). How the split is made depends on the table's width alone: lengths stay on the device, programs beyond
a length end at once, and equal shapes are equal launches, which CUDA graphs can record. Nothing here is for import
without Triton; under TRITON_INTERPRET=1 the same kernels run on CPU tensors.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_PARTS = 64  # at most
_PROGRAMS = 4  # for every multiprocessor
_KEY_BYTES = 256


@triton.jit(do_not_specialize=["table_row", "part_slots", "span"])
def _attend(
    q,
    keys,
    values,
    tables,
    lengths,
    parts,
    norms,
    scores,
    q_row,
    q_head,
    k_block,
    k_head,
    k_slot,
    v_block,
    v_head,
    v_slot,
    table_row,
    part_slots,
    span,
    scale,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    DIMS: tl.constexpr,
    DIM: tl.constexpr,
    TYPE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SCORES: tl.constexpr,
):
    """One part of one sequence's slots for one KV head and all its query heads. parts float32 [B, H, parts, DIMS];
    norms [B, H, parts], log-sum-exps to base 2, -inf for a part beyond the length; scores [B, H, span], likewise, as
    far as the length, if SCORES. SLOTS 0: the whole sequence is one block. `scale` holds a log2(e)."""
    sequence = (tl.program_id(0) // GROUPS).to(tl.int64)
    group = (tl.program_id(0) % GROUPS).to(tl.int64)
    part, count = tl.program_id(1), tl.num_programs(1)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    real = row < GROUP
    head = group * GROUP + row
    out = (sequence * GROUPS * GROUP + head) * count + part
    length = tl.load(lengths + sequence).to(tl.int32)
    start = part * part_slots
    if start >= length:
        tl.store(norms + out, tl.full([ROWS], float("-inf"), tl.float32), mask=real)
        return
    end = tl.minimum(start + part_slots, length)
    rows = q + sequence * q_row + head * q_head
    queries = tl.load(rows[:, None] + dim[None, :], mask=real[:, None] & (dim < DIMS)[None, :], other=0.0).to(TYPE)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    for left in range(start, end, COLUMNS):
        slot = left + tl.arange(0, COLUMNS)
        held = slot < end
        if SLOTS == 0:
            block = tl.load(tables + sequence * table_row).to(tl.int64) + tl.zeros([COLUMNS], tl.int64)
            offset = slot.to(tl.int64)
        else:
            block = tl.load(tables + sequence * table_row + slot // SLOTS, mask=held, other=0).to(tl.int64)
            offset = (slot % SLOTS).to(tl.int64)
        k_at = keys + block * k_block + group * k_head + offset * k_slot
        k = tl.load(k_at[None, :] + dim[:, None], mask=held[None, :] & (dim < DIMS)[:, None], other=0.0).to(TYPE)
        s = tl.dot(queries, k, input_precision="tf32x3") * scale
        s = tl.where(held[None, :], s, float("-inf"))
        if SCORES:
            s_at = scores + (sequence * GROUPS * GROUP + head)[:, None] * span + slot[None, :]
            tl.store(s_at, s, mask=real[:, None] & held[None, :])
        # The first slot of a tile is always held, so the maximum is finite.
        higher = tl.maximum(top, tl.max(s, 1))
        shrink = tl.exp2(top - higher)
        p = tl.exp2(s - higher[:, None])
        v_at = values + block * v_block + group * v_head + offset * v_slot
        v = tl.load(v_at[:, None] + dim[None, :], mask=held[:, None] & (dim < DIMS)[None, :], other=0.0).to(TYPE)
        sums = sums * shrink[:, None] + tl.dot(p.to(TYPE), v, input_precision="tf32x3")
        total = total * shrink + tl.sum(p, 1)
        top = higher
    tl.store(norms + out, top + tl.log2(total), mask=real)
    to = parts + out[:, None] * DIMS + dim[None, :]
    tl.store(to, sums / total[:, None], mask=real[:, None] & (dim < DIMS)[None, :])


@triton.jit
def _join(parts, norms, out, lse, COUNT: tl.constexpr, DIMS: tl.constexpr, DIM: tl.constexpr):
    """out [B, H, DIMS] of a query head from its COUNT parts; lse float32 [B, H], to base 2."""
    head = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, COUNT)
    dim = tl.arange(0, DIM)
    norm = tl.load(norms + head * COUNT + part)
    top = tl.max(norm, 0)
    share = tl.exp2(norm - top)
    total = tl.sum(share, 0)
    # What was never written is never read: it might be anything, and 0 times NaN is NaN.
    there = (norm > float("-inf"))[:, None] & (dim < DIMS)[None, :]
    outs = tl.load(parts + (head * COUNT + part)[:, None] * DIMS + dim[None, :], mask=there, other=0.0)
    joined = tl.sum(outs * share[:, None], 0) / total
    tl.store(out + head * DIMS + dim, joined.to(out.dtype.element_ty), mask=dim < DIMS)
    tl.store(lse + head, top + tl.log2(total))


@triton.jit(do_not_specialize=["width", "span", "mass_row", "mass_head"])
def _sum_mass(
    scores,
    lse,
    lengths,
    mass,
    mass_row,
    mass_head,
    width,
    span,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """mass float32 [B, G, width]: probabilities summed over a KV head's query heads, zero from the length on."""
    sequence = (tl.program_id(0) // GROUPS).to(tl.int64)
    group = (tl.program_id(0) % GROUPS).to(tl.int64)
    row = tl.arange(0, ROWS)
    slot = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    length = tl.load(lengths + sequence).to(tl.int32)
    head = (sequence * GROUPS + group) * GROUP + row
    real = row < GROUP
    held = real[:, None] & (slot < tl.minimum(length, span))[None, :]
    norm = tl.load(lse + head, mask=real, other=0.0)
    s = tl.load(scores + head[:, None] * span + slot[None, :], mask=held, other=float("-inf"))
    to = mass + sequence * mass_row + group * mass_head + slot
    tl.store(to, tl.sum(tl.exp2(s - norm[:, None]), 0), mask=slot < width)


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, scale: float, mass: Tensor | None = None
) -> Tensor:
    """As `kernels.decode_attention`, all on one device: q [B, H, d], keys and values [N, G, S, d] with stride 1 along d
    and any others, tables int32 [B, width], mass float32 [B, G, max_len] with stride 1 along its last."""
    batch, heads, dims = q.shape
    groups, slots = keys.shape[1], keys.shape[2]
    group, width = heads // groups, tables.shape[1]
    span = width * slots
    dim = max(16, triton.next_power_of_2(dims))
    # The interpreter multiplies no bfloat16; in float32 the product is the same but for the rounding of probabilities.
    wide = q.dtype == torch.float32 or triton.knobs.runtime.interpret
    columns = max(16, 64 // max(2 if wide else 1, dim * q.element_size() // _KEY_BYTES))
    parts = _parts(batch * groups, span, columns, q.device)
    device = q.device
    out = torch.empty(batch, heads, dims, dtype=q.dtype, device=device)
    partial = torch.empty(batch, heads, parts, dims, device=device)
    norms = torch.empty(batch, heads, parts, device=device)
    lse = torch.empty(batch, heads, device=device)
    scores = torch.empty((batch, heads, span) if mass is not None else (1,), device=device)
    with torch.cuda.device_of(q):
        _attend[(batch * groups, parts)](
            q,
            keys,
            values,
            tables,
            lengths,
            partial,
            norms,
            scores,
            q.stride(0),
            q.stride(1),
            *keys.stride()[:3],
            *values.stride()[:3],
            tables.stride(0),
            triton.cdiv(triton.cdiv(span, parts), columns) * columns,
            span,
            scale * math.log2(math.e),
            GROUPS=groups,
            GROUP=group,
            ROWS=max(16, triton.next_power_of_2(group)),
            SLOTS=0 if width == 1 else slots,
            DIMS=dims,
            DIM=dim,
            TYPE=tl.float32 if wide else getattr(tl, str(q.dtype).removeprefix("torch.")),
            COLUMNS=columns,
            SCORES=mass is not None,
            num_warps=4,
            num_stages=3,
        )
        _join[(batch * heads,)](partial, norms, out, lse, COUNT=parts, DIMS=dims, DIM=dim)
        if mass is not None:
            tile = 256
            _sum_mass[(batch * groups, triton.cdiv(mass.shape[2], tile))](
                scores,
                lse,
                lengths,
                mass,
                mass.stride(0),
                mass.stride(1),
                mass.shape[2],
                span,
                GROUPS=groups,
                GROUP=group,
                ROWS=triton.next_power_of_2(group),
                COLUMNS=tile,
            )
    return out


def _parts(rows: int, span: int, columns: int, device: torch.device) -> int:
    """Into how many parts the slots of each of so many sequences and KV heads go: a power of two, enough to keep the
    device busy, none shorter than a tile."""
    wanted = min(_PARTS, -(-_PROGRAMS * _multiprocessors(device) // rows), -(-span // columns))
    return 1 << (max(1, wanted).bit_length() - 1)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 8  # for the interpreter
    return torch.cuda.get_device_properties(device).multi_processor_count
