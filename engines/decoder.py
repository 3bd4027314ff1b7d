"""The transformer's forward pass over one step. It asks a cache for attention and knows nothing of policies.

T is the number of rows (tokens of all sequences in the step), H query heads, G KV heads, d the head dimension.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engines import kernels
from engines.int8 import quantise
from engines.kernels import Weight
from engines.shape import Shape, rope_tables


class Attend(Protocol):
    """What the decoder asks of a cache, once a layer: q [T, H, d], k and v [T, G, d] (rotated to true positions),
    x [T, hidden] (the layer's input, for speculation) -> [T, H * d]."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor: ...


@dataclass
class Layer:
    """One layer's weights. `qkv` is [(H + 2G)d, hidden]; `up` is gate over up [2 ffn, hidden] (OPT: fc1)."""

    norm: Tensor
    qkv: Weight
    out: Weight
    mlp_norm: Tensor
    up: Weight
    down: Weight
    norm_bias: Tensor | None = None
    qkv_bias: Tensor | None = None
    out_bias: Tensor | None = None
    mlp_norm_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


class Decoder:
    """`tensors` are Hugging Face's parameters by name; they are taken out of the dict as they are fused. With `int8`
    (on a CPU only) all matrices but OPT's table of positions are stored in 8 bits."""

    def __init__(
        self,
        shape: Shape,
        tensors: dict[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        int8: bool = False,
    ) -> None:
        self.shape, self.device, self.dtype, self.int8 = shape, device, dtype, int8
        # On a CPU, 16-bit weights are read as they are and everything else is computed in float32.
        self.compute_dtype = torch.float32 if device.type == "cpu" and dtype == torch.bfloat16 else dtype
        root = "model.decoder." if shape.family == "opt" else "model."
        self.embedding = self._stored(tensors.pop(root + "embed_tokens.weight"))
        untied = tensors.pop("lm_head.weight", None)
        self.head = self.embedding if untied is None else self._stored(untied)
        read = self._read_opt if shape.family == "opt" else self._read_llama
        self.layers = [read(tensors, f"{root}layers.{i}.") for i in range(shape.layers)]
        if shape.family == "opt":
            self.positions: Tensor | None = tensors.pop(root + "embed_positions.weight")
            self.norm, self.norm_bias = self._norm(tensors, root + "final_layer_norm")
        else:
            self.positions = None
            self.norm, self.norm_bias = self._norm(tensors, root + "norm")
            self.cos, self.sin = (table.to(device) for table in rope_tables(shape))

    @property
    def weights_bytes(self) -> int:
        tensors = {id(t): t for layer in self.layers for t in vars(layer).values() if t is not None}
        tensors |= {id(t): t for t in (self.embedding, self.head, self.positions, self.norm) if t is not None}
        return sum(t.nbytes for t in tensors.values())

    def forward(self, ids: Tensor, positions: Tensor, cache: Attend) -> Generator[int, None, Tensor]:
        """Runs the layers over ids and positions (int64 [T]); yields after each layer, so that a long prefill can be
        interrupted; returns the last layer's output [T, hidden]."""
        shape, rows = self.shape, ids.shape[0]  # len() of a tensor asks torch more than it has to
        x = kernels.gather_rows(self.embedding, ids).to(self.compute_dtype)
        if self.positions is not None:
            x += self.positions[positions + 2].to(self.compute_dtype)  # OPT's table begins with two unused rows
        else:
            cos, sin = self.cos[positions], self.sin[positions]
        for index, layer in enumerate(self.layers):
            qkv = self._attention_input(layer, x)
            heads = qkv.view(rows, -1, shape.head_dim)
            q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
            if layer.q_norm is not None and layer.k_norm is not None:
                q = kernels.rms_norm(q, layer.q_norm, shape.norm_eps)
                k = kernels.rms_norm(k, layer.k_norm, shape.norm_eps)
                kernels.rope(q, cos, sin)
                kernels.rope(k, cos, sin)
            elif self.positions is None:
                kernels.rope(heads[:, : shape.heads + shape.kv_heads], cos, sin)
            attended = cache.attend(index, q, k, v, x)
            kernels.add_linear(x, attended, layer.out, layer.out_bias)
            if self.positions is None and layer.up_bias is None:
                kernels.gated_mlp(x, layer.mlp_norm, shape.norm_eps, layer.up, layer.down)
            else:
                self._biased_mlp(layer, x)
            yield index
        return x

    def queries(self, layer: int, x: Tensor, positions: Tensor) -> Tensor:
        """The queries [T, H, d] that `layer` would form of the input x [T, hidden]: what InfiniGen speculates with."""
        weights, shape = self.layers[layer], self.shape
        rows = shape.heads * shape.head_dim
        bias = weights.qkv_bias[:rows] if weights.qkv_bias is not None else None
        if weights.norm_bias is not None:
            normed = kernels.layer_norm(x, weights.norm, weights.norm_bias, shape.norm_eps)
            return kernels.linear(normed, weights.qkv[:rows], bias).view(x.shape[0], shape.heads, -1)
        q = kernels.norm_linear(x, weights.norm, shape.norm_eps, weights.qkv[:rows], bias)
        q = q.view(x.shape[0], shape.heads, shape.head_dim)
        if weights.q_norm is not None:
            q = kernels.rms_norm(q, weights.q_norm, shape.norm_eps)
        return kernels.rope(q, self.cos[positions], self.sin[positions])

    def logits(self, x: Tensor) -> Tensor:
        """x [B, hidden], the layers' output at the rows that matter -> float32 [B, vocab]."""
        if self.norm_bias is not None:
            normed = kernels.layer_norm(x, self.norm, self.norm_bias, self.shape.norm_eps)
            return kernels.linear(normed, self.head).float()
        return kernels.norm_linear(x, self.norm, self.shape.norm_eps, self.head).float()

    def _attention_input(self, layer: Layer, x: Tensor) -> Tensor:
        if layer.norm_bias is not None:
            normed = kernels.layer_norm(x, layer.norm, layer.norm_bias, self.shape.norm_eps)
            return kernels.linear(normed, layer.qkv, layer.qkv_bias)
        return kernels.norm_linear(x, layer.norm, self.shape.norm_eps, layer.qkv, layer.qkv_bias)

    def _biased_mlp(self, layer: Layer, x: Tensor) -> None:
        if layer.mlp_norm_bias is not None:
            normed = kernels.layer_norm(x, layer.mlp_norm, layer.mlp_norm_bias, self.shape.norm_eps)
            hidden = kernels.linear(normed, layer.up, layer.up_bias).relu_()
        else:
            normed = kernels.rms_norm(x, layer.mlp_norm, self.shape.norm_eps)
            gate, up = kernels.linear(normed, layer.up, layer.up_bias).chunk(2, dim=-1)
            hidden = torch.nn.functional.silu(gate) * up
        kernels.add_linear(x, hidden, layer.down, layer.down_bias)

    def _read_llama(self, tensors: dict[str, Tensor], root: str) -> Layer:
        attention = [f"{root}self_attn.{name}_proj" for name in "qkv"]
        gated = [f"{root}mlp.{name}_proj" for name in ("gate", "up")]
        return Layer(
            norm=self._small(tensors, f"{root}input_layernorm.weight"),
            qkv=self._stored(_fuse(tensors, attention, "weight")),
            qkv_bias=self._fuse_bias(tensors, attention),
            out=self._stored(tensors.pop(f"{root}self_attn.o_proj.weight")),
            out_bias=self._bias(tensors, f"{root}self_attn.o_proj.bias"),
            mlp_norm=self._small(tensors, f"{root}post_attention_layernorm.weight"),
            up=self._stored(_fuse(tensors, gated, "weight")),
            up_bias=self._fuse_bias(tensors, gated),
            down=self._stored(tensors.pop(f"{root}mlp.down_proj.weight")),
            down_bias=self._bias(tensors, f"{root}mlp.down_proj.bias"),
            q_norm=self._bias(tensors, f"{root}self_attn.q_norm.weight"),
            k_norm=self._bias(tensors, f"{root}self_attn.k_norm.weight"),
        )

    def _read_opt(self, tensors: dict[str, Tensor], root: str) -> Layer:
        attention = [f"{root}self_attn.{name}_proj" for name in "qkv"]
        norm, norm_bias = self._norm(tensors, f"{root}self_attn_layer_norm")
        mlp_norm, mlp_norm_bias = self._norm(tensors, f"{root}final_layer_norm")
        return Layer(
            norm=norm,
            norm_bias=norm_bias,
            qkv=self._stored(_fuse(tensors, attention, "weight")),
            qkv_bias=self._fuse_bias(tensors, attention),
            out=self._stored(tensors.pop(f"{root}self_attn.out_proj.weight")),
            out_bias=self._bias(tensors, f"{root}self_attn.out_proj.bias"),
            mlp_norm=mlp_norm,
            mlp_norm_bias=mlp_norm_bias,
            up=self._stored(tensors.pop(f"{root}fc1.weight")),
            up_bias=self._bias(tensors, f"{root}fc1.bias"),
            down=self._stored(tensors.pop(f"{root}fc2.weight")),
            down_bias=self._bias(tensors, f"{root}fc2.bias"),
        )

    def _stored(self, weight: Tensor) -> Weight:
        return quantise(weight) if self.int8 else weight

    def _small(self, tensors: dict[str, Tensor], name: str) -> Tensor:
        """Norm weights and biases are kept in the activations' dtype: they are tiny and used on every row."""
        return tensors.pop(name).to(self.compute_dtype)

    def _bias(self, tensors: dict[str, Tensor], name: str) -> Tensor | None:
        return self._small(tensors, name) if name in tensors else None

    def _norm(self, tensors: dict[str, Tensor], root: str) -> tuple[Tensor, Tensor | None]:
        return self._small(tensors, f"{root}.weight"), self._bias(tensors, f"{root}.bias")

    def _fuse_bias(self, tensors: dict[str, Tensor], roots: list[str]) -> Tensor | None:
        if f"{roots[0]}.bias" not in tensors:
            return None
        return _fuse(tensors, roots, "bias").to(self.compute_dtype)


def _fuse(tensors: dict[str, Tensor], roots: list[str], name: str) -> Tensor:
    """Rows of several projections in one tensor, so that one kernel reads them."""
    return torch.cat([tensors.pop(f"{root}.{name}") for root in roots])
