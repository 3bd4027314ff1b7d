"""The CPU kernels against the machine's read bandwidth, one JSON line each.

    python -m benchmarks.kernels [--torch] [--contexts 1024,4096] [--repeats 20]

Shapes are SmolLM2-135M's. Weights and KV blocks of all layers take turns, so that nothing is read from a cache; times
are minima. `step` is everything a decoded token reads: all layers and the output projection; `floor_ms` is the time
that reading those bytes takes at the measured bandwidth. `--torch` times the paths without the C library.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from engines import kernels

LAYERS, HIDDEN, HEADS, GROUPS, DIM, FFN, VOCAB, BLOCK = 30, 576, 9, 3, 64, 1536, 49152, 16
SCALE = DIM**-0.5


def fastest(work: Callable[[], object], repeats: int) -> float:
    """Seconds."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def report(name: str, seconds: float, **figures: float) -> None:
    print(json.dumps({"kernel": name, "ms": round(seconds * 1e3, 3)} | {k: round(v, 2) for k, v in figures.items()}))


def weights(*shape: int) -> Tensor:
    return kernels.allocate(shape, torch.bfloat16).normal_(std=0.02)


def read_bandwidth(repeats: int) -> float:
    """Bytes a second that torch's own sum reads with all threads."""
    numbers = kernels.allocate((64 << 20,), torch.float32).zero_()
    return numbers.nbytes / fastest(numbers.sum, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--contexts", default="1024,4096")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    kernels.use_native = kernels.use_native and not options.torch
    repeats = options.repeats
    bandwidth = read_bandwidth(repeats)
    report("read", 0, gb_per_s=bandwidth / 1e9)

    qkv, out = weights(LAYERS, (HEADS + 2 * GROUPS) * DIM, HIDDEN), weights(LAYERS, HIDDEN, HEADS * DIM)
    gate_up, down, head = weights(LAYERS, 2 * FFN, HIDDEN), weights(LAYERS, HIDDEN, FFN), weights(VOCAB, HIDDEN)
    norm = torch.ones(HIDDEN)
    for rows in (1, 8):
        x = torch.randn(rows, HIDDEN)
        for name, matrices in (("linear qkv", qkv), ("linear gate/up", gate_up)):
            seconds = fastest(lambda x=x, m=matrices: [kernels.linear(x, w) for w in m], repeats)  # type: ignore[misc]
            report(f"{name}, {rows} rows", seconds, gb_per_s=matrices.nbytes / seconds / 1e9)
        mlp = fastest(
            lambda x=x: [kernels.gated_mlp(x, norm, 1e-5, g, d) for g, d in zip(gate_up, down, strict=True)],  # type: ignore[misc]
            repeats,
        )
        report(f"gated_mlp, {rows} rows", mlp, gb_per_s=(gate_up.nbytes + down.nbytes) / mlp / 1e9)

    for context in map(int, options.contexts.split(",")):
        blocks = -(-context // BLOCK)
        keys, values = (weights(LAYERS, blocks, GROUPS, BLOCK, DIM) for _ in range(2))
        table, lengths = torch.randperm(blocks).int().view(1, -1), torch.tensor([context], dtype=torch.int32)
        block, offset = torch.tensor([blocks - 1]), torch.tensor([BLOCK - 1])
        cos, sin, q = torch.ones(1, DIM // 2), torch.zeros(1, DIM // 2), torch.randn(1, HEADS, DIM)
        mass = torch.empty(1, GROUPS, context)

        def attend(mass: Tensor | None, keys=keys, values=values, q=q, table=table, lengths=lengths) -> None:
            for k, v in zip(keys, values, strict=True):
                kernels.decode_attention(q, k, v, table, lengths, SCALE, mass)

        def step(keys=keys, values=values, table=table, lengths=lengths, block=block, offset=offset, cos=cos, sin=sin):
            x = torch.randn(1, HIDDEN)
            for i in range(LAYERS):
                rows = kernels.norm_linear(x, norm, 1e-5, qkv[i]).view(1, -1, DIM)
                kernels.rope(rows[:, : HEADS + GROUPS], cos, sin)
                q, k, v = rows.split([HEADS, GROUPS, GROUPS], dim=1)
                kernels.store_kv(keys[i], values[i], block, offset, k, v)
                attended = kernels.decode_attention(q, keys[i], values[i], table, lengths, SCALE)
                kernels.add_linear(x, attended.view(1, -1), out[i])
                kernels.gated_mlp(x, norm, 1e-5, gate_up[i], down[i])
            kernels.norm_linear(x, norm, 1e-5, head)

        kv_bytes = keys.nbytes + values.nbytes
        for name, wanted in (("decode_attention", None), ("decode_attention with mass", mass)):
            seconds = fastest(lambda wanted=wanted: attend(wanted), repeats)  # type: ignore[misc]
            report(f"{name}, {context} slots", seconds, gb_per_s=kv_bytes / seconds / 1e9)
        seconds = fastest(step, repeats)
        read = sum(w.nbytes for w in (qkv, out, gate_up, down, head)) + kv_bytes
        report(f"step, {context} slots", seconds, gb_per_s=read / seconds / 1e9, floor_ms=read / bandwidth * 1e3)

        x = torch.randn(context, HIDDEN)
        seconds = fastest(lambda x=x: kernels.linear(x, gate_up[0]), 5)  # type: ignore[misc]
        report(f"linear gate/up, {context} rows", seconds, gflops=2 * context * gate_up[0].numel() / seconds / 1e9)
        q, k = torch.randn(context, HEADS, DIM), torch.randn(GROUPS, context, DIM)
        report(f"flash_attention, {context} rows", fastest(lambda q=q, k=k: kernels.flash_attention(q, k, k, SCALE), 3))  # type: ignore[misc]
        scores = kernels.allocate((HEADS, context, context), torch.float32)
        eager = fastest(
            lambda q=q, k=k, s=scores: kernels.eager_attention(q.transpose(0, 1), k, k, s, SCALE),  # type: ignore[misc]
            3,
        )
        report(f"eager_attention, {context} rows", eager)


if __name__ == "__main__":
    main()
