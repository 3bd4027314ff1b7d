"""The fused decode step against the same kernels called one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines import kernels, native
from engines.decoder import Layer
from engines.step import DecodeStep

pytestmark = pytest.mark.skipif(native.library is None, reason="the C library was not built")
HIDDEN, FFN, SLOTS, BLOCKS, COUNT, EPS = 96, 160, 16, 12, 3, 1e-5


def make_layers(heads: int, groups: int, dim: int, extras: bool) -> list[Layer]:
    def weight(rows: int, columns: int) -> Tensor:
        return (torch.randn(rows, columns) / columns**0.5).bfloat16()

    def vector(size: int) -> Tensor | None:
        return torch.rand(size) if extras else None

    return [
        Layer(
            norm=torch.rand(HIDDEN),
            qkv=weight((heads + 2 * groups) * dim, HIDDEN),
            out=weight(HIDDEN, heads * dim),
            mlp_norm=torch.rand(HIDDEN),
            up=weight(2 * FFN, HIDDEN),
            down=weight(HIDDEN, FFN),
            qkv_bias=vector((heads + 2 * groups) * dim),
            out_bias=vector(HIDDEN),
            q_norm=vector(dim),
            k_norm=vector(dim),
        )
        for _ in range(COUNT)
    ]


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize(("heads", "groups", "dim"), [(9, 3, 64), (4, 4, 80), (8, 1, 16)])
@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_step(batch: int, heads: int, groups: int, dim: int, extras: bool, by_head: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layers = make_layers(heads, groups, dim, extras)
    step = DecodeStep(layers, heads, groups, dim, EPS, dim**-0.5)
    keys, values = (torch.randn(COUNT, BLOCKS * batch, groups, SLOTS, dim).to(dtype) for _ in range(2))
    tables = torch.randperm(BLOCKS * batch).int().view(batch, BLOCKS)
    lengths = torch.randint(1, BLOCKS * SLOTS, (batch,), dtype=torch.int32)
    slot = lengths.long() - 1
    if by_head:  # as in H2O, where a new entry takes the slot of an evicted one
        slot = (torch.rand(COUNT, batch, groups) * lengths.view(1, -1, 1)).long()
        block = tables.long().gather(1, (slot // SLOTS).permute(1, 0, 2).reshape(batch, -1))
        block = block.view(batch, COUNT, groups).permute(1, 0, 2)
    else:
        block = tables.long().gather(1, (slot // SLOTS).unsqueeze(1)).squeeze(1)
    offset, angles = slot % SLOTS, torch.rand(batch, dim // 2)
    x, cos, sin = torch.randn(batch, HIDDEN), angles.cos(), angles.sin()
    mass, wanted_mass = (torch.empty(COUNT, batch, groups, int(lengths.max())) for _ in range(2))

    wanted, wanted_keys, wanted_values = x.clone(), keys.clone(), values.clone()
    for i, layer in enumerate(layers):
        qkv = kernels.norm_linear(wanted, layer.norm, EPS, layer.qkv, layer.qkv_bias).view(batch, -1, dim)
        q, k, v = qkv.split([heads, groups, groups], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = kernels.rms_norm(q, layer.q_norm, EPS), kernels.rms_norm(k, layer.k_norm, EPS)
        q, k = kernels.rope(q, cos, sin), kernels.rope(k, cos, sin)
        at = (block[i], offset[i]) if by_head else (block, offset)
        kernels.store_kv(wanted_keys[i], wanted_values[i], *at, k, v)
        attended = kernels.decode_attention(
            q, wanted_keys[i], wanted_values[i], tables, lengths, dim**-0.5, wanted_mass[i]
        )
        kernels.add_linear(wanted, attended.view(batch, -1), layer.out, layer.out_bias)
        kernels.gated_mlp(wanted, layer.mlp_norm, EPS, layer.up, layer.down)

    got = step.run(x, cos, sin, keys, values, block, offset, tables, lengths, mass)
    assert got is x
    assert (got - wanted).abs().max() < 1e-4 * wanted.abs().max()
    # A rounding that falls the other way moves a stored bfloat16 by its last bit.
    near = 0.02 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(keys, wanted_keys, atol=near, rtol=near)
    torch.testing.assert_close(values, wanted_values, atol=near, rtol=near)
    torch.testing.assert_close(mass, wanted_mass, atol=1e-3, rtol=1e-3)


def test_layers_it_does_not_serve() -> None:
    layers = make_layers(4, 2, 16, extras=False)
    assert DecodeStep.serves(layers, 16)
    assert not DecodeStep.serves(layers, 24)
    layers[1].up_bias = torch.zeros(2 * FFN)
    assert not DecodeStep.serves(layers, 16)
    layers[1].up_bias, layers[2].down = None, layers[2].down.float()
    assert not DecodeStep.serves(layers, 16)
    with pytest.raises(ValueError):
        DecodeStep(layers, 4, 2, 16, EPS, 0.25)


def test_it_follows_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "use_native", False)
    assert not DecodeStep.serves(make_layers(4, 2, 16, extras=False), 16)
