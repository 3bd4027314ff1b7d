"""The script for GPU machines, as far as it goes without one."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_check import Row
from engines import importance


def test_without_a_gpu_one_line_and_status_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_check"])
    assert gpu_check.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "no CUDA device" in err


CASES = [(9, 70, 4, 2, 16, torch.float32), (1, 33, 2, 1, 80, torch.bfloat16)]


def test_of_each_kind_the_worst_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "device", lambda: torch.device("cpu"))
    found = gpu_check.right(CASES)
    assert [row.what.partition(":")[0] for row in found] == [
        "attention",
        "log-sum-exp",
        "mass, every 1",
        "mass, every 8",
    ]
    assert not any(row.off for row in found), list(map(str, found))


@pytest.mark.parametrize(
    "fault", [lambda mass: mass * 1.01, lambda mass: mass.roll(1, 1), lambda mass: mass * math.nan]
)
def test_a_wrong_mass_is_off(monkeypatch: pytest.MonkeyPatch, fault) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(gpu_check, "device", lambda: torch.device("cpu"))
    right = importance.column_mass
    monkeypatch.setattr(importance, "column_mass", lambda *given: fault(right(*given)))
    attention, lse, exact, sampled = gpu_check.right(CASES)
    assert [row.off for row in (attention, lse, exact, sampled)] == [False, False, True, True]
    assert "OFF" in str(exact)


def test_limits_hold_in_their_direction() -> None:
    assert not Row("x", 1.0, limit=1.0).off
    assert Row("x", 1.1, limit=1.0).off
    assert Row("x", 0.0, limit=1, at_least=True).off
    assert Row("x", math.nan, limit=1.0).off
    assert not Row("for information", 1e9).off
