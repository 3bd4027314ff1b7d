"""Checks and times the CUDA paths on one GPU. One table; exit status 1 when anything is off, 2 where there is no GPU.

    python -m benchmarks.gpu_check [--model llama-2-7b] [--repeats 20] [--only prefill,decode,engines]

Prefill: column mass (`engines.triton_mass`) and the log-sum-exps that it starts from are held against float64
attention, then timed beside flash attention at a 7B model's shapes, then as the time to the first token of that model
with random weights. Decode: attention of one query, likewise (`benchmarks.gpu_decode`). Engines: whole answers of that
model, with graphs and without, their memory and their link (`benchmarks.gpu_engines`). Times are medians of CUDA events
or of the engines' own clocks, prefill's ways that are compared taking turns.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
import warnings
from collections.abc import Iterator
from statistics import median

import torch
from torch import Tensor

import engines
from benchmarks import gpu_decode, gpu_engines
from benchmarks.gpu_decode import device, median_ms
from benchmarks.gpu_table import Row
from engines import importance, kernels
from engines.model import Model

EVERY = 8
LENGTHS = (4096, 8192)
SECONDS = 240  # for everything, on one H200
PARTS = ("prefill", "decode", "engines")
EXACT_RATIO, SAMPLED_RATIO = 1.6, 1.25  # of flash prefill with scoring over flash prefill without
# Rows, positions, query heads, KV heads, head dimension, dtype: grouped or not, beside the tiles, late starts, one row.
CASES = [
    (1000, 1000, 32, 32, 128, torch.bfloat16),
    (300, 1337, 32, 8, 128, torch.bfloat16),
    (1, 700, 14, 2, 64, torch.bfloat16),
    (129, 400, 8, 4, 80, torch.bfloat16),
    (200, 333, 4, 1, 256, torch.bfloat16),
    (513, 513, 9, 3, 64, torch.float16),
    (257, 700, 8, 2, 128, torch.float32),
]


def tensors(rows: int, length: int, heads: int, groups: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """q [rows, heads, dim], k and v [groups, length, dim]."""
    random = torch.Generator().manual_seed(0)
    shapes = (rows, heads, dim), (groups, length, dim), (groups, length, dim)
    return tuple(torch.randn(shape, generator=random).mul_(1.5).to(device(), dtype) for shape in shapes)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """All of it in float64: out [T, H, d], lse [H, T], probabilities [H, T, n]."""
    rows, heads, _ = q.shape
    wide, values = (t.double().repeat_interleave(heads // len(t), 0) for t in (k, v))
    scores = torch.einsum("thd,hnd->htn", q.double(), wide) * scale
    future = torch.ones(rows, k.shape[1], dtype=torch.bool, device=q.device).triu_(k.shape[1] - rows + 1)
    scores.masked_fill_(future, float("-inf"))
    probabilities = scores.softmax(-1)
    return torch.einsum("htn,hnd->thd", probabilities, values), scores.logsumexp(-1), probabilities


def errors(rows: int, length: int, heads: int, groups: int, dim: int, dtype: torch.dtype) -> Iterator[Row]:
    """Against float64: of attention in its dtype's terms, of log-sum-exps, and of masses in relation to them."""
    q, k, v = tensors(rows, length, heads, groups, dim, dtype)
    scale = dim**-0.5
    out, lse, probabilities = attention(q, k, v, scale)
    name = f"{rows} of {length}, {heads}/{groups} of {dim}, {str(dtype).removeprefix('torch.')}"
    found, norms = kernels.flash_attention(q, k, v, scale)
    rounding = 1e-4 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    yield Row(f"attention: {name}", ((found - out).abs() / (1 + out.abs())).max().item(), "", rounding)
    yield Row(f"log-sum-exp: {name}", (norms - lse).abs().max().item(), "", 1e-3)
    for every in (1, EVERY):
        chosen = probabilities[:, (rows - 1) % every :: every]
        expected = chosen.reshape(groups, -1, length).sum(1) * (rows / chosen.shape[1])
        mass = importance.column_mass(q, k, lse.float(), scale, every)
        error = ((mass - expected).abs() / (1e-3 + expected)).max().item()
        yield Row(f"mass, every {every}: {name}", error, "", 1e-3)


def right(cases: list[tuple[int, int, int, int, int, torch.dtype]]) -> list[Row]:
    """Of each kind of error the worst, in terms of its limit."""
    kinds = zip(*(errors(*case) for case in cases), strict=True)
    return [max(kind, key=lambda row: (row.off, row.value / (row.limit or 1))) for kind in kinds]


