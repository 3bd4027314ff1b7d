"""Column mass from log-sum-exps against the whole matrix of probabilities."""

from __future__ import annotations

import pytest
import torch

from engines import kernels
from engines.importance import column_mass


def rows(seed: int, count: int, heads: int, dim: int = 16) -> torch.Tensor:
    return torch.randn(count, heads, dim, generator=torch.Generator().manual_seed(seed)) * 2


def probabilities(q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 [H, T, n]"""
    group, (count, _, _), length = q.shape[1] // k.shape[0], q.shape, k.shape[1]
    scores = torch.einsum("thd,hnd->htn", q.float(), k.float().repeat_interleave(group, 0)) * scale
    future = torch.ones(count, length, dtype=torch.bool).triu_(length - count + 1)
    return scores.masked_fill_(future, float("-inf")).softmax(-1)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("count", "length", "heads", "groups"),
    [(1, 1, 2, 2), (7, 7, 4, 2), (5, 90, 6, 3), (700, 700, 2, 1), (300, 2500, 4, 2)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_mass_is_the_sum_down_the_columns(
    monkeypatch: pytest.MonkeyPatch, native: bool, count: int, length: int, heads: int, groups: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(kernels, "use_native", native and kernels.use_native)
    q, k = rows(1, count, heads), rows(2, length, groups).transpose(0, 1).to(dtype)
    v = rows(3, length, groups).transpose(0, 1).to(dtype)
    _, lse = kernels.flash_attention(q, k, v, 0.25)
    found = column_mass(q, k, lse, 0.25)
    expected = probabilities(q, k, 0.25).view(groups, -1, length).sum(1)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)
    assert found.sum().item() == pytest.approx(count * heads, rel=1e-3)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("count", "every"), [(64, 8), (61, 8), (3, 8), (600, 4)])
def test_sampled_mass_is_that_of_the_sampled_rows(
    monkeypatch: pytest.MonkeyPatch, native: bool, count: int, every: int
) -> None:
    monkeypatch.setattr(kernels, "use_native", native and kernels.use_native)
    q, k = rows(1, count, 4), rows(2, count + 40, 2).transpose(0, 1)
    _, lse = kernels.flash_attention(q, k, k, 0.25)
    found = column_mass(q, k, lse, 0.25, every)
    chosen = probabilities(q, k, 0.25)[:, (count - 1) % every :: every]
    expected = chosen.reshape(2, -1, count + 40).sum(1) * count / chosen.shape[1]
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)
