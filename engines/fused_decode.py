"""Which fused kernel decodes on CUDA: flash-attn's for paged KV where it takes blocks like ours, else Triton's.

flash-attn wants [blocks, slots, heads, d] and only the last dimension packed, so our [N, G, S, d] goes in as a view.
Its version 2 takes pages of 256 slots and their multiples only, version 3 (`flash_attn_interface`) of any size; neither
gives probabilities back. What an installed one takes is found out by a trial, once.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

_PACKAGES = (("flash_attn_interface", "page_table"), ("flash_attn", "block_table"))
_PAGE_SLOTS = 16  # entries that are blocks of their own are for Triton

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor, float], Tensor]


def fused_decode(
    q: Tensor, keys: Tensor, values: Tensor, tables: Tensor, lengths: Tensor, scale: float, mass: Tensor | None
) -> Tensor | None:
    """As `kernels.decode_attention`, or None where no fused kernel is for such tensors. Nothing is read back."""
    kind, slots = q.device.type, keys.shape[2]
    if mass is None and q.dtype == keys.dtype and q.shape[2] % 8 == 0 and q.shape[2] <= 256:
        alone = len(q) == len(keys) == tables.shape[1] == 1  # one sequence in one block needs no table
        if (alone or slots >= _PAGE_SLOTS) and (attend := _flash(kind, q.dtype, None if alone else slots)) is not None:
            return attend(q, keys, values, None if alone else tables, lengths, scale)
    if (ours := _triton(kind)) is not None:
        return ours.decode_attention(q, keys, values, tables, lengths, scale, mass)
    return None


@cache
def _flash(device_type: str, dtype: torch.dtype, slots: int | None) -> Attend | None:
    """flash-attn's function for pages of so many slots (None: for KV in one piece), if an installed one takes them."""
    if device_type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return None
    for module, argument in _PACKAGES:
        try:
            attend = paged(importlib.import_module(module).flash_attn_with_kvcache, argument)
            if works(attend, device_type, dtype, slots):
                return attend
        except Exception:  # not installed, made for another torch, or not for such pages: there is Triton
            continue
    return None


def paged(package: Callable[..., Tensor], argument: str) -> Attend:
    """flash-attn's `flash_attn_with_kvcache`, which calls its block tables so, in our terms."""

    def attend(q: Tensor, keys: Tensor, values: Tensor, tables: Tensor | None, lengths: Tensor, scale: float) -> Tensor:
        out = package(
            q.unsqueeze(1),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            cache_seqlens=lengths.to(torch.int32),
            softmax_scale=scale,
            **({} if tables is None else {argument: tables}),
        )
        return out[:, 0]

    return attend


def works(attend: Attend, device_type: str, dtype: torch.dtype, slots: int | None) -> bool:
    """Whether it attends to what a table says: all of one block, and the first slot of another. What it raises is
    passed on."""
    size, dim = slots or 64, 64
    keys = torch.zeros(1 if slots is None else 3, 1, size, dim, dtype=dtype, device=device_type)
    values = torch.ones_like(keys)
    table = None if slots is None else torch.tensor([[2, 0]], dtype=torch.int32, device=device_type)
    values[0, :, 0 if slots else size - 2] = size + 2.0
    length = size + 1 if slots else size - 1
    lengths = torch.tensor([length], dtype=torch.int32, device=device_type)
    out = attend(keys[:1, :, 0].expand(1, 2, dim), keys, values, table, lengths, 1.0)
    return out.shape == (1, 2, dim) and bool((out.float() - (length + size + 1) / length).abs().max() < 0.05)


@cache
def _triton(device_type: str) -> ModuleType | None:
    """Our kernel if it runs on such a device. Triton comes with CUDA builds of torch; it wants a C compiler."""
    if device_type != "cuda":
        return None
    try:
        from engines import triton_decode

        row = torch.zeros(1, 1, 16, 16, device=device_type)
        table, lengths = (torch.tensor(one, dtype=torch.int32, device=device_type) for one in ([[0]], [1]))
        triton_decode.decode_attention(row[0, :, :1], row, row, table, lengths, 1.0, row[0, :, :1, :1].contiguous())
    except ImportError:
        return None
    except Exception as fault:  # whatever a compiler, a driver or a card that is too old may raise
        warnings.warn(f"decoding goes without Triton, more slowly: {fault}", stacklevel=2)
        return None
    return triton_decode
