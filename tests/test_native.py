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
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no /proc")
def test_it_shares_torchs_threads() -> None:
    """One OpenMP runtime in the process: a second one would mean two pools of threads fighting for the same cores."""
    code = "from engines import native; assert native.library; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    files = {line.split()[-1] for line in maps.splitlines() if "/" in line}
    assert any("_native" in file for file in files)
    assert len({file for file in files if "omp" in Path(file).name and ".so" in file}) == 1


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
