"""What torch and what stands on it come to here, as one JSON object: `python -m probes.torch_check`.

In a process of its own, as a broken torch may raise anything at its import, or take the process with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from typing import Any

COPY_BYTES = 64 << 20
ROUNDS = 5


def look() -> dict[str, Any]:
    """Raises whatever torch's import raises."""
    import torch

    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "cuda": torch.cuda.is_available(),
        "devices": [],
        "threads": torch.get_num_threads(),
    }
    if found["cuda"]:
        properties = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        found["devices"] = [{"name": p.name, "capability": [p.major, p.minor]} for p in properties]
    from engines import native

    found["kernels"] = native.library is not None
    for name in ("flash_attn", "triton"):
        found[name] = _version(name)
    found["link"] = _cuda_link(torch) if found["cuda"] else _modelled_link()
    return found


def _version(name: str) -> str | None:
    """None where it is not installed; why not, where it cannot be imported."""
    try:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))
    except ModuleNotFoundError as fault:
        return None if fault.name == name else f"broken: {fault}"
    except Exception as fault:
        return f"broken: {type(fault).__name__}: {fault}".splitlines()[0]


def _cuda_link(torch: Any) -> dict[str, Any]:
    """Bytes a second of pinned copies of 64 MiB in both directions, the best of five, by CUDA events."""
    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    rates = []
    for target, source in ((device, host), (host, device)):
        best_ms = float("inf")
        for _ in range(ROUNDS):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            target.copy_(source, non_blocking=True)
            after.record()
            after.synchronize()
            best_ms = min(best_ms, before.elapsed_time(after))
        rates.append(COPY_BYTES / best_ms * 1e3)
    return {"profile": "measured", "measured": True, "h2d_bytes_per_s": rates[0], "d2h_bytes_per_s": rates[1]}


def _modelled_link() -> dict[str, Any]:
    """Here the CPU plays the device: its memory is measured, the link between the two a model."""
    from engines.link import memory_bytes_per_s, modelled

    link = modelled(None)
    return {
        "profile": link.description,
        "measured": False,
        "h2d_bytes_per_s": link.bytes_per_s,
        "d2h_bytes_per_s": link.bytes_per_s,
        "memory_bytes_per_s": memory_bytes_per_s(),
    }


def main() -> None:
    start_s = time.perf_counter()
    with contextlib.redirect_stdout(None):  # libraries may greet
        found = look()
    found["seconds"] = time.perf_counter() - start_s
    print(json.dumps(found))


if __name__ == "__main__":
    main()
