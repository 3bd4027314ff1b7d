"""The numeric kernels of the decoder: one function each, and the one place where CPU-native, torch and CUDA paths part.

Storage and arithmetic. On a CPU, weights and KV blocks are stored in bfloat16 while activations are float32: few rows
(decode) go through the C kernels of `engines.native`, which are bound by memory bandwidth; many rows (prefill) widen
the weight to a reused float32 buffer and use torch's float32 GEMM, which is several times faster than its bfloat16 one
on CPUs without bfloat16 units. Everywhere else (CUDA, float32 weights) activations have the weights' dtype and torch
does the work. Norm weights and biases are expected in the activations' dtype (others are converted on every call).

T is the number of rows (tokens), H the query heads, G the KV heads, d the head dimension; query head h reads KV head
h // (H / G). None of these functions is safe for calls from several threads at once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 16
_UPCAST_ELEMENTS = 2 << 20

_buffers: dict[str, Tensor] = {}


def _buffer(name: str, *shape: int) -> Tensor:
    """A reused float32 CPU buffer: large tensors that come and go cost a page fault every 4 KiB."""
    count = 1
    for size in shape:
        count *= size
    held = _buffers.get(name)
    if held is None or held.numel() < count:
        held = _buffers[name] = torch.empty(count)
    return held[:count].view(shape)


def _widens(x: Tensor, weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and x.dtype == torch.float32 and weight.device.type == "cpu"


def _widened_matmul(x: Tensor, weight: Tensor, out: Tensor, beta: float) -> Tensor:
    """out = beta·out + x Wᵀ for a bfloat16 CPU weight, a slice of its rows at a time so that the float32 copy stays
    in the last-level cache."""
    rows = max(1, _UPCAST_ELEMENTS // weight.shape[1])
    for start in range(0, weight.shape[0], rows):
        part = weight[start : start + rows]
        wide = _buffer("weight", *part.shape).copy_(part)
        target = out[:, start : start + rows]
        torch.addmm(target, x, wide.t(), beta=beta, out=target)
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, in] · weight [out, in]ᵀ + bias [out] -> [T, out]."""
    if _widens(x, weight):
        if bias is None:
            return _widened_matmul(x, weight, x.new_empty(x.shape[0], weight.shape[0]), beta=0)
        return _widened_matmul(x, weight, bias.to(x.dtype).repeat(x.shape[0], 1), beta=1)
    return F.linear(x, weight, bias)


def add_linear(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """residual [T, out] += x [T, in] · weight [out, in]ᵀ + bias, in place; returns `residual`."""
    if bias is not None:
        residual += bias
    if _widens(x, weight):
        return _widened_matmul(x, weight, residual, beta=1)
    return residual.addmm_(x, weight.t())


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension: x [..., h], weight [h]; statistics in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight.to(x.dtype) * (wide * scale).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x [..., h], weight [h], bias [h] -> [..., h]."""
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), eps)


def norm_linear(x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """linear(rms_norm(x)): x [T, in], norm_weight [in], weight [out, in], bias [out] -> [T, out]."""
    return linear(rms_norm(x, norm_weight, eps), weight, bias)


def gated_mlp(residual: Tensor, norm_weight: Tensor, eps: float, gate_up: Tensor, down: Tensor) -> Tensor:
    """residual [T, h] += down · (silu(gate · n) * (up · n)) with n = rms_norm(residual), in place; returns `residual`.
    `gate_up` [2 * ffn, h] holds the gate's rows, then the up projection's; `down` is [h, ffn]."""
    hidden = linear(rms_norm(residual, norm_weight, eps), gate_up)
    gate, up = hidden.chunk(2, dim=-1)
    return add_linear(residual, F.silu(gate).mul_(up), down)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [T, heads, d] in place by the angles whose cos and sin are [T, d/2]; returns `x`. Halves are paired as
    in Llama's rotate_half: element i with i + d/2. Queries and keys that lie side by side can go in one call."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1).to(x.dtype), sin.unsqueeze(1).to(x.dtype)
    turned = low * cos - high * sin
    torch.add(high * cos, low * sin, out=high)
    low.copy_(turned)
    return x


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
    # Lengths on a CUDA device are not read, as that would stall its queue: there the table's width is the bound.
    span = int(lengths.max()) if lengths.device.type == "cpu" else tables.shape[1] * slots
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


def eager_attention(q: Tensor, k: Tensor, v: Tensor, scores: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention that materialises every score: q [H, T, d], k and v [G, n, d] -> (out [H, T, d], mass [G, n]).

    The queries are the last T of the n positions. `scores` (float32 [H, T, n], contiguous) receives the probabilities.
    mass (float32) is their sum over queries and over each KV head's query heads.
    """
    heads, rows, _ = q.shape
    groups, length, _ = k.shape
    stacked = scores.view(groups, -1, length)
    torch.bmm(q.float().reshape(groups, -1, q.shape[2]), k.float().mT, out=stacked)
    future = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu_(1)
    scores.mul_(scale)[:, :, length - rows :].masked_fill_(future, float("-inf"))
    scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    scores.div_(scores.sum(-1, keepdim=True))
    out = torch.bmm(stacked, v.float()).view(heads, rows, -1)
    return out.to(q.dtype), stacked.sum(1)


def flash_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention without the score matrix: q [T, H, d], k and v [G, n, d] -> (out [T, H, d], lse [H, T]).

    The queries are the last T of the n positions. lse (float32) is each row's log-sum-exp of scaled scores.
    Dao et al., "FlashAttention", 2022.
    """
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
    return out.transpose(0, 1), lse


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """q [H, T, d], k and v [G, n, d] -> (out [H, T, d], lse [H, T])."""
    rows, group = q.shape[1], q.shape[0] // k.shape[0]
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q[None], k[None], v[None], is_causal=causal, scale=scale
        )
        return out[0], lse[0]
    k, v = (t.unsqueeze(1).expand(-1, group, -1, -1).flatten(0, 1)[None] for t in (k, v))
    if q.dtype == torch.float32:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q[None], k, v, None, True, is_causal=causal, scale=scale
        )
    else:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q[None], k, v, is_causal=causal, scale=scale)
    return out[0], lse[0, :, :rows]
