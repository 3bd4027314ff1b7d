"""Finding and loading the C library; its functions are tested through `engines.kernels`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engines import native

needs_library = pytest.mark.skipif(native.library is None, reason="the C library was not built")


@needs_library
def test_every_item_is_done_once_by_however_many_threads() -> None:
    """Kernels of all sizes in quick succession, with more threads than cores, so that helpers come late, sleep and are
    interrupted; adding to the output would show an item that was done twice or by a helper of an earlier kernel."""
    generator = torch.Generator().manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(2 * (os.cpu_count() or 1) + 1)
    try:
        for turn in range(1500):
            rows, height = turn % 3 + 1, (turn * 37) % 700 + 1
            x = torch.randn(rows, 64, generator=generator)
            weight = torch.randn(height, 64, generator=generator).bfloat16()
            residual = torch.ones(rows, height)
            native.linear(x, None, 0.0, weight, None, residual, add=True)
            assert (residual - 1 - x @ weight.float().T).abs().max() < 1e-4
            if turn % 100 == 0:
                time.sleep(0.002)
    finally:
        torch.set_num_threads(before)


def test_the_environment_turns_it_off() -> None:
    code = "from engines import kernels, native; assert native.library is None; assert not kernels.use_native"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "KVTUI_NATIVE": "0"}, check=True)


def test_nothing_to_load(tmp_path: Path) -> None:
    assert native.load(tmp_path) is None


def test_a_damaged_library_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "_native.so").write_bytes(b"not a library")
    assert native.load(tmp_path) is None


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no compiler")
@pytest.mark.parametrize("source", ["int kvtui_linear(void) { return missing_symbol(); }", "int kvtui_linear;"])
def test_a_library_that_does_not_fit_counts_as_none(tmp_path: Path, source: str) -> None:
    (tmp_path / "it.c").write_text(f"int missing_symbol(void);\n{source}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "_native.so", tmp_path / "it.c"], check=True)
    assert native.load(tmp_path) is None