def fast(groups: int, length: int, repeats: int) -> Iterator[Row]:
    """Flash attention with scoring over flash attention alone, and what scoring takes of the allocator's memory."""
    heads, dim = 32, 128
    q, k, v = tensors(length, length, heads, groups, dim, torch.bfloat16)
    scale = dim**-0.5
    _, lse = kernels.flash_attention(q, k, v, scale)
    name = f"n={length}, heads {heads}/{groups} of {dim}"
    flash, exact, sampled = median_ms(
        [
            lambda: kernels.flash_attention(q, k, v, scale),
            lambda: importance.column_mass(q, k, lse, scale),
            lambda: importance.column_mass(q, k, lse, scale, EVERY),
        ],
        repeats,
    )
    yield Row(f"flash attention: {name}", flash, "ms")
    yield Row(f"mass of all rows: {name}", exact, "ms")
    yield Row(f"mass of every {EVERY}th row: {name}", sampled, "ms")
    yield Row(f"with exact scoring over without: {name}", (flash + exact) / flash, "×", EXACT_RATIO)
    yield Row(f"with sampled scoring over without: {name}", (flash + sampled) / flash, "×", SAMPLED_RATIO)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    importance.column_mass(q, k, lse, scale)
    peak = torch.cuda.max_memory_allocated() - before
    charged = importance.tile_bytes(heads, groups, length, length, q.device)
    yield Row(f"memory over that of eager scores: {name}", peak / (4 * heads * length**2), "", 0.02)
    yield Row(f"memory over what the pool is charged: {name}", peak / charged, "", 1.05)


def first_tokens(model: Model, repeats: int) -> Iterator[Row]:
    """Time to the first token of a whole model, random weights, with scoring over without."""
    ids = gpu_engines.prompt(model)  # a prompt that fills the context would leave no room for a token
    name, length = model.name, len(ids)
    ways = [
        engines.create_engine("vllm", model, chunk_tokens=length, prefix_sharing=False),
        *(engines.create_engine("h2o", model, scoring=scoring) for scoring in ("flash", "sampled")),
    ]
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(repeats + 1):
        for engine, spent in zip(ways, times, strict=True):
            engine.reset()
            seconds = engine.generate(ids, 1).ttft_s or float("nan")
            if turn:
                spent.append(seconds)
    plain, exact, sampled = map(median, times)
    yield Row(f"{name}, n={length}: first token without scoring", plain * 1e3, "ms")
    yield Row(f"{name}, n={length}: with exact scoring over without", exact / plain, "×", EXACT_RATIO)
    yield Row(f"{name}, n={length}: with sampled scoring over without", sampled / plain, "×", SAMPLED_RATIO)


def version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def rows(name: str, repeats: int, parts: list[str]) -> Iterator[Row]:
    started = time.perf_counter()
    if "prefill" in parts:
        yield Row("Triton's mass kernel in use", importance._triton("cuda") is not None, "", 1, at_least=True)
        yield from right(CASES)
        for groups in (32, 8):
            for length in LENGTHS:
                yield from fast(groups, length, repeats)
    bandwidth = gpu_decode.copy_bytes_per_s()
    yield Row("a copy within the device, read and written", bandwidth / 1e9, "GB/s")
    if "decode" in parts:
        yield from gpu_decode.rows(bandwidth, repeats)
    if "prefill" in parts or "engines" in parts:
        model = engines.load_model(name, device=device(), random_weights=True)
        if "prefill" in parts:
            yield from first_tokens(model, max(3, repeats // 4))
        if "engines" in parts:
            yield from gpu_engines.rows(model, bandwidth)
    yield Row("all of this", time.perf_counter() - started, "s", SECONDS)


def chosen(names: str) -> list[str]:
    """The parts by name; raises ArgumentTypeError for others."""
    parts = names.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-2-7b")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", type=chosen, default=list(PARTS), help=f"of {', '.join(PARTS)}, with commas")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_check: no CUDA device here; nothing was checked", file=sys.stderr)
        return 2
    packages = ", ".join(map(version, ("torch", "triton", "flash-attn")))
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, {packages}")
    off = 0
    with torch.inference_mode(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for row in rows(options.model, options.repeats, options.only):
            print(row, flush=True)
            off += row.off
    for slower in (w for w in warned if "more slowly" in str(w.message)):  # a path that fell back is a path unchecked
        print(f"OFF: {slower.message}")
        off += 1
    print(f"{off} off" if off else "all within limits")
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
