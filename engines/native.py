"""The C kernels of `csrc`, loaded through ctypes, with tensors for pointers.

`library` is None when there is nothing to load: no compiler when the package was installed, another processor, or
KVTUI_NATIVE=0 in the environment. The functions here check nothing; `engines.kernels` decides when they apply: CPU
tensors, float32 activations and norm weights, last dimensions contiguous and multiples of 16, weights bfloat16 and
contiguous. None of them may be called from two threads at once: they share a scratch area and a pool of threads, as
many as torch uses.
"""

from __future__ import annotations

import ctypes
import os
import platform
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

_P, _N, _F, _I = c_void_p, c_int64, c_float, c_int
_SIGNATURES = {
    "linear": [_P, _N, _P, _F, _P, _P, _P, _N, _N, _N, _N, _I, _P, _I],
    "gated_mlp": [_P, _N, _P, _F, _P, _P, _N, _N, _N, _P, _I],
    "linear8": [_P, _N, _P, _F, _P, _P, _N, _P, _P, *[_N] * 4, _I, _P, _I],
    "gated_mlp8": [_P, _N, _P, _F, _P, _P, _N, _P, _P, *[_N] * 4, _P, _I],
    "widen": [_P, _P, _N, _P, _N, _N, _I],
    "silu_mul": [_P, _P, _N, _N, _I],
    "rms_norm": [_P, _N, _N, _P, _F, _P, _N, _N, _N, _I],
    "rope": [_P, _N, _N, _P, _P, _N, _N, _N, _I],
    "store_kv": [_P, _N, _P, _N, _P, *[_N] * 3, _P, *[_N] * 3, _I, _P, _N, _N, _P, _N, _N, *[_N] * 3],
    "decode_attention": [
        _P,
        _N,
        _P,
        *[_N] * 3,
        _P,
        *[_N] * 3,
        _I,
        _P,
        _N,
        _P,
        _F,
        _P,
        *[_N] * 3,
        _P,
        *[_N] * 5,
        _P,
        _I,
    ],
    "causal_softmax": [_P, _N, _N, _N, _N, _F, _P, _P, _P, _I],
    "column_mass": [_P, _N, _N, _N, _N, _N, _F, _P, _F, _P, _P, _I],
    "speculate": [_P, _P, _N, _N, _I, _F, _F, *[_N] * 5, _P, _P, _I],
    "take": [_P, _N, _P, _P, _N, _P, _N, _P, *[_N] * 7, *[_P] * 5],
}
_RETURNS_COUNT = {"speculate", "take"}


def load(folder: Path) -> ctypes.CDLL | None:
    """The first library in `folder` that this processor and this process can use, or None."""
    if os.environ.get("KVTUI_NATIVE") == "0":
        return None
    if platform.machine() in ("x86_64", "AMD64") and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        return None
    for path in sorted(folder.glob("_native*.so")):
        try:
            loaded = ctypes.CDLL(str(path))
            for name, arguments in _SIGNATURES.items():
                function = getattr(loaded, "kvtui_" + name)
                function.argtypes, function.restype = arguments, _N if name in _RETURNS_COUNT else None
            return loaded
        except (OSError, AttributeError):
            continue
    return None


library = load(Path(__file__).parent)

_scratch = torch.empty(1 << 16)
# How many threads the kernels use; None for as many as torch (see kernels.torch_alone).
threads: int | None = None


def scratch_pointer(count: int) -> int:
    """Address of at least `count` float32 values."""
    global _scratch
    if _scratch.numel() < count:
        _scratch = torch.empty(2 * count)
    return _scratch.data_ptr()


def thread_count() -> int:
    return threads or torch.get_num_threads()


def pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def linear(
    x: Tensor, norm: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None, out: Tensor, add: bool
) -> Tensor:
    """out [T, m] = (or += if `add`) rms_norm(x [T, n]) · weight [m, n]ᵀ + bias; without `norm`, x as it is."""
    rows, width = x.shape
    threads = thread_count()
    assert library is not None
    library.kvtui_linear(
        x.data_ptr(),
        x.stride(0),
        pointer(norm),
        eps,
        weight.data_ptr(),
        pointer(bias),
        out.data_ptr(),
        out.stride(0),
        rows,
        width,
        weight.shape[0],
        add,
        scratch_pointer(rows * width),
        threads,
    )
    return out


def gated_mlp(residual: Tensor, norm: Tensor, eps: float, gate_up: Tensor, down: Tensor) -> Tensor:
    rows, width = residual.shape
    ffn = down.shape[1]
    threads = thread_count()
    assert library is not None
    library.kvtui_gated_mlp(
        residual.data_ptr(),
        residual.stride(0),
        norm.data_ptr(),
        eps,
        gate_up.data_ptr(),
        down.data_ptr(),
        rows,
        width,
        ffn,
        scratch_pointer(rows * (3 * ffn + width)),
        threads,
    )
    return residual


def silu_mul(gate_up: Tensor, out: Tensor) -> Tensor:
    """out [T, ffn] = silu(gate) * up, of gate_up [T, 2 * ffn], both contiguous."""
    assert library is not None
    library.kvtui_silu_mul(gate_up.data_ptr(), out.data_ptr(), *out.shape, thread_count())
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [A, B, n], or [A, n] -> the same shape, contiguous."""
    inner = x.shape[1] if x.dim() == 3 else 1
    out = torch.empty(x.shape)
    assert library is not None
    library.kvtui_rms_norm(
        x.data_ptr(),
        x.stride(0),
        x.stride(1) if x.dim() == 3 else 0,
        weight.data_ptr(),
        eps,
        out.data_ptr(),
        x.shape[0],
        inner,
        x.shape[-1],
        thread_count(),
    )
    return out


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rows, heads, dim = x.shape
    row_stride, head_stride, _ = x.stride()
    assert library is not None
    library.kvtui_rope(
        x.data_ptr(),
        row_stride,
        head_stride,
        cos.data_ptr(),
        sin.data_ptr(),
        rows,
        heads,
        dim,
        thread_count(),
    )
    return x


def store_kv(keys: Tensor, values: Tensor, block: Tensor, offset: Tensor, k: Tensor, v: Tensor) -> None:
    """`block` and `offset` are int64 [T] or [T, G]; k and v [T, G, d], contiguous within a row."""
    k0, k1, k2, _ = keys.stride()
    v0, v1, v2, _ = values.stride()
    by_head = block.dim() == 2
    assert library is not None
    library.kvtui_store_kv(
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        keys.data_ptr(),
        k0,
        k1,
        k2,
        values.data_ptr(),
        v0,
        v1,
        v2,
        keys.dtype == torch.bfloat16,
        block.data_ptr(),
        block.stride(0),
        block.stride(1) if by_head else 0,
        offset.data_ptr(),
        offset.stride(0),
        offset.stride(1) if by_head else 0,
        *k.shape,
    )


def decode_attention(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, scale: float, mass: Tensor | None
) -> Tensor:
    """As `kernels.decode_attention`; tables and lengths int32, lengths contiguous."""
    batch, heads, dim = q.shape
    _, groups, slots, _ = keys.shape
    k0, k1, k2, _ = keys.stride()
    v0, v1, v2, _ = values.stride()
    threads = thread_count()
    out = torch.empty(q.shape)
    # Each thread's queries, the partial results (see native.c) and, for `mass`, every score.
    scratch = threads * heads * dim + (batch + 3 * threads) * heads * (dim + 2)
    span = 0
    if mass is not None:
        span = mass.shape[2]
        scratch += batch * heads * span
    assert library is not None
    library.kvtui_decode_attention(
        q.data_ptr(),
        q.stride(0),
        keys.data_ptr(),
        k0,
        k1,
        k2,
        values.data_ptr(),
        v0,
        v1,
        v2,
        keys.dtype == torch.bfloat16,
        tables.data_ptr(),
        tables.stride(0),
        lengths.data_ptr(),
        scale,
        pointer(mass),
        mass.stride(0) if mass is not None else 0,
        mass.stride(1) if mass is not None else 0,
        span,
        out.data_ptr(),
        batch,
        heads,
        groups,
        slots,
        dim,
        scratch_pointer(scratch),
        threads,
    )
    return out


def causal_softmax(
    scores: Tensor, first: int, scale: float, lse: Tensor | None = None, mass: Tensor | None = None
) -> None:
    """In place on scores [T, n] (rows may lie apart): row r becomes softmax(scale * its first `first` + r + 1 columns),
    zero beyond. lse [T] receives log-sum-exps, mass [n] is increased by the sum over rows; both contiguous."""
    rows, width = scores.shape
    threads = thread_count()
    assert library is not None
    library.kvtui_causal_softmax(
        scores.data_ptr(),
        scores.stride(0),
        rows,
        first,
        width,
        scale,
        pointer(lse),
        pointer(mass),
        scratch_pointer(threads * width),
        threads,
    )


def column_mass(
    scores: Tensor, first: int, every: int, scale: float, lse: Tensor, mass: Tensor, weight: float = 1.0
) -> None:
    """mass [n] += weight * the sum over rows r of exp(scale * scores[r] - lse[r]) over the first `first` + r * `every`
    + 1 columns of scores [T, n] (rows may lie apart); lse [T] and mass contiguous. With a negative `first`, the first
    rows see nothing."""
    rows, width = scores.shape
    threads = thread_count()
    assert library is not None
    library.kvtui_column_mass(
        scores.data_ptr(),
        scores.stride(0),
        rows,
        first,
        every,
        width,
        scale,
        lse.data_ptr(),
        weight,
        mass.data_ptr(),
        scratch_pointer(threads * width),
        threads,
    )


def speculate(q: Tensor, keys: Tensor, scale: float, alpha: float, most: int) -> Tensor:
    """As `kernels.speculate`; q contiguous, keys contiguous along their last dimension."""
    groups, group, columns = q.shape
    slots = torch.empty(groups, most, dtype=torch.int64)
    assert library is not None
    chosen = library.kvtui_speculate(
        q.data_ptr(),
        keys.data_ptr(),
        keys.stride(0),
        keys.stride(1),
        keys.dtype == torch.bfloat16,
        scale,
        alpha,
        groups,
        group,
        columns,
        keys.shape[2],
        most,
        slots.data_ptr(),
        scratch_pointer(2 * groups * keys.shape[2]),
        thread_count(),
    )
    return slots[:, :chosen]


def take(
    place_of: Tensor,
    slot_of: Tensor,
    used: Tensor,
    slots: Tensor,
    own: Tensor,
    now: int,
    first_row: int,
    beyond: int,
    overflow: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One layer of `prefetch.WorkingSet.take`: rows, heads, slots, into. slots contiguous along its last dimension."""
    groups, m = slots.shape
    places = slot_of.shape[1] - 1
    rows = torch.empty(groups, m + 1, dtype=torch.int32)
    missing = torch.empty(3, groups * m, dtype=torch.int64)
    assert library is not None
    count = library.kvtui_take(
        place_of.data_ptr(),
        place_of.shape[1] - 1,
        slot_of.data_ptr(),
        used.data_ptr(),
        places,
        slots.data_ptr(),
        slots.stride(0),
        own.data_ptr(),
        own.stride(0),
        groups,
        m,
        now,
        first_row,
        beyond,
        overflow,
        rows.data_ptr(),
        *(line.data_ptr() for line in missing),
        scratch_pointer(2 * places),
    )
    heads, absent, into = missing[:, :count]
    return rows, heads, absent, into
