"""Speculation and the working set: the C kernels against torch."""

from __future__ import annotations

import math

import pytest
import torch

from engines import kernels
from engines.hostpool import HostKvShape
from engines.memory import Pool
from engines.prefetch import WorkingSet

pytestmark = pytest.mark.skipif(not kernels.use_native, reason="the C kernels were not built")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("keys_count", [1, 63, 64, 700])
@pytest.mark.parametrize(("alpha", "share"), [(3.0, 1.0), (math.inf, 0.3), (1e-6, 0.5)])
def test_speculation_chooses_as_torch_does(monkeypatch, dtype, keys_count: int, alpha: float, share: float) -> None:
    torch.manual_seed(0)
    q = torch.randn(3, 4, 19)
    keys = torch.randn(3, 19, keys_count + 5).to(dtype)[:, :, :keys_count]
    most = max(1, int(share * keys_count))
    chosen = kernels.speculate(q, keys, 0.5, alpha, most)
    monkeypatch.setattr(kernels, "use_native", False)
    assert torch.equal(chosen, kernels.speculate(q, keys, 0.5, alpha, most))


def test_equal_shares_are_chosen_only_as_often_as_wanted() -> None:
    chosen = kernels.speculate(torch.zeros(2, 1, 4), torch.randn(2, 4, 100), 1.0, math.inf, 7)
    assert chosen.tolist() == [list(range(7))] * 2


@pytest.mark.parametrize(("places", "overflow"), [(40, 0), (9, 12)])
def test_the_working_set_keeps_what_torch_keeps(monkeypatch, places: int, overflow: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = HostKvShape(2, 2, 4, torch.float32)
    sets = [WorkingSet(Pool("device"), shape, 60, places, overflow, torch.device("cpu")) for _ in range(2)]
    for step in range(120):
        m = int(torch.randint(0, 20, (1,), generator=generator))
        slots = torch.stack([torch.randperm(60, generator=generator)[:m].sort().values for _ in range(2)])
        own = torch.randint(0, 60, (2, 1), generator=generator)
        found = []
        for kept, use in zip(sets, (True, False), strict=True):
            monkeypatch.setattr(kernels, "use_native", use)
            found.append(kept.take(1, slots, own))
            rows = found[-1].rows
            assert len(set(rows.flatten().tolist())) == rows.numel()
            assert int(rows.max()) < kept.keys.shape[0]
        assert found[0].slots.tolist() == found[1].slots.tolist(), step
        assert found[0].heads.tolist() == found[1].heads.tolist()
        # Which of several that were last used in the same step goes first is free; so they are made one.
        for name in ("place_of", "slot_of", "used"):
            getattr(sets[1], name).copy_(getattr(sets[0], name))
