"""The machine and the versions that a study was run with."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import psutil

PACKAGES = ("kvtui", "torch", "transformers", "numpy", "lm-eval", "triton", "flash-attn")


def versions() -> dict[str, str]:
    """Of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, str | int | float | None]:
    """`load_1m` is the number of processes that wanted a core during the last minute: above `cores`, other work was
    in the way of what was timed."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": ", ".join(gpus) or None,
        "load_1m": round(psutil.getloadavg()[0], 2),
    }


def _cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
