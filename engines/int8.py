"""8-bit weights: how they are stored, and the C kernels of `csrc/int8.c` for them.

In groups of 32 along a row, a weight is its code, -128 .. 127, times its group's scale plus its group's offset: 36
bytes for 32 weights. Scale and offset are bfloat16, rounded before the codes are chosen. A group is stored
symmetrically (offset 0) or from its least to its greatest weight, whichever comes nearer. 32 is the block of the common
GGUF formats, so weights that were once Q8_0 or Q4_1 lose next to nothing here.

The C kernels take activations as 14-bit whole numbers in groups of 32, which loses a hundredth of what the weights
lose. `engines.kernels` decides when they apply, and computes everything else from widened rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines import native

GROUP = 32
_ROW_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Int8Weight:
    """A weight [out, in]: `codes` int8 [out, in rounded up to whole groups], and `scales` bfloat16 [out, groups, 2],
    each group's scale and offset; both contiguous. `width` is in; what lies beyond it meets activations of 0."""

    codes: Tensor
    scales: Tensor
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.width

    @property
    def groups(self) -> int:
        return self.codes.shape[1] // GROUP

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def __getitem__(self, rows: slice) -> Int8Weight:
        """Some of the rows, in step, without a copy."""
        return Int8Weight(self.codes[rows], self.scales[rows], self.width)

    def gather(self, ids: Tensor) -> Tensor:
        """Rows `ids` [T], widened: float32 [T, in]."""
        return _times(self.codes[ids], self.scales[ids])[:, : self.width]

    def widen(self, out: Tensor) -> Tensor:
        """out [out, in] float32, contiguous = the weight; by torch."""
        return out.copy_(_times(self.codes, self.scales)[:, : self.width])


def _times(codes: Tensor, scales: Tensor) -> Tensor:
    scale, offset = scales.float().unsqueeze(-1).unbind(2)
    return (codes.view(*scale.shape[:2], GROUP) * scale + offset).flatten(1)


def quantise(weight: Tensor) -> Int8Weight:
    """Of a float weight [out, in], a slice of rows at a time."""
    height, width = weight.shape
    groups = -(-width // GROUP)
    codes = torch.empty(height, groups * GROUP, dtype=torch.int8)
    scales = torch.empty(height, groups, 2, dtype=torch.bfloat16)
    rows = max(1, _ROW_ELEMENTS // (groups * GROUP))
    for start in range(0, height, rows):
        part = weight[start : start + rows].float()
        if width % GROUP:
            part = torch.nn.functional.pad(part, (0, groups * GROUP - width))
        part = part.view(-1, groups, GROUP)
        low, high = part.amin(-1), part.amax(-1)
        even = _grouped(part, torch.maximum(high, -low) / 127, torch.zeros_like(low))
        ranged = _grouped(part, (high - low) / 255, (high + low) / 2 + (high - low) / 510)
        nearer = (ranged[2] < even[2]).unsqueeze(-1)
        codes[start : start + rows] = torch.where(nearer, ranged[0], even[0]).flatten(1)
        scales[start : start + rows] = torch.where(nearer, ranged[1], even[1])
    return Int8Weight(codes, scales, width)


def _grouped(part: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of part [rows, groups, 32]: codes, scale and offset side by side as they are stored, squared error a group."""
    scales = torch.stack([scale, offset], -1).bfloat16()
    scale, offset = scales.float().unsqueeze(-1).unbind(2)
    # A group of equal weights may have the scale 0, and codes of 0 whatever they are divided by.
    codes = ((part - offset) / scale.clamp_min(torch.finfo(torch.float32).tiny)).round_().clamp_(-128, 127)
    error = (codes * scale + offset - part).square_().sum(-1)
    return codes.to(torch.int8), scales, error


def linear(
    x: Tensor, norm: Tensor | None, eps: float, weight: Int8Weight, bias: Tensor | None, out: Tensor, add: bool
) -> Tensor:
    """As `native.linear`."""
    rows, width = x.shape
    groups = weight.groups
    threads = native.thread_count()
    assert native.library is not None
    native.library.kvtui_linear8(
        x.data_ptr(),
        x.stride(0),
        native.pointer(norm),
        eps,
        weight.codes.data_ptr(),
        weight.scales.data_ptr(),
        groups,
        native.pointer(bias),
        out.data_ptr(),
        out.stride(0),
        rows,
        width,
        weight.codes.shape[0],
        add,
        native.scratch_pointer(_room(rows, groups)),
        threads,
    )
    return out


def gated_mlp(residual: Tensor, norm: Tensor, eps: float, gate_up: Int8Weight, down: Int8Weight) -> Tensor:
    """As `native.gated_mlp`."""
    rows, width = residual.shape
    groups, down_groups, ffn = gate_up.groups, down.groups, down.width
    threads = native.thread_count()
    assert native.library is not None
    native.library.kvtui_gated_mlp8(
        residual.data_ptr(),
        residual.stride(0),
        norm.data_ptr(),
        eps,
        gate_up.codes.data_ptr(),
        gate_up.scales.data_ptr(),
        groups,
        down.codes.data_ptr(),
        down.scales.data_ptr(),
        down_groups,
        rows,
        width,
        ffn,
        native.scratch_pointer(2 * rows * ffn + _room(rows, groups) + _room(rows, down_groups)),
        threads,
    )
    return residual


def _room(rows: int, groups: int) -> int:
    """float32 values that so many rows of activations take, as 16-bit numbers with scales and sums."""
    return rows * groups * (GROUP // 2 + 2)


def widen(weight: Int8Weight, out: Tensor) -> Tensor:
    """As `Int8Weight.widen`, in C."""
    assert native.library is not None
    native.library.kvtui_widen(
        weight.codes.data_ptr(),
        weight.scales.data_ptr(),
        weight.groups,
        out.data_ptr(),
        *out.shape,
        native.thread_count(),
    )
    return out
