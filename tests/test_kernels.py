"""Every kernel against a plain float32 reference, through the C library and through torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from engines import kernels, native

# The arithmetic is float32 throughout, over a few thousand terms at most; bfloat16 is only storage, and the references
# read the same rounded values.
TOLERANCE = 2e-5

needs_library = pytest.mark.skipif(native.library is None, reason="the C library was not built")


@pytest.fixture(params=[pytest.param("native", marks=needs_library), "torch"], autouse=True)
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(0)
    monkeypatch.setattr(kernels, "use_native", request.param == "native")
    monkeypatch.setattr(kernels, "bfloat16_units", False)
    with threads(1):  # on a busy machine, hundreds of tiny parallel regions would wait for each other
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def assert_near(got: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert got.shape == wanted.shape
    assert torch.isfinite(got).all()
    assert (got - wanted).abs().max() <= tolerance * max(1.0, wanted.abs().max().item())


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 16, 17, 40])
@pytest.mark.parametrize(("width", "height"), [(576, 960), (64, 7), (1536, 101), (40, 8)])
def test_linear_and_its_fused_forms(rows: int, width: int, height: int) -> None:
    x, weight = torch.randn(rows, width), torch.randn(height, width).bfloat16()
    bias, norm = torch.randn(height), torch.rand(width)
    product = x @ weight.float().T
    assert_near(kernels.linear(x, weight), product)
    assert_near(kernels.linear(x, weight, bias), product + bias)
    assert_near(kernels.linear(x, weight, bias.bfloat16()), product + bias.bfloat16())
    residual = torch.randn(rows, height)
    before = residual.clone()
    assert kernels.add_linear(residual, x, weight, bias) is residual
    assert_near(residual, before + product + bias)
    wanted = normed(x, norm, 1e-5) @ weight.float().T
    assert_near(kernels.norm_linear(x, norm, 1e-5, weight), wanted)
    assert_near(kernels.norm_linear(x, norm, 1e-5, weight, bias), wanted + bias)


@pytest.mark.parametrize("rows", [1, 5, 30])
def test_linear_of_rows_that_lie_apart_and_of_float32_weights(rows: int) -> None:
    x, weight = torch.randn(rows, 3, 64)[:, 1], torch.randn(48, 64)
    assert_near(kernels.linear(x, weight.bfloat16()), x @ weight.bfloat16().float().T)
    assert_near(kernels.linear(x, weight), x @ weight.T)
    assert_near(kernels.linear(x.bfloat16(), weight.bfloat16()).float(), x @ weight.T, 2e-2)


def test_wide_weights_are_widened_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_UPCAST_ELEMENTS", 64 * 10)
    x, weight, bias = torch.randn(20, 64), torch.randn(37, 64).bfloat16(), torch.randn(37)
    assert_near(kernels.linear(x, weight, bias), x @ weight.float().T + bias)
    assert kernels._buffers["weight"].numel() >= 640


def test_bfloat16_units_take_over_the_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "bfloat16_units", True)
    x, weight, residual = torch.randn(20, 64), torch.randn(48, 64).bfloat16(), torch.randn(20, 48)
    wanted = x @ weight.float().T
    assert_near(kernels.linear(x, weight), wanted, 2e-2)
    assert_near(kernels.add_linear(residual.clone(), x, weight), residual + wanted, 2e-2)
    q, k = torch.randn(20, 4, 64), torch.randn(2, 30, 64).bfloat16()
    out, _ = kernels.flash_attention(q, k, k, 0.125)
    assert out.dtype == torch.float32
    assert_near(out, causal(q, k.float(), k.float(), 0.125)[0], 2e-2)


@pytest.mark.parametrize("rows", [1, 3, 16, 40])
@pytest.mark.parametrize(("width", "ffn"), [(576, 1536), (64, 176)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gated_mlp(rows: int, width: int, ffn: int, dtype: torch.dtype) -> None:
    residual, norm = torch.randn(rows, width), torch.rand(width)
    gate_up = (torch.randn(2 * ffn, width) * 4 / width**0.5).to(dtype)
    down = (torch.randn(width, ffn) / ffn**0.5).to(dtype)
    gate, up = (normed(residual, norm, 1e-5) @ gate_up.float().T).chunk(2, -1)
    wanted = residual + (gate * torch.sigmoid(gate) * up) @ down.float().T
    assert kernels.gated_mlp(residual, norm, 1e-5, gate_up, down) is residual
    assert_near(residual, wanted)


def test_silu_of_extreme_gates_stays_finite() -> None:
    gate_up = torch.cat([torch.eye(16) * sign for sign in (1, 1)]).bfloat16()
    x = torch.tensor([[-1e4, -100, -90, -50, -1, 0, 1, 50, 88, 90, 100, 1e4, 2, 3, 4, 5]])
    wanted = x + torch.nn.functional.silu(normed(x, torch.full((16,), 40.0), 1e-5)) * normed(
        x, torch.full((16,), 40.0), 1e-5
    )
    got = kernels.gated_mlp(x.clone(), torch.full((16,), 40.0), 1e-5, gate_up, torch.eye(16).bfloat16())
    assert_near(got, wanted)


@pytest.mark.parametrize("shape", [(1, 576), (9, 64), (40, 576), (3, 4, 128), (2, 24)])
def test_norms(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.rand(shape[-1]), torch.randn(shape[-1])
    assert_near(kernels.rms_norm(x, weight, 1e-6), normed(x, weight, 1e-6))
    assert_near(kernels.rms_norm(x, weight.bfloat16(), 1e-6), normed(x, weight.bfloat16().float(), 1e-6))
    centred = x - x.mean(-1, keepdim=True)
    wanted = centred / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * weight + bias
    assert_near(kernels.layer_norm(x, weight, bias, 1e-5), wanted)


def test_rms_norm_of_heads_inside_a_wider_row() -> None:
    rows, weight = torch.randn(5, 10, 64), torch.rand(64)
    assert_near(kernels.rms_norm(rows[:, 2:6], weight, 1e-6), normed(rows[:, 2:6], weight, 1e-6))


@pytest.mark.parametrize("rows", [1, 4, 50])
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_rope_turns_in_place_and_leaves_the_neighbours(rows: int, dim: int) -> None:
    qkv = torch.randn(rows, 9, dim)
    before = qkv.clone()
    angles = torch.rand(rows, dim // 2) * 100
    cos, sin = angles.cos(), angles.sin()
    turned = kernels.rope(qkv[:, :6], cos, sin)
    assert turned.data_ptr() == qkv.data_ptr()
    halves = torch.complex(*before[:, :6].chunk(2, -1)) * torch.complex(cos, sin).unsqueeze(1)
    assert_near(qkv[:, :6], torch.cat([halves.real, halves.imag], -1))
    assert torch.equal(qkv[:, 6:], before[:, 6:])


def blocks(count: int, groups: int, slots: int, dim: int, dtype: torch.dtype, apart: bool) -> Tensor:
    """Blocks [N, G, S, d]; `apart`: not contiguous in the first three dimensions."""
    if not apart:
        return torch.randn(count, groups, slots, dim).to(dtype)
    return torch.randn(groups, count, 2 * slots, dim + 16).to(dtype).transpose(0, 1)[:, :, ::2, :dim]


def attention_of_one(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [H, d], k and v [G, n, d] -> (out [H, d], mass [G, n]), in float64."""
    groups, length, _ = k.shape
    stacked = q.double().view(groups, -1, q.shape[1])
    probabilities = torch.softmax(stacked @ k.double().mT * scale, -1)
    out = (probabilities @ v.double()).view(q.shape)
    return out.float(), probabilities.sum(1).float().view(groups, length)


