"""GPU checks of decode attention: against float64, and against the bandwidth that a copy reaches on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch import Tensor

from benchmarks.gpu_table import Row
from engines import fused_decode, kernels
from engines.memory import BLOCK_TOKENS

# Lengths, query heads, KV heads, head dimension, slots a block, dtype.
CASES = [
    ((4096, 1, 15, 16, 17, 1000), 32, 32, 128, 16, torch.bfloat16),
    ((700, 64, 65), 32, 8, 128, 16, torch.float16),
    ((33, 2048), 14, 2, 64, 16, torch.bfloat16),
    ((500, 31), 8, 4, 80, 16, torch.bfloat16),
    ((129,), 8, 2, 256, 16, torch.float32),
    ((1337,), 32, 8, 128, 1337, torch.bfloat16),
    ((300, 300), 4, 1, 128, 1, torch.bfloat16),
]
LENGTH = 4096
PAGED_SHARE = 0.5  # of the copy's bandwidth that attention alone reaches, at least


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def layer(
    lengths: tuple[int, ...], heads: int, groups: int, dim: int, slots: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q [B, H, d], keys and values [N, G, S, d] with every sequence's blocks scattered, tables, lengths."""
    random = torch.Generator().manual_seed(sum(lengths))
    width = -(-max(lengths) // slots)
    count = len(lengths) * width
    keys, values = (torch.randn(count, groups, slots, dim, generator=random).to(device(), dtype) for _ in range(2))
    tables = torch.randperm(count, generator=random).view(len(lengths), width).int().to(device())
    q = torch.randn(len(lengths), heads, dim, generator=random).mul_(2).to(device(), dtype)
    return q, keys, values, tables, torch.tensor(lengths, dtype=torch.int32, device=device())


def errors(lengths: tuple[int, ...], heads: int, groups: int, dim: int, slots: int, dtype: torch.dtype) -> list[Row]:
    """Of whatever decodes here, of Triton's kernel, and of its masses: the largest of all sequences."""
    from engines import triton_decode  # it needs Triton

    q, keys, values, tables, counted = layer(lengths, heads, groups, dim, slots, dtype)
    scale = dim**-0.5
    mass = torch.full((len(lengths), groups, max(lengths)), torch.nan, device=q.device)
    used = kernels.decode_attention(q, keys, values, tables, counted, scale)
    ours = triton_decode.decode_attention(q, keys, values, tables, counted, scale, mass)
    worst = [0.0, 0.0, 0.0]
    for b, length in enumerate(lengths):
        k, v = (kernels.gather_blocks(t, tables[b].long(), length, torch.float64) for t in (keys, values))
        shares = torch.softmax(q[b].double().view(groups, -1, dim) @ k.mT * scale, -1)
        out = (shares @ v).view(heads, dim)
        expected = torch.zeros(groups, max(lengths), dtype=torch.float64, device=q.device)
        expected[:, :length] = shares.sum(1)
        found = ((used[b], out), (ours[b], out), (mass[b], expected))
        for place, (one, wanted) in enumerate(found):
            error = ((one - wanted).abs() / (1 + wanted.abs())).max().item()
            worst[place] = error if error != error else max(worst[place], error)
    rounding = 1e-4 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    name = f"{heads}/{groups} of {dim}, blocks of {slots}, {str(dtype).removeprefix('torch.')}"
    return [
        Row(f"decode: {name}", worst[0], "", rounding),
        Row(f"decode in Triton: {name}", worst[1], "", rounding),
        Row(f"decode's mass: {name}", worst[2], "", 1e-3),
    ]


def median_ms(works: list[Callable[[], object]], repeats: int) -> list[float]:
    """Of each, all taking turns."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(repeats + 3):  # the first three compile and warm up
        for work, spent in zip(works, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            if turn >= 3:
                spent.append(start.elapsed_time(end))
    return [median(spent) for spent in times]


def spent_ms(work: Callable[[], object], repeats: int) -> float:
    """Of one alone."""
    return median_ms([work], repeats)[0]


def copy_bytes_per_s(repeats: int = 10) -> float:
    """What a copy of 2 GiB within the device reads and writes a second."""
    source = torch.zeros(1 << 30, dtype=torch.int16, device=device())
    target = torch.empty_like(source)
    return 2 * source.nbytes / (spent_ms(lambda: target.copy_(source), repeats) / 1e3)


def fast(bandwidth: float, repeats: int) -> Iterator[Row]:
    """A layer of a 7B model after the other, so that nothing is read from a cache: time, and share of the bandwidth."""
    layers = 16
    for groups in (32, 8):
        q, keys, values, tables, lengths = layer((LENGTH,), 32, groups, 128, BLOCK_TOKENS, torch.bfloat16)
        stacks = [(keys.clone(), values.clone()) for _ in range(layers)]
        mass = torch.empty(1, groups, LENGTH, device=q.device)
        name = f"n={LENGTH}, heads 32/{groups} of 128"

        def attend(
            mass: Tensor | None, q: Tensor = q, tables: Tensor = tables, lengths: Tensor = lengths, stacks=stacks
        ) -> None:
            for keys, values in stacks:
                kernels.decode_attention(q, keys, values, tables, lengths, 128**-0.5, mass)

        read = 2 * keys.nbytes
        for what, wanted in (("decode attention", None), ("decode attention with mass", mass)):
            # Recorded, or at 20 µs a layer it would be the host that is timed.
            graph = torch.cuda.CUDAGraph()
            attend(wanted)
            with torch.cuda.graph(graph):
                attend(wanted)
            ms = spent_ms(graph.replay, repeats) / layers
            share = read / (ms / 1e3) / bandwidth
            yield Row(f"{what}: {name}", ms * 1e3, "µs")
            # With few KV heads there is so little to read that launches are a good part of it; mass is more work.
            limit = PAGED_SHARE if groups == 32 and wanted is None else None
            yield Row(f"its share of the copy's bandwidth: {name}", share, "", limit, at_least=True)


def rows(bandwidth: float, repeats: int) -> Iterator[Row]:
    in_use = fused_decode._flash("cuda", torch.bfloat16, BLOCK_TOKENS)
    yield Row("flash-attn decodes from our blocks (else Triton)", in_use is not None)
    yield Row("Triton's decode kernel in use", fused_decode._triton("cuda") is not None, "", 1, at_least=True)
    for case in CASES:
        yield from errors(*case)
    yield from fast(bandwidth, repeats)
