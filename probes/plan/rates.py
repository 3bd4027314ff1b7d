"""What a device achieves: shares of a data sheet's peaks, or figures measured here (`probes.plan.here`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engines.errors import BadRequest
from engines.machines import GB, LATENCY_S, Gpu, links

# Decoding Llama 2 7B in 16 bits at batch 1, gpt-fast reports 104.9 tokens/s on an A100 80GB: 69 % of its bandwidth with
# all that is between the kernels. 80 % while they run, and the launches below, come to the same.
BANDWIDTH_SHARE = 0.8
# Large matrix products reach 60 to 80 % of dense 16-bit peaks; FlashAttention-2 (Dao, 2023) 50 to 73 % of an A100's.
FLOPS_SHARE, ATTENTION_SHARE = 0.6, 0.5
# Kernels of a decode step, counted in the operators of our torch paths, with attention as one. Assumed: how long one
# takes beside its work, replayed within a CUDA graph or launched from Python.
LAYER_KERNELS, STEP_KERNELS, INFINIGEN_SEQUENCE_KERNELS = 28, 40, 45
REPLAYED_S, LAUNCHED_S = 1.5e-6, 5e-6


@dataclass(frozen=True)
class Rates:
    """Bytes and operations a second. `weights_bytes_per_s`: matrices times few rows; `kv_bytes_per_s`: decode
    attention, and `mass_bytes_per_s` when it leaves each key's mass, too; `speculation_bytes_per_s`: InfiniGen's scores
    over its partial keys; `copy_bytes_per_s`: element by element. `linear_flops` and `attention_flops`: of many rows;
    `float32_flops`: eager scores. Seconds by engine: what is fixed in a step, in each of its layers, and in each layer
    for each sequence."""

    weights_bytes_per_s: float
    kv_bytes_per_s: float
    mass_bytes_per_s: float
    speculation_bytes_per_s: float
    copy_bytes_per_s: float
    linear_flops: float
    attention_flops: float
    float32_flops: float
    step_s: Mapping[str, float]
    layer_s: Mapping[str, float]
    sequence_layer_s: Mapping[str, float]


@dataclass(frozen=True)
class Link:
    """One direction: bytes a second, and seconds before the first of a transfer."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.bytes_per_s if size_bytes else 0.0


def of_gpu(gpu: Gpu, bandwidth_share: float = BANDWIDTH_SHARE, flops_share: float = FLOPS_SHARE) -> Rates:
    """Decode steps of the paged engine and of H2O replay a CUDA graph; InfiniGen's are launched kernel by kernel, as
    its host decides layer by layer what moves."""
    bandwidth = gpu.bytes_per_s * bandwidth_share
    replayed, launched = LAYER_KERNELS * REPLAYED_S, LAYER_KERNELS * LAUNCHED_S
    return Rates(
        weights_bytes_per_s=bandwidth,
        kv_bytes_per_s=bandwidth,
        mass_bytes_per_s=bandwidth,
        speculation_bytes_per_s=bandwidth,
        copy_bytes_per_s=bandwidth,
        linear_flops=gpu.flops * flops_share,
        attention_flops=gpu.flops * flops_share * ATTENTION_SHARE / FLOPS_SHARE,
        float32_flops=gpu.float32_flops * flops_share,
        step_s=dict.fromkeys(("vllm", "h2o", "infinigen"), STEP_KERNELS * LAUNCHED_S),
        layer_s={"vllm": replayed, "h2o": replayed, "infinigen": launched},
        sequence_layer_s={"vllm": 0.0, "h2o": 0.0, "infinigen": INFINIGEN_SEQUENCE_KERNELS * LAUNCHED_S},
    )


def link_of(text: str) -> Link:
    """ "pcie4"; "pcie4*7", seven times as fast; "unscaled:25", in GB/s. Raises BadRequest, which lists the known."""
    name, _, factor = text.partition("*")
    name = name.strip()
    try:
        times = float(factor) if factor else 1.0
        rate = float(name.removeprefix("unscaled:")) * GB if name.startswith("unscaled:") else None
    except ValueError:
        times, rate = 0.0, 0.0
    if rate is None and name in links():
        rate = links()[name].bytes_per_s
    total = (rate or 0.0) * times
    if not 0 < total < math.inf:
        raise BadRequest(
            f"unknown link {text!r}: known are {', '.join(links())} and unscaled:<GB/s>, with *7 for 7 times as fast"
        )
    return Link(total, LATENCY_S)
