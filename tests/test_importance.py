"""Column mass from log-sum-exps, by every implementation, against the whole matrix of probabilities in float64.

Triton's kernel runs in its interpreter, on the CPU (see conftest); with TRITON_INTERPRET=0 and a CUDA device, there.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engines import importance, kernels

Mass = Callable[..., Tensor]


@dataclass
class Case:
    """q [T, H, d], k and v [G, n, d], and what float64 makes of them: probabilities [H, T, n], out [T, H, d], lse."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    probabilities: Tensor
    out: Tensor
    lse: Tensor

    def mass(self, every: int = 1) -> Tensor:
        _, count, length = self.probabilities.shape
        chosen = self.probabilities[:, (count - 1) % every :: every]
        return (chosen.reshape(len(self.k), -1, length).sum(1) * count / chosen.shape[1]).float()


def case(count: int, length: int, heads: int, groups: int, dim: int, dtype: torch.dtype, stored: torch.dtype) -> Case:
    random = torch.Generator().manual_seed(count * length)
    q = (torch.randn(count, heads, dim, generator=random) * 2).to(dtype)
    k, v = ((torch.randn(length, groups, dim, generator=random) * 2).transpose(0, 1).to(stored) for _ in range(2))
    wide, values = (t.double().repeat_interleave(heads // groups, 0) for t in (k, v))
    scores = torch.einsum("thd,hnd->htn", q.double(), wide) * dim**-0.5
    scores.masked_fill_(torch.ones(count, length, dtype=torch.bool).triu_(length - count + 1), float("-inf"))
    probabilities = scores.softmax(-1)
    out = torch.einsum("htn,hnd->thd", probabilities, values)
    return Case(q, k, v, dim**-0.5, probabilities, out.float(), scores.logsumexp(-1).float())


def eager(q: Tensor, k: Tensor, lse: Tensor, scale: float) -> Tensor:
    scores = torch.empty(q.shape[1], len(q), k.shape[1])
    return kernels.eager_attention(q.transpose(0, 1), k, k, scores, scale)[1]


def fused(q: Tensor, k: Tensor, lse: Tensor, scale: float, every: int = 1) -> Tensor:
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    return importance.column_mass(q.to(device), k.to(device), lse.to(device), scale, every).cpu()


@pytest.fixture(params=["eager", "torch", "C", "Triton"])
def column_mass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mass:
    if request.param == "Triton":
        if importlib.util.find_spec("triton") is None:
            pytest.skip("Triton is not installed (it is made for Linux only)")
        if os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available():
            pytest.skip("Triton has no CUDA device here, and TRITON_INTERPRET is off")
        from engines import triton_mass

        monkeypatch.setattr(importance, "_triton", lambda device_type: triton_mass)
        return fused
    if request.param == "C" and not kernels.use_native:
        pytest.skip("the C kernels are not built")
    monkeypatch.setattr(kernels, "use_native", request.param == "C")
    return eager if request.param == "eager" else importance.column_mass


# Rows and lengths beside and beyond the tiles' (256 by 2,048 in torch, 64 by 128 in Triton); rows that start late.
SHAPES = [
    (1, 1, 2, 2, 16),
    (7, 7, 4, 2, 64),
    (5, 90, 6, 3, 80),
    (129, 129, 2, 1, 128),
    (300, 350, 2, 1, 16),
    (9, 2100, 2, 1, 32),
]
DTYPES = [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize(("dtype", "stored"), DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_exact_mass_is_the_sum_down_the_columns(
    column_mass: Mass, shape: tuple[int, ...], dtype: torch.dtype, stored: torch.dtype
) -> None:
    it = case(*shape, dtype, stored)
    found = column_mass(it.q, it.k, it.lse, it.scale)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, it.mass(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("column_mass", ["torch", "C", "Triton"], indirect=True)  # eager attention samples nothing
@pytest.mark.parametrize(("count", "every"), [(64, 8), (61, 8), (3, 8), (270, 4)])
def test_sampled_mass_is_that_of_the_sampled_rows(column_mass: Mass, count: int, every: int) -> None:
    it = case(count, count + 40, 2, 1, 16, torch.float32, torch.bfloat16)
    torch.testing.assert_close(column_mass(it.q, it.k, it.lse, it.scale, every), it.mass(every), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_flash_attention_leaves_log_sum_exps(shape: tuple[int, ...]) -> None:
    it = case(*shape, torch.float32, torch.float32)
    out, lse = kernels.flash_attention(it.q, it.k, it.v, it.scale)
    torch.testing.assert_close(out, it.out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, it.lse, rtol=1e-5, atol=1e-5)


def test_flash_attn_is_asked_in_its_own_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn takes [batch, rows, heads, d], grouped, and its causal mask ends at the last key."""
    it = case(5, 90, 6, 3, 64, torch.bfloat16, torch.bfloat16)

    def stand_in(q, k, v, *, softmax_scale, causal, return_attn_probs):  # type: ignore[no-untyped-def]
        assert q.shape == (1, 5, 6, 64)
        assert k.shape == v.shape == (1, 90, 3, 64)
        assert (softmax_scale, causal, return_attn_probs) == (it.scale, True, True)
        return it.out[None], it.lse[None], None

    monkeypatch.setattr(kernels, "_flash_package", lambda device_type, dtype: stand_in)
    out, lse = kernels.flash_attention(it.q, it.k, it.v, it.scale)
    assert out is not None
    assert torch.equal(out, it.out)
    assert torch.equal(lse, it.lse)


def test_without_cuda_neither_package_is_asked_for() -> None:
    assert importance._triton("cpu") is None
    assert kernels._flash_package("cpu", torch.bfloat16) is None
    assert kernels._flash_package("cuda", torch.float32) is None