@pytest.mark.parametrize(
    ("heads", "groups", "dim"), [(9, 3, 64), (4, 4, 80), (8, 1, 128), (14, 2, 64), (8, 2, 96), (5, 1, 64), (2, 1, 24)]
)
@pytest.mark.parametrize(("slots", "apart"), [(16, False), (16, True), (200, True), (5, False)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_decode_attention(heads: int, groups: int, dim: int, slots: int, apart: bool, dtype: torch.dtype) -> None:
    lengths = [1, 3 * slots + 1, 2 * slots, 4 * slots - 1]
    keys, values = (blocks(20, groups, slots, dim, dtype, apart) for _ in range(2))
    tables = torch.randperm(20)[:16].view(4, 4).int()
    q = torch.randn(4, heads + 2, dim)[:, :heads] * 3
    mass = torch.full((4, groups, max(lengths) + 3), math.nan)
    scale = dim**-0.5
    for counted in (torch.tensor(lengths), torch.tensor(lengths, dtype=torch.int32)):
        out = kernels.decode_attention(q, keys, values, tables, counted, scale, mass)
        assert torch.equal(out, kernels.decode_attention(q, keys, values, tables, counted, scale))
        for b, length in enumerate(lengths):
            k, v = (kernels.gather_blocks(pool, tables[b].long(), length, torch.float32) for pool in (keys, values))
            wanted, wanted_mass = attention_of_one(q[b], k, v, scale)
            assert_near(out[b], wanted)
            assert_near(mass[b, :, :length], wanted_mass)
            assert (mass[b, :, length:] == 0).all()


def test_gather_blocks_reads_slots_in_the_order_of_the_table() -> None:
    pool = torch.arange(6 * 2 * 4 * 16).view(6, 2, 4, 16).float()
    got = kernels.gather_blocks(pool, torch.tensor([4, 1, 3]), 7)
    wanted = torch.stack([torch.cat([pool[4, g], pool[1, g]])[:7] for g in range(2)])
    assert torch.equal(got, wanted)
    assert kernels.gather_blocks(pool, torch.tensor([4]), 3, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("count", [2, 5])
def test_decode_attention_with_fewer_slots_than_threads_and_with_many(count: int) -> None:
    for length in (1, 17, 3000):
        k, v = torch.randn(1, 3, length, 64).bfloat16(), torch.randn(1, 3, length, 64).bfloat16()
        q, mass = torch.randn(1, 9, 64), torch.empty(1, 3, length)
        table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([length])
        with threads(count):
            out = kernels.decode_attention(q, k, v, table, lengths, 0.125, mass)
        wanted, wanted_mass = attention_of_one(q[0], k[0].float(), v[0].float(), 0.125)
        assert_near(out[0], wanted)
        assert_near(mass[0], wanted_mass)


def some_of_each(rows: int) -> list[Tensor]:
    torch.manual_seed(1)
    x, norm, q = torch.randn(rows, 64), torch.rand(64), torch.randn(2, rows, 64)
    weight, down = torch.randn(96, 64).bfloat16(), torch.randn(64, 48).bfloat16()
    return [
        kernels.norm_linear(x, norm, 1e-5, weight),
        kernels.gated_mlp(x.clone(), norm, 1e-5, weight, down),
        kernels.rms_norm(x, norm, 1e-5),
        kernels.rope(x.clone().view(rows, 1, 64), torch.rand(rows, 32), torch.rand(rows, 32)),
        *kernels.eager_attention(q, q[:1], q[:1], torch.empty(2, rows, rows), 0.125),
    ]


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_the_work_is_cut_among_threads(rows: int) -> None:
    wanted = some_of_each(rows)
    for count in (2, 5):
        with threads(count):
            for got, expected in zip(some_of_each(rows), wanted, strict=True):
                assert_near(got, expected)


def test_huge_logits_neither_overflow_nor_vanish() -> None:
    k = torch.randn(4, 2, 16, 64).bfloat16()
    k[2, :, 5] = 60.0  # the winner, in the middle of the context, far above what float32's exp can hold
    v, q = torch.randn(4, 2, 16, 64).bfloat16(), torch.full((1, 4, 64), 50.0)
    table, mass = torch.arange(4).int().view(1, 4), torch.empty(1, 2, 64)
    out = kernels.decode_attention(q, k, v, table, torch.tensor([64]), 1.0, mass)
    assert_near(out[0], v[2, :, 5].float().repeat_interleave(2, 0))
    assert_near(mass[0, :, 37], torch.full((2,), 2.0))
    out = kernels.decode_attention(-q, k, v, table, torch.tensor([64]), 1.0, mass)
    assert torch.isfinite(out).all()
    assert_near(mass.sum(-1), torch.full((1, 2), 2.0))


def test_store_kv_rounds_to_nearest_and_touches_nothing_else() -> None:
    for dtype, by_head in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, True)):
        keys, values = (blocks(8, 3, 16, 64, dtype, apart=True) for _ in range(2))
        wanted_keys, wanted_values = keys.clone(), values.clone()
        kv = torch.randn(4, 6, 64)
        shape = (4, 3) if by_head else (4,)
        block, offset = torch.stack([torch.randperm(8)[:4] for _ in range(3)], 1), torch.randint(0, 16, (4, 3))
        if not by_head:
            block, offset = block[:, 0], offset[:, 0]
        assert block.shape == shape
        kernels.store_kv(keys, values, block, offset, kv[:, :3], kv[:, 3:])
        for t in range(4):
            for g in range(3):
                at, slot = (block[t, g], offset[t, g]) if by_head else (block[t], offset[t])
                wanted_keys[at, g, slot] = kv[t, g].to(dtype)
                wanted_values[at, g, slot] = kv[t, 3 + g].to(dtype)
        assert torch.equal(keys, wanted_keys)
        assert torch.equal(values, wanted_values)


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """q [T, H, d], k and v [G, n, d] -> (out [T, H, d], lse [H, T], mass [G, n]), in float64."""
    rows, heads, _ = q.shape
    groups, length, _ = k.shape
    k, v = (t.double().repeat_interleave(heads // groups, 0) for t in (k, v))
    scores = q.double().transpose(0, 1) @ k.mT * scale
    scores.masked_fill_(torch.ones(rows, length).triu(length - rows + 1).bool(), -math.inf)
    probabilities = scores.softmax(-1)
    mass = probabilities.view(groups, -1, length).sum(1)
    return (probabilities @ v).transpose(0, 1).float(), scores.logsumexp(-1).float(), mass.float()


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 50), (2, 2), (37, 37), (16, 90), (300, 300), (257, 600)])
@pytest.mark.parametrize(("heads", "groups", "dim"), [(9, 3, 64), (2, 2, 80), (4, 1, 128)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_prefill_attention(
    rows: int, length: int, heads: int, groups: int, dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_EAGER_ROWS", 100)
    q = torch.randn(rows, heads + 1, dim)[:, :heads] * 3
    k, v = torch.randn(length, groups, dim).to(dtype).transpose(0, 1), torch.randn(groups, length, dim).to(dtype)
    scale = dim**-0.5
    wanted, wanted_lse, wanted_mass = causal(q, k, v, scale)
    out, lse = kernels.flash_attention(q, k, v, scale)
    assert_near(out, wanted)
    assert_near(lse, wanted_lse)
    scores = torch.full((heads, rows, length), math.nan)
    out, mass = kernels.eager_attention(q.transpose(0, 1), k, v, scores, scale)
    assert_near(out.transpose(0, 1), wanted)
    assert_near(mass, wanted_mass)
    assert_near(scores.sum(-1), torch.ones(heads, rows))
    assert (scores.triu(length - rows + 1) == 0).all()


def test_eager_attention_survives_huge_logits() -> None:
    q, k = torch.randn(2, 40, 64) * 100, torch.randn(1, 40, 64) * 100
    out, mass = kernels.eager_attention(q, k, k, torch.empty(2, 40, 40), 1.0)
    assert torch.isfinite(out).all()
    assert_near(mass.sum(), torch.tensor(80.0))


def test_allocate_gives_tensors_that_outlive_their_views() -> None:
    tensor = kernels.allocate((5, 1 << 20), torch.bfloat16)
    assert tensor.shape == (5, 1 << 20)
    assert tensor.is_contiguous()
    row = tensor.fill_(2)[3]
    del tensor
    assert row.sum() == 2 << 20
    assert kernels.allocate((3, 2), torch.float32).shape == (3, 2)
