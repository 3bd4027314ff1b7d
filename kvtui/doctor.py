"""`kvtui doctor`: what is here, what that means, and what to do about it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from kvtui import figures
from kvtui.literal import brief

OK, NOTE, BROKEN = "ok", "note", "broken"
_SIGNS = {OK: "✓", NOTE: "•", BROKEN: "✖"}
_PATIENCE_S = 180.0
_LEAST_PYTHON = (3, 11)
_LEAST_FREE_BYTES = 600_000_000  # the default model, and its conversion
_REINSTALL = "pip install --force-reinstall torch"
_WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """`state` is "ok", "note" (kvtui runs, with less) or "broken" (it does not run); `fix` may be empty."""

    what: str
    state: str
    found: str
    means: str = ""
    fix: str = ""


def run(*, as_json: bool) -> int:
    """Prints the findings. Returns 1 when something is broken that kvtui needs, else 0."""
    torch, why = torch_facts()
    findings = [*_python(), *_torch(torch, why), *_gpus(torch), *_kernels(torch), *_link(torch)]
    findings += [*_memory(), *_models(), *_terminal()]
    broken = any(finding.state == BROKEN for finding in findings)
    if as_json:
        print(json.dumps({"ok": not broken, "findings": [asdict(finding) for finding in findings], "torch": torch}))
    else:
        print("\n".join(line for finding in findings for line in _lines(finding)))
        print("\nkvtui cannot run before what is marked ✖ is mended." if broken else "\nkvtui can run here.")
    return int(broken)


def torch_facts(argv: list[str] | None = None) -> tuple[dict[str, Any] | None, str]:
    """What `probes.torch_check` found, or None and in one line why it found nothing. `argv` is for tests."""
    argv = argv or [sys.executable, "-m", "probes.torch_check"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE_S, errors="replace")
    except subprocess.TimeoutExpired:
        return None, f"it did not answer within {_PATIENCE_S:.0f} s"
    except OSError as fault:
        return None, str(fault)
    try:
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found, ""
    last = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    return None, brief(last or f"it ended with exit code {done.returncode}")


def _lines(finding: Finding) -> list[str]:
    begin = f"{_SIGNS[finding.state]} {finding.what:<14}"
    lines = textwrap.wrap(brief(finding.found), _WIDTH, initial_indent=begin, subsequent_indent=" " * 16) or [begin]
    for text in (finding.means, f"fix: {finding.fix}" if finding.fix else ""):
        lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 16, subsequent_indent=" " * 16)
    return lines


def _python() -> list[Finding]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, kvtui {_version('kvtui')}"
    if sys.version_info[:2] < _LEAST_PYTHON:
        return [Finding("Python", BROKEN, found, "kvtui needs 3.11 or later.", "install a newer Python")]
    return [Finding("Python", OK, found)]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of no installed package"


def _torch(torch: dict[str, Any] | None, why: str) -> list[Finding]:
    installed = _version("torch")
    if torch is None:
        fix = _REINSTALL if installed[0].isdigit() else "pip install torch"
        return [Finding("torch", BROKEN, f"{installed}: {why}", "Engines cannot run; recordings can be played.", fix)]
    build = f"built for CUDA {torch['cuda_build']}" if torch["cuda_build"] else "built for CPUs only"
    return [Finding("torch", OK, f"{torch['torch']}, {build}, {figures.counted(torch['threads'], 'thread')}")]


def _gpus(torch: dict[str, Any] | None) -> list[Finding]:
    """The driver as NVML tells of it, against what torch can use."""
    from kvtui.machine import NO_DRIVER
    from probes.gpu import GpuProbe

    stand_in = "The CPU plays the device (a stand-in), and the link is modelled; both are marked on the screen."
    try:
        probe = GpuProbe()
        reading = probe.read()
        probe.close()
    except Exception as fault:  # a binding that is not the one we know
        found = f"NVML's Python binding fails: {brief(str(fault)) or type(fault).__name__}"
        return [Finding("GPU", NOTE, found, stand_in, "pip install --force-reinstall nvidia-ml-py")]
    usable = torch["devices"] if torch is not None else []
    if not reading.driver:
        return [Finding("GPU", NOTE, NO_DRIVER, stand_in)]
    if reading.driver != "ok":
        fix = "nvidia-smi should say the same; load the driver anew or restart the machine"
        return [Finding("GPU", NOTE, f"the driver does not answer: {brief(reading.driver)}", stand_in, fix)]
    whole = [gpu for gpu in reading.gpus if gpu.slice_of is None]
    names = ", ".join(f"{g.name} ({figures.size(g.total_bytes or 0)})" for g in whole) or "none, with a driver"
    found = f"{names}; driver {_driver_version()}"
    if torch is None or usable:
        return [Finding("GPU", OK, found)]
    means = "torch does not see it. " + stand_in
    if not torch["cuda_build"]:
        return [Finding("GPU", NOTE, found, means, "install a CUDA build of torch (https://pytorch.org/get-started)")]
    fix = f"a driver for CUDA {torch['cuda_build']} or later, an older build of torch, or CUDA_VISIBLE_DEVICES unset"
    return [Finding("GPU", NOTE, found, means, fix)]


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = str(pynvml.nvmlSystemGetDriverVersion())
        pynvml.nvmlShutdown()
    except Exception as fault:
        return f"version unknown ({brief(str(fault))})"
    return version


def _kernels(torch: dict[str, Any] | None) -> list[Finding]:
    if torch is None:
        return []
    if torch["kernels"]:
        findings = [Finding("kernels", OK, "the C kernels are compiled and loaded")]
    else:
        means, fix = "The same functions run in torch, slower on a CPU.", "a C compiler, then pip install kvtui again"
        findings = [Finding("kernels", NOTE, "no C kernels", means, fix)]
    flash, triton = torch["flash_attn"], torch["triton"]
    for name, version, means in (
        ("flash-attn", flash, "torch's own FlashAttention is used; on CUDA, flash-attn is quicker with long prompts."),
        ("triton", triton, "Attention mass is computed by torch, in tiles."),
    ):
        if version is not None and not version.startswith("broken"):
            findings.append(Finding(name, OK, version))
            continue
        fix = "pip install --no-build-isolation 'kvtui[flash]'" if name == "flash-attn" and torch["cuda"] else ""
        findings.append(Finding(name, NOTE, version or "not installed", means, fix))
    return findings


def _link(torch: dict[str, Any] | None) -> list[Finding]:
    if torch is None:
        return []
    link = torch["link"]
    up, down = figures.rate(link["h2d_bytes_per_s"]), figures.rate(link["d2h_bytes_per_s"])
    if link["measured"]:
        return [Finding("link", OK, f"host → device {up}, device → host {down}, measured")]
    memory = figures.rate(link["memory_bytes_per_s"])
    means = (
        f"Modelled from {link['profile']}, scaled to this machine's memory: {memory}, measured now (less when busy)."
    )
    return [Finding("link", NOTE, f"host → device {up}, device → host {down}, modelled", means)]


def _memory() -> list[Finding]:
    import psutil

    from probes.cgroup import MemoryLimit

    memory, limit = psutil.virtual_memory(), MemoryLimit().read()
    found = f"{figures.size(memory.available)} free of {figures.size(memory.total)}, {os.cpu_count()} cores"
    if limit is None:
        return [Finding("memory", OK, found)]
    found += f"; the container may use {figures.size(limit[0])}, and uses {figures.size(limit[1])}"
    return [Finding("memory", OK, found)]


def _models() -> list[Finding]:
    from engines import checkpoint, store

    folder = store.root()
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free_bytes = shutil.disk_usage(place).free
    cached = [info.name for info in checkpoint.aliases() if info.cached]
    found = f"{folder}, {figures.size(free_bytes)} free; models here: {', '.join(cached) or 'none'}"
    if not place.is_dir():
        means = f"No model can be kept: {place} is no folder."
        return [Finding("model cache", BROKEN, found, means, "point KVTUI_CACHE at a folder that can be written")]
    if not os.access(place, os.W_OK):
        state, means = (NOTE, "No further model can be kept.") if cached else (BROKEN, "No model can be kept.")
        return [Finding("model cache", state, found, means, "point KVTUI_CACHE at a folder that can be written")]
    if not cached and free_bytes < _LEAST_FREE_BYTES:
        return [Finding("model cache", BROKEN, found, "The default model does not fit.", "point KVTUI_CACHE elsewhere")]
    if not cached:
        means = "The first start fetches the default model."
        return [Finding("model cache", NOTE, found, means, "kvtui models --fetch smollm2-135m")]
    return [Finding("model cache", OK, found)]


def _terminal() -> list[Finding]:
    from kvtui import looks, palettes
    from kvtui.configuration import is_terminal

    look, size = looks.detect(), shutil.get_terminal_size()
    there = all(map(is_terminal, (sys.stdin, sys.stderr)))
    named = {palettes.FULL: "all colours", palettes.MONO_COLORS: "no colours"}
    colors = named.get(look.colors, f"{look.colors} colours")
    found = f"{os.environ.get('TERM') or 'no TERM'}, {size.columns}×{size.lines}, {colors}"
    found += ", ASCII only" if look.ascii else ", Unicode"
    if not there:
        return [Finding("terminal", NOTE, f"{found}; not a terminal", "kvtui prints a summary in place of the screen.")]
    if size.columns < 80 or size.lines < 24:
        means = "Columns become tabs, and panes are left out."
        return [Finding("terminal", NOTE, found, means, "make it 80×24 or larger")]
    fix = "COLORTERM=truecolor, if the terminal can" if look.colors < palettes.FULL else ""
    return [Finding("terminal", NOTE if look.ascii else OK, found, "Glyphs are spelled in ASCII." * look.ascii, fix)]
