"""All layers of a decode step in one call of the C library, for caches that need no say between the layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engines import kernels, native

if TYPE_CHECKING:
    from engines.decoder import Layer

_POINTERS = ("norm", "qkv", "qkv_bias", "q_norm", "k_norm", "out", "out_bias", "mlp_norm", "up", "down")
_SIZES = ("layers_count", "batch", "hidden", "heads", "groups", "dim", "ffn", "slots", "span", "threads", "bfloat16")


class _Step(ctypes.Structure):
    """Mirrors Step in csrc/step.c."""

    _fields_ = (
        *((name, c_int64) for name in _SIZES),
        ("eps", c_float),
        ("scale", c_float),
        *((name, c_void_p) for name in ("layers", "x", "cos", "sin", "keys", "values")),
        ("key_strides", c_int64 * 4),
        ("value_strides", c_int64 * 4),
        ("block", c_void_p),
        ("offset", c_void_p),
        ("block_strides", c_int64 * 3),
        ("offset_strides", c_int64 * 3),
        ("tables", c_void_p),
        ("lengths", c_void_p),
        ("tables_stride", c_int64),
        ("mass", c_void_p),
        ("mass_strides", c_int64 * 3),
        ("scratch", c_void_p),
    )


class DecodeStep:
    """The layers' weights, ready for the C library. Between two kernels of a small model Python would take as long as
    the kernels themselves: streaming the weights has swept the interpreter out of the processor's caches. The layers'
    tensors must stay as they are."""

    def __init__(self, layers: Sequence[Layer], heads: int, groups: int, dim: int, eps: float, scale: float) -> None:
        if not self.serves(layers, dim):
            raise ValueError("these layers need the kernels one by one")
        self.layers = layers
        pointers = [native.pointer(getattr(layer, name)) for layer in layers for name in _POINTERS]
        self._table = (c_void_p * len(pointers))(*pointers)
        first = layers[0]
        self._step = _Step(
            layers_count=len(layers),
            hidden=first.qkv.shape[1],
            heads=heads,
            groups=groups,
            dim=dim,
            ffn=first.down.shape[1],
            eps=eps,
            scale=scale,
            layers=ctypes.addressof(self._table),
        )

    @staticmethod
    def serves(layers: Sequence[Layer], dim: int) -> bool:
        """Whether the C library can run these layers: Llama-like, bfloat16 on a CPU, sizes multiples of 16."""

        def fits(layer: Layer) -> bool:
            others = (layer.norm_bias, layer.mlp_norm_bias, layer.up_bias, layer.down_bias)
            weights = (layer.qkv, layer.out, layer.up, layer.down)
            small = (layer.norm, layer.mlp_norm, layer.qkv_bias, layer.out_bias, layer.q_norm, layer.k_norm)
            return (
                all(other is None for other in others)
                and all(w.dtype == torch.bfloat16 and w.is_cpu and w.is_contiguous() for w in weights)
                and all(w.shape[1] % 16 == 0 for w in weights)
                and all(t is None or (t.dtype == torch.float32 and t.is_contiguous()) for t in small)
                and len(layer.up) == 2 * layer.down.shape[1]
            )

        return kernels.use_native and dim % 16 == 0 and all(map(fits, layers))

    def run(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        block: Tensor,
        offset: Tensor,
        tables: Tensor,
        lengths: Tensor,
        mass: Tensor | None = None,
    ) -> Tensor:
        """Runs the layers over x [B, hidden] (float32, contiguous, in place; B <= kernels.FEW_ROWS); returns `x`.

        cos and sin are [B, d / 2]. Each layer's k and v go to slot `offset` of `block` (int64, [B] for all layers and
        KV heads alike or [layers, B, G]) in keys and values [layers, N, G, S, d]; attention then reads lengths[b]
        slots, the new ones included, by tables int32 [B, max_blocks]. `mass` (float32 [layers, B, G, max_len]) is
        overwritten as by `kernels.decode_attention`."""
        step, batch = self._step, len(x)
        step.batch, step.x, step.cos, step.sin = batch, x.data_ptr(), cos.data_ptr(), sin.data_ptr()
        step.keys, step.values = keys.data_ptr(), values.data_ptr()
        step.key_strides[:], step.value_strides[:] = keys.stride()[:4], values.stride()[:4]
        step.slots, step.bfloat16 = keys.shape[3], keys.dtype == torch.bfloat16
        step.block, step.offset = block.data_ptr(), offset.data_ptr()
        step.block_strides[:] = block.stride() if block.dim() == 3 else (0, block.stride(0), 0)
        step.offset_strides[:] = offset.stride() if offset.dim() == 3 else (0, offset.stride(0), 0)
        lengths = lengths.to(torch.int32)
        step.tables, step.tables_stride, step.lengths = tables.data_ptr(), tables.stride(0), lengths.data_ptr()
        step.mass, step.span = native.pointer(mass), 0
        if mass is not None:
            step.mass_strides[:], step.span = mass.stride()[:3], mass.shape[3]
        step.threads = torch.get_num_threads()
        step.scratch = native.scratch(self._scratch_floats())
        native.decode_step(ctypes.addressof(step))
        return x

    def _scratch_floats(self) -> int:
        s = self._step
        own = s.batch * (2 * s.heads + s.heads + 2 * s.groups) * s.dim
        return own + max(
            s.batch * max(s.hidden, s.heads * s.dim),
            s.batch * (3 * s.ffn + s.hidden),
            native.attention_scratch(s.batch, s.heads, s.dim, s.span, s.threads),
        )
