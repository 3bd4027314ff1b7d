"""Finding and loading the C library; its functions are tested through `engines.kernels`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engines import native

needs_library = pytest.mark.skipif(native.library is None, reason="the C library was not built")


@needs_library
def test_a_helper_that_does_not_run_is_not_waited_for() -> None:
    """Ten times as many threads as cores, most of them asleep: the kernels of a token must still take microseconds
    each, not a time slice each."""
    code = """
import os, time, torch
torch.set_num_threads(10 * os.cpu_count())
from engines import kernels
x, weight = torch.randn(1, 576), torch.randn(960, 576).bfloat16()
wanted = x @ weight.float().T
times = []
for _ in range(2000):
    start = time.perf_counter()
    out = kernels.linear(x, weight)
    times.append(time.perf_counter() - start)
    assert (out - wanted).abs().max() < 1e-3
print(sorted(times)[len(times) // 2])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 2e-3


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
