"""GPUs and host-device links by name: `data/machines.toml`, where each figure has its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from engines.errors import BadRequest

GB = 1e9
LATENCY_S = 10e-6  # of one transfer, from the request to its first byte: a few calls into the driver


@dataclass(frozen=True)
class Gpu:
    """`memory_bytes` in all, `bytes_per_s` of its memory, `flops` a second (dense, 16 bits) and `float32_flops`."""

    name: str
    label: str
    memory_bytes: int
    bytes_per_s: float
    flops: float
    float32_flops: float
    source: str


@dataclass(frozen=True)
class LinkKind:
    """`bytes_per_s` in one direction. `gpu`: whose memory a device that is a stand-in takes the link's ratio to."""

    name: str
    label: str
    bytes_per_s: float
    gpu: str
    source: str


@cache
def gpus() -> dict[str, Gpu]:
    return {
        name: Gpu(
            name=name,
            label=row["label"],
            memory_bytes=row["memory_mib"] << 20,
            bytes_per_s=row["gb_per_s"] * GB,
            flops=row["tflops"] * 1e12,
            float32_flops=row["float32_tflops"] * 1e12,
            source=row["source"],
        )
        for name, row in _table()["gpu"].items()
    }


@cache
def links() -> dict[str, LinkKind]:
    return {
        name: LinkKind(name, row["label"], row["gb_per_s"] * GB, row["gpu"], row["source"])
        for name, row in _table()["link"].items()
    }


def gpu(name: str) -> Gpu:
    """Raises BadRequest, which lists those that are known."""
    if name not in gpus():
        raise BadRequest(f"unknown GPU {name!r}: known are {', '.join(gpus())}")
    return gpus()[name]


@cache
def _table() -> dict[str, dict[str, dict]]:
    return tomllib.loads(resources.files("engines").joinpath("data/machines.toml").read_text("utf-8"))
