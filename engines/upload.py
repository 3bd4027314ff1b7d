"""From the host to the device without waiting: what a step's bookkeeping sends ahead of its kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def upload(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers (lists of them, or a CPU tensor) as a tensor on the device. On CUDA the copy is queued behind what is
    there and nobody waits; torch keeps the pinned memory that it reads until the copy is done."""
    known = values.to(dtype) if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    if device.type != "cuda":
        return known.to(device)
    return known.pin_memory().to(device, non_blocking=True)
