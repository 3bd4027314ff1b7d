"""The numeric kernels of the decoder: one function each, and the one place where CPU-native, torch and CUDA paths part.

Storage and arithmetic. On a CPU, weights and KV blocks are stored in bfloat16 while activations are float32: few rows
(decode) go through the C kernels of `engines.native`, which are bound by memory bandwidth; many rows (prefill) widen
the weight to a reused float32 buffer and use torch's float32 GEMM, which is several times faster than its bfloat16 one
unless the processor has bfloat16 units. 8-bit weights (see `engines.int8`) go the same two ways. Everywhere else
(CUDA, float32 weights) activations have the weights' dtype and torch does the work. Norm weights and biases are best
kept in the activations' dtype (others are converted on every call).

T is the number of rows (tokens), H the query heads, G the KV heads, d the head dimension; query head h reads KV head
h // (H / G). None of these functions is safe for calls from several threads at once.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from engines import int8, native
from engines.fused_decode import fused_decode
from engines.int8 import Int8Weight

Weight = Tensor | Int8Weight

FEW_ROWS = 16
_UPCAST_ELEMENTS = 2 << 20
_EAGER_ROWS = 512
_HUGE_PAGE_BYTES = 2 << 20

use_native = native.library is not None
"""Off where the C library is missing; tests turn it off to try the torch paths."""


def _has_bfloat16_units() -> bool:
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, check, bool)() for check in checks)


bfloat16_units = _has_bfloat16_units()
_buffers: dict[str, Tensor] = {}


def scratch(name: str, *shape: int) -> Tensor:
    """A reused float32 CPU buffer: large tensors that come and go cost a page fault every 4 KiB."""
    count = 1
    for size in shape:
        count *= size
    held = _buffers.get(name)
    if held is None or held.numel() < count:
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written to outside of it
            held = _buffers[name] = torch.empty(count)
    return held[:count].view(shape)


@contextmanager
def torch_alone() -> Iterator[None]:
    """Within the block torch computes on the calling thread, while the C kernels keep all of theirs. For decode steps:
    what is left to torch there is too small to divide, and waiting for a thread that another process has displaced
    costs more than it saves."""
    count = torch.get_num_threads()
    if not use_native or count == 1:
        yield
        return
    native.threads = count
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)
        native.threads = None


def allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """A tensor of zeros for weights or KV blocks, lazily where it is large: untouched pages cost nothing. On Linux CPUs
    such a one lies on huge pages, which spares the page walks of reads that jump about: worth a quarter of the read
    bandwidth in virtual machines."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if torch.device(device).type != "cpu" or size < 2 * _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel built without them
        return torch.zeros(shape, dtype=dtype)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE_BYTES
    return whole[start : start + size].view(dtype).view(shape)


