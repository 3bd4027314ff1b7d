"""Decode attention in Triton, in its interpreter on the CPU (see conftest): against float64, and against torch.

With TRITON_INTERPRET=0 and a CUDA device, there. What the interpreter cannot show, that the compiler takes the kernels,
is tried in a process of its own.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engines import kernels

pytest.importorskip("triton", reason="Triton is not installed (it is made for Linux only)")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("Triton has no CUDA device here, and TRITON_INTERPRET is off", allow_module_level=True)
from engines import triton_decode  # noqa: E402 - it needs Triton

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
NOISE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def pool(count: int, groups: int, slots: int, dim: int, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Blocks [N, G, S, d] that lie apart in memory, with NaN between them: what is not to be read."""
    whole = torch.full((groups, count, 2 * slots, dim + 8), math.nan)
    blocks = whole.transpose(0, 1)[:, :, ::2, :dim]
    blocks.copy_(torch.randn(blocks.shape, generator=random))
    return whole.to(DEVICE, dtype).transpose(0, 1)[:, :, ::2, :dim]


def by_hand(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [H, d], k and v [G, n, d] -> (out [H, d], mass [G, n]), in float64."""
    stacked = q.double().view(len(k), -1, q.shape[1])
    shares = torch.softmax(stacked @ k.double().mT * scale, -1)
    return (shares @ v.double()).view(q.shape), shares.sum(1)


def compare(
    heads: int,
    groups: int,
    dim: int,
    lengths: list[int],
    *,
    slots: int = 16,
    width: int | None = None,
    dtype: torch.dtype = torch.float32,
    more_mass: int = 3,
) -> None:
    """Whether mass is asked for or not, the output is that of float64; so is the mass, and zero beyond the length."""
    random = torch.Generator().manual_seed(heads * dim + sum(lengths))
    width = width or -(-max(lengths) // slots)
    count = len(lengths) * width + 1
    keys, values = (pool(count, groups, slots, dim, dtype, random) for _ in range(2))
    order = torch.randperm(count, generator=random)[: len(lengths) * width].view(len(lengths), width)
    tables = order.int().to(DEVICE)
    q = (torch.randn(len(lengths), heads + 2, dim, generator=random) * 3).to(DEVICE, dtype)[:, :heads]
    scale = dim**-0.5
    mass = torch.full((len(lengths), groups, max(lengths) + more_mass), math.nan, device=DEVICE)
    counted = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    out = triton_decode.decode_attention(q, keys, values, tables, counted, scale, mass)
    assert out.dtype == dtype
    assert torch.equal(out, triton_decode.decode_attention(q, keys, values, tables, counted.long(), scale))
    for b, length in enumerate(lengths):
        k, v = (kernels.gather_blocks(t, tables[b].long(), length) for t in (keys, values))
        wanted, wanted_mass = by_hand(q[b], k, v, scale)
        error = (out[b] - wanted).abs() / (1 + wanted.abs())
        assert error.max() <= NOISE[dtype]
        torch.testing.assert_close(mass[b, :, :length].double(), wanted_mass, rtol=1e-4, atol=1e-5)
        assert (mass[b, :, length:] == 0).all()


@pytest.mark.parametrize(
    ("heads", "groups", "dim"), [(4, 4, 128), (9, 3, 64), (14, 2, 16), (8, 1, 80), (20, 1, 32), (2, 2, 256), (3, 1, 24)]
)
def test_heads_and_dimensions(heads: int, groups: int, dim: int) -> None:
    compare(heads, groups, dim, [37, 16])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes(dtype: torch.dtype) -> None:
    compare(4, 2, 64, [50, 16], dtype=dtype)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 65])
def test_lengths_beside_the_blocks_and_the_tiles(length: int) -> None:
    compare(2, 1, 16, [length])


def test_ragged_lengths_in_a_table_wider_than_any_of_them() -> None:
    """A graph's table is as wide as its bucket: what lies beyond the lengths is never read, and never counts."""
    compare(4, 2, 16, [1, 90, 16, 33], width=12)


@pytest.mark.parametrize("more_mass", [-20, 0, 700])
def test_mass_narrower_and_wider_than_the_table(more_mass: int) -> None:
    if more_mass >= 0:
        compare(2, 1, 16, [40, 3], more_mass=more_mass)
        return
    q, keys = torch.randn(1, 2, 16, device=DEVICE), torch.randn(3, 1, 16, 16, device=DEVICE)
    table, lengths = torch.tensor([[2, 0, 1]], dtype=torch.int32, device=DEVICE), torch.tensor([40], device=DEVICE)
    whole, part = torch.empty(1, 1, 40, device=DEVICE), torch.empty(1, 1, 20, device=DEVICE)
    for mass in (whole, part):
        triton_decode.decode_attention(q, keys, keys, table, lengths, 0.25, mass)
    assert torch.equal(part, whole[:, :, :20])


def test_one_block_of_any_size() -> None:
    """What InfiniGen fetched: one sequence in one block, of as many slots as there are entries."""
    for slots in (1, 5, 100):
        compare(4, 2, 32, [slots], slots=slots, more_mass=0)


def test_every_entry_a_block() -> None:
    """InfiniGen+: each KV head is a sequence of its own, with a table of its own, and each entry a block."""
    compare(3, 1, 32, [40, 7, 1], slots=1)


@pytest.mark.parametrize("parts", [1, 4, 16])
def test_the_number_of_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    monkeypatch.setattr(triton_decode, "_parts", lambda *given: parts)
    compare(2, 1, 16, [300, 1, 33])


def test_parts_fill_the_device_and_are_no_shorter_than_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_decode, "_multiprocessors", lambda device: 132)
    assert triton_decode._parts(32, 4096, 64, DEVICE) == 16
    assert triton_decode._parts(8, 4096, 64, DEVICE) == 64
    assert triton_decode._parts(32, 100, 64, DEVICE) == 2
    assert triton_decode._parts(4096, 4096, 64, DEVICE) == 1


def test_the_same_as_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "use_native", False)
    random = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(9, 2, 16, 32, generator=random).to(DEVICE) for _ in range(2))
    q = torch.randn(3, 4, 32, generator=random).to(DEVICE)
    tables = torch.tensor([[8, 0, 2], [1, 1, 1], [5, 6, 7]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([48, 5, 17], device=DEVICE)
    masses = [torch.empty(3, 2, 48, device=DEVICE) for _ in range(2)]
    ours = triton_decode.decode_attention(q, keys, values, tables, lengths, 0.2, masses[0])
    monkeypatch.setattr(kernels, "fused_decode", lambda *given: None)
    theirs = kernels.decode_attention(q, keys, values, tables, lengths, 0.2, masses[1])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(masses[0], masses[1], rtol=1e-5, atol=1e-5)


def test_the_compiler_takes_every_kernel() -> None:
    if sys.platform != "linux":
        pytest.skip("Triton is made for Linux only")
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    root = Path(__file__).parent.parent
    found = subprocess.run(
        [sys.executable, "-m", "tests.compiled"], cwd=root, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.count("bytes of shared memory") == 7
