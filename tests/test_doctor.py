"""The doctor finds what is broken, and never breaks of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from kvtui import doctor
from probes import gpu
from tests.fake_nvml import FakeNvml

PROBE = gpu.GpuProbe
TORCH: dict[str, Any] = {
    "torch": "2.13.0",
    "cuda_build": None,
    "cuda": False,
    "devices": [],
    "threads": 2,
    "kernels": True,
    "flash_attn": None,
    "triton": "broken: no compiler",
    "link": {
        "profile": "A100:PCIe4",
        "measured": False,
        "h2d_bytes_per_s": 25e6,
        "d2h_bytes_per_s": 25e6,
        "memory_bytes_per_s": 2e9,
    },
}


def kvtui(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvtui.cli", "doctor", *arguments]
    settings = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=settings, encoding="utf-8")


def test_this_machine_can_run_it() -> None:
    done = kvtui("--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"]) == (0, True)
    by_name = {finding["what"]: finding for finding in told["findings"]}
    assert by_name["torch"]["found"].startswith(told["torch"]["torch"])
    assert by_name.keys() == {
        *("Python", "torch", "GPU", "kernels", "flash-attn", "triton", "link", "memory", "model cache", "terminal")
    }
    assert told["torch"]["link"]["h2d_bytes_per_s"] > 0
    assert ("modelled" in by_name["link"]["found"]) != told["torch"]["link"]["measured"]


@pytest.mark.parametrize("fault", ["raise OSError('libtorch.so: wrong ELF class')", "import os; os.abort()"])
def test_a_broken_torch_is_a_finding(tmp_path: Path, fault: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(fault)
    paths = os.pathsep.join([str(tmp_path), str(Path(doctor.__file__).parent.parent)])
    done = kvtui(PYTHONPATH=paths)
    assert done.returncode == 1
    assert "✖ torch" in done.stdout
    assert "fix: pip install" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    if "ELF" in fault:
        assert "wrong ELF class" in done.stdout


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('no json')", "exit code 0"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("raise ValueError('odd')", "ValueError: odd"),
        ("print([1])", "exit code 0"),
    ],
)
def test_why_torch_told_nothing(code: str, why: str) -> None:
    found, told = doctor.torch_facts([sys.executable, "-c", code])
    assert found is None
    assert why in told
    assert doctor.torch_facts(["/nowhere/python"])[0] is None


def gpu_finding(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml, **torch: Any) -> doctor.Finding:
    monkeypatch.setattr(gpu, "GpuProbe", lambda: PROBE(nvml))
    (finding,) = doctor._gpus(TORCH | torch)
    assert nvml.initialised == 0
    return finding


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = gpu_finding(monkeypatch, FakeNvml())
    assert finding.state == doctor.NOTE
    assert "80.0 GB" in finding.found
    assert "a CUDA build" in finding.fix
    finding = gpu_finding(monkeypatch, FakeNvml(), cuda_build="13.0")
    assert "driver for CUDA 13.0" in finding.fix
    finding = gpu_finding(monkeypatch, FakeNvml(devices=2, slices=1), devices=[{"name": "GPU 0", "capability": [9, 0]}])
    assert finding.state == doctor.OK
    assert finding.found.count("80.0 GB") == 2


def test_a_driver_that_does_not_answer_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.faults = {"nvmlInit": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
    finding = gpu_finding(monkeypatch, nvml)
    assert "mismatch" in finding.found
    assert finding.fix
    nvml.faults = {"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}
    assert gpu_finding(monkeypatch, nvml).found == "no NVIDIA driver was found"


def test_what_is_missing_is_told_with_what_it_means() -> None:
    by_name = {finding.what: finding for finding in doctor._kernels(TORCH | {"cuda": True, "kernels": False})}
    assert by_name["kernels"].state == by_name["flash-attn"].state == by_name["triton"].state == doctor.NOTE
    assert "--no-build-isolation" in by_name["flash-attn"].fix
    assert by_name["triton"].found == "broken: no compiler"
    measured = TORCH | {"link": TORCH["link"] | {"measured": True, "h2d_bytes_per_s": 55e9}}
    (finding,) = doctor._link(measured)
    assert (finding.state, finding.found) == (doctor.OK, "host → device 55.0 GB/s, device → host 25.0 MB/s, measured")


def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVTUI_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("engines.checkpoint.aliases", lambda: [])
    (finding,) = doctor._models()
    assert (finding.state, finding.fix) == (doctor.NOTE, "kvtui models --fetch smollm2-135m")
    monkeypatch.setattr(os, "access", lambda *_: False)
    (finding,) = doctor._models()
    assert finding.state == doctor.BROKEN
    assert "KVTUI_CACHE" in finding.fix


def test_a_binding_that_raises_anything_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def read(self) -> None:
            raise RuntimeError("boom \x1b[31m")

    monkeypatch.setattr(gpu, "GpuProbe", Broken)
    (finding,) = doctor._gpus(TORCH)
    assert (finding.state, finding.found) == (doctor.NOTE, "NVML's Python binding fails: boom ␛[31m")


def test_a_cache_that_is_no_folder_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        monkeypatch.setenv("KVTUI_CACHE", str(tmp_path / place))
        (finding,) = doctor._models()
        assert finding.state == doctor.BROKEN
        assert finding.means == f"No model can be kept: {tmp_path / 'file'} is no folder."