def _widens(x: Tensor, weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and x.dtype == torch.float32 and weight.is_cpu


def _plain(x: Tensor) -> bool:
    """Whether the C kernels take x as activations."""
    return use_native and x.is_cpu and x.dtype == torch.float32 and x.stride(-1) == 1


def _on_host(lengths: Tensor) -> bool:
    return lengths.device.type == "cpu"


def _stored(pool: Tensor) -> bool:
    """Whether the C kernels take a layer's keys or values."""
    return pool.stride(3) == 1 and (pool.dtype == torch.bfloat16 or pool.dtype == torch.float32)


def _few(x: Tensor, weight: Weight) -> bool:
    """Whether the C kernels take x [T, in] and weight [out, in]."""
    if x.shape[0] > FEW_ROWS or weight.shape[1] % 16 or not _plain(x):
        return False
    return isinstance(weight, Int8Weight) or (weight.dtype == torch.bfloat16 and weight.is_contiguous())


def _few_product(
    x: Tensor, norm: Tensor | None, eps: float, weight: Weight, bias: Tensor | None, out: Tensor, add: bool
) -> Tensor:
    """`native.linear`, for weights of either kind."""
    wide_norm, wide_bias = None if norm is None else _wide(norm), None if bias is None else _wide(bias)
    if isinstance(weight, Int8Weight):
        return int8.linear(x, wide_norm, eps, weight, wide_bias, out, add)
    return native.linear(x, wide_norm, eps, weight, wide_bias, out, add)


def _wide(vector: Tensor) -> Tensor:
    return vector if vector.dtype == torch.float32 else vector.float()


def _widened(weight: Weight) -> Tensor:
    """A float32 copy of a weight, in the scratch."""
    wide = scratch("weight", *weight.shape)
    if not isinstance(weight, Int8Weight):
        return wide.copy_(weight)
    return int8.widen(weight, wide) if use_native else weight.widen(wide)


def _widened_matmul(x: Tensor, weight: Weight, out: Tensor, beta: float) -> Tensor:
    """out = beta·out + x Wᵀ for a bfloat16 or 8-bit CPU weight, a slice of its rows at a time so that the float32 copy
    stays in the last-level cache."""
    if bfloat16_units and isinstance(weight, Tensor):
        return _bfloat16_matmul(x, weight, out, beta)
    rows = max(1, _UPCAST_ELEMENTS // weight.shape[1])
    for start in range(0, weight.shape[0], rows):
        wide = _widened(weight[start : start + rows])
        target = out[:, start : start + rows]
        if bfloat16_units:
            _bfloat16_matmul(x, wide.bfloat16(), target, beta)
        else:
            torch.addmm(target, x, wide.t(), beta=beta, out=target)
    return out


def _bfloat16_matmul(x: Tensor, weight: Tensor, out: Tensor, beta: float) -> Tensor:
    product = F.linear(x.bfloat16(), weight)
    return out.copy_(product) if beta == 0 else out.add_(product)


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x [T, in] · weight [out, in]ᵀ + bias [out] -> [T, out]."""
    if _few(x, weight):
        out = torch.empty(x.shape[0], weight.shape[0])
        return _few_product(x, None, 0.0, weight, bias, out, add=False)
    if isinstance(weight, Int8Weight) or _widens(x, weight):
        if bias is None:
            return _widened_matmul(x, weight, x.new_empty(x.shape[0], weight.shape[0]), beta=0)
        return _widened_matmul(x, weight, bias.to(x.dtype).repeat(x.shape[0], 1), beta=1)
    return F.linear(x, weight, bias)


def add_linear(residual: Tensor, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """residual [T, out] += x [T, in] · weight [out, in]ᵀ + bias, in place; returns `residual`."""
    if _few(x, weight) and residual.stride(1) == 1:
        return _few_product(x, None, 0.0, weight, bias, residual, add=True)
    if bias is not None:
        residual += bias
    if isinstance(weight, Int8Weight) or _widens(x, weight):
        return _widened_matmul(x, weight, residual, beta=1)
    return residual.addmm_(x, weight.t())


def gather_rows(weight: Weight, ids: Tensor) -> Tensor:
    """Rows `ids` [T] of a weight [out, in] -> [T, in], in its dtype; of 8-bit weights in float32."""
    return weight.gather(ids) if isinstance(weight, Int8Weight) else weight[ids]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension: x [..., h], weight [h]; statistics in float32."""
    if _plain(x) and x.dim() in (2, 3) and x.shape[-1] % 16 == 0:
        return native.rms_norm(x, _wide(weight), eps)
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight.to(x.dtype) * (wide * scale).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x [..., h], weight [h], bias [h] -> [..., h]."""
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), eps)


def norm_linear(x: Tensor, norm_weight: Tensor, eps: float, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """linear(rms_norm(x)): x [T, in], norm_weight [in], weight [out, in], bias [out] -> [T, out]."""
    if _few(x, weight):
        out = torch.empty(x.shape[0], weight.shape[0])
        return _few_product(x, norm_weight, eps, weight, bias, out, add=False)
    return linear(rms_norm(x, norm_weight, eps), weight, bias)


def gated_mlp(residual: Tensor, norm_weight: Tensor, eps: float, gate_up: Weight, down: Weight) -> Tensor:
    """residual [T, h] += down · (silu(gate · n) * (up · n)) with n = rms_norm(residual), in place; returns `residual`.
    `gate_up` [2 * ffn, h] holds the gate's rows, then the up projection's; `down` is [h, ffn]."""
    if _few(residual, gate_up) and down.shape[1] % 16 == 0:
        if isinstance(gate_up, Int8Weight) and isinstance(down, Int8Weight):
            return int8.gated_mlp(residual, _wide(norm_weight), eps, gate_up, down)
        if isinstance(gate_up, Tensor) and isinstance(down, Tensor) and down.is_contiguous():
            return native.gated_mlp(residual, _wide(norm_weight), eps, gate_up, down)
    normed = rms_norm(residual, norm_weight, eps)
    rows, ffn = len(residual), down.shape[1]
    widened = isinstance(gate_up, Int8Weight) or _widens(residual, gate_up)
    if use_native and widened and ffn % 16 == 0:
        both = _widened_matmul(normed, gate_up, scratch("gate and up", rows, 2 * ffn), beta=0)
        hidden = native.silu_mul(both, scratch("hidden", rows, ffn))
    else:
        gate, up = linear(normed, gate_up).chunk(2, dim=-1)
        hidden = F.silu(gate).mul_(up)
    return add_linear(residual, hidden, down)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [T, heads, d] in place by the angles whose cos and sin are [T, d/2]; returns `x`. Halves are paired as
    in Llama's rotate_half: element i with i + d/2. Queries and keys that lie side by side can go in one call."""
    if _plain(x) and cos.dtype == torch.float32 and x.shape[2] % 16 == 0:
        return native.rope(x, cos.contiguous(), sin.contiguous())
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)
    turned = low * cos - high * sin
    torch.add(high * cos, low * sin, out=high)
    low.copy_(turned)
    return x


def store_kv(keys: Tensor, values: Tensor, block: Tensor, offset: Tensor, k: Tensor, v: Tensor) -> None:
    """Writes k and v [T, G, d] into one layer's blocks, keys and values [N, G, S, d]: row t of KV head g goes to slot
    offset[t, g] of block[t, g], both int64 [T, G], or [T] for all KV heads alike."""
    packed = k.stride()[1:] == v.stride()[1:] == (k.shape[2], 1)
    if _plain(k) and _plain(v) and k.shape[0] <= FEW_ROWS and packed and _stored(keys):
        native.store_kv(keys, values, block, offset, k, v)
        return
    heads = torch.arange(k.shape[1], device=k.device)
    if block.dim() == 1:
        block, offset = block.unsqueeze(1), offset.unsqueeze(1)
    keys[block, heads, offset] = k.to(keys.dtype)
    values[block, heads, offset] = v.to(values.dtype)


def gather_blocks(pool: Tensor, table: Tensor, length: int, dtype: torch.dtype | None = None) -> Tensor:
    """The first `length` slots of the blocks in `table` [blocks], from pool [N, G, S, d], as [G, length, d]."""
    slots = pool.shape[2]
    used = table[: -(-length // slots)]
    rows = pool.index_select(0, used).transpose(0, 1).reshape(pool.shape[1], -1, pool.shape[3])[:, :length]
    return rows.to(dtype or pool.dtype)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scale: float,
    mass: Tensor | None = None,
) -> Tensor:
    """Attention of one query a sequence over its paged KV: q [B, H, d] -> [B, H, d].

    `keys` and `values` [N, G, S, d] are one layer's blocks: slot i of sequence b is slot i % S of block
    tables[b, i // S], for i < lengths[b]; lengths are at least 1. tables is int32 [B, max_blocks], lengths int32 or
    int64 [B]. `mass` (float32 [B, G, max_len]), if given, is overwritten with the step's attention probabilities summed
    over each KV head's query heads, zero from lengths[b] on.
    """
    batch, heads, dim = q.shape
    groups, slots = keys.shape[1], keys.shape[2]
    if _plain(q) and q.stride(1) == dim and dim % 16 == 0 and _stored(keys) and _stored(values):
        lengths = lengths.to(torch.int32)
        return native.decode_attention(q, keys, values, tables, lengths, scale, mass)
    if (fused := fused_decode(q, keys, values, tables, lengths, scale, mass)) is not None:
        return fused
    # Lengths on a CUDA device are not read, as that would stall its queue: there the table's width is the bound.
    span = int(lengths.max()) if _on_host(lengths) else tables.shape[1] * slots
    used = tables[:, : -(-span // slots)].reshape(-1)

    def gathered(pool: Tensor) -> Tensor:
        rows = pool.index_select(0, used).view(batch, -1, groups, slots, dim).transpose(1, 2)
        return rows.reshape(batch, groups, -1, dim)[:, :, :span].to(q.dtype)

    grouped = q.view(batch, groups, heads // groups, dim)
    scores = torch.matmul(grouped, gathered(keys).mT).float().mul_(scale)
    ended = torch.arange(span, device=q.device) >= lengths.to(q.device).view(batch, 1, 1, 1)
    probabilities = torch.softmax(scores.masked_fill_(ended, float("-inf")), dim=-1)
    if mass is not None:
        width = min(span, mass.shape[2])
        mass[:, :, width:] = 0
        torch.sum(probabilities[..., :width], dim=2, out=mass[:, :, :width])
    return torch.matmul(probabilities.to(q.dtype), gathered(values)).reshape(batch, heads, dim)


def speculate(q: Tensor, keys: Tensor, scale: float, alpha: float, most: int) -> Tensor:
    """Which keys a decode step will want: partial queries q [G, group, p] against partial keys [G, p, n] -> int64
    [G, m] on the host, ascending. A KV head's m are those with the largest softmax, summed over its queries; m is how
    many scores lie within `alpha` of their query's maximum, on average over queries, within 1 .. `most`."""
    if _plain(q) and keys.stride(2) == 1 and keys.dtype in (torch.bfloat16, torch.float32):
        return native.speculate(q.contiguous(), keys, scale, alpha, most)
    shares, wanted = speculated(q.unsqueeze(2), keys, scale, alpha, most)
    best = shares[:, 0].topk(most, dim=-1).indices
    # How many and which, in one reading of the device: they are wanted on the host, which has the entries.
    told = torch.cat([wanted, best.flatten()]).cpu().numpy()
    return torch.from_numpy(told[1:]).view(best.shape)[:, : int(told[0])].sort(-1).values


def speculated(q: Tensor, keys: Tensor, scale: float, alpha: float, most: int) -> tuple[Tensor, Tensor]:
    """What `speculate` chooses by, for T rows q [G, group, T, p]: the summed softmax [G, T, n], and how many each row
    wants, int64 [T]."""
    scores = torch.matmul(q, keys.to(q.dtype).unsqueeze(1)).float() * scale
    top = scores.amax(-1, keepdim=True)
    within = (scores >= top - alpha).sum(-1).float().mean((0, 1))
    softmax = scores.sub_(top).exp_()
    softmax.div_(softmax.sum(-1, keepdim=True))
    return softmax.sum(1), within.round().long().clamp(1, most)


def eager_attention(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention that materialises every score: q [H, T, d], k and v [G, n, d] -> (out [H, T, d], mass [G, n]).

    The queries are the last T of the n positions. `scores` (float32 [H, T, n], contiguous) receives the probabilities.
    mass (float32) is their sum over queries and over each KV head's query heads.
    """
    heads, rows, _ = q.shape
    groups, length, _ = k.shape
    if _plain(q):
        return _eager_by_parts(q, k.float(), v.float(), scores, scale)
    stacked = scores.view(groups, -1, length)
    torch.bmm(q.float().reshape(groups, -1, q.shape[2]), k.float().mT, out=stacked)
    future = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu_(1)
    scores.mul_(scale)[:, :, length - rows :].masked_fill_(future, float("-inf"))
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    scores.div_(scores.sum(-1, keepdim=True))
    out = torch.bmm(stacked, v.float()).view(heads, rows, -1)
    return out.to(q.dtype), stacked.sum(1)


def _eager_by_parts(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """A head and some rows at a time: they stay in the last-level cache from the product to the values, and what lies
    in the future is never computed."""
    heads, rows, dim = q.shape
    groups, length, _ = k.shape
    out, mass = torch.empty(heads, rows, dim), torch.zeros(groups, length)
    for start in range(0, rows, _EAGER_ROWS):
        end = min(start + _EAGER_ROWS, rows)
        before, seen = length - rows + start, length - rows + end
        for head in range(heads):
            g, part = head // (heads // groups), scores[head, start:end]
            torch.mm(q[head, start:end], k[g, :seen].t(), out=part[:, :seen])
            native.causal_softmax(part, before, scale, mass=mass[g])
            torch.mm(part[:, :seen], v[g, :seen], out=out[head, start:end])
    return out, mass


def flash_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention without the score matrix: q [T, H, d], k and v [G, n, d] -> (out [T, H, d], lse [H, T]).

    The queries are the last T of the n positions. lse (float32) is each row's log-sum-exp of scaled scores.
    Dao et al., "FlashAttention", 2022.
    """
    if (fused := _flash_package(q.device.type, q.dtype)) is not None:
        # Its causal mask ends at the last key, and it takes grouped heads as they are.
        rows = (t.transpose(0, 1)[None].to(q.dtype) for t in (k, v))
        out, lse, _ = fused(q[None], *rows, softmax_scale=scale, causal=True, return_attn_probs=True)
        return out[0], lse[0]
    dtype = q.dtype
    if bfloat16_units and k.is_cpu and k.dtype == torch.bfloat16:
        q = q.bfloat16()
    q, k, v = q.transpose(0, 1), k.to(q.dtype), v.to(q.dtype)
    before = k.shape[1] - q.shape[1]
    if q.shape[1] == 1:
        out, lse = _flash(q, k, v, scale, causal=False)
    else:
        out, lse = _flash(q, k[:, before:], v[:, before:], scale, causal=True)
        if before:
            # The kernels' causal mask starts at the first key, so the keys before the queries' own are a pass apart.
            earlier, earlier_lse = _flash(q, k[:, :before], v[:, :before], scale, causal=False)
            whole = torch.logaddexp(lse, earlier_lse)
            share = (earlier_lse - whole).exp().unsqueeze(-1).to(out.dtype)
            out, lse = torch.lerp(out, earlier, share), whole
    return out.transpose(0, 1).to(dtype), lse


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """q [H, T, d], k and v [G, n, d] -> (out [H, T, d], lse [H, T])."""
    rows, group = q.shape[1], q.shape[0] // k.shape[0]
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[None], k[None], v[None], is_causal=causal, scale=scale
        )
        return out[0], lse[0]
    if q.dtype == torch.float32:  # FlashAttention proper has no such mode
        k, v = (t.repeat_interleave(group, 0) for t in (k, v))
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q[None], k[None], v[None], None, True, is_causal=causal, scale=scale
        )
    else:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            q[None], k[None], v[None], is_causal=causal, scale=scale
        )
    return out[0], lse[0, :, :rows]


@cache
def _flash_package(device_type: str, dtype: torch.dtype) -> Callable[..., tuple[Tensor, Tensor, Tensor | None]] | None:
    """flash-attn's own function, where it is installed and takes such tensors: newer and faster than torch's copy."""
    if device_type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return None
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        return None
    return flash_attn_func
