"""A device whose tensors are CPU tensors that know they are not the host's: what CUDA would wait for is counted.

Weights, and whatever is made with a `torch.device` or sent to one, are the device's, and so is what is computed of
them; what is made on "cpu" or on nothing is the host's.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import engines.create  # noqa: F401 - with it come all who upload
from engines import memory, upload
from engines.decoder import Decoder

MADE = ("zeros", "ones", "empty", "full", "arange", "tensor")
READ = {"item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "masked_select"}
waits: Counter[str] = Counter()


class OnDevice(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READ and any(isinstance(arg, OnDevice) for arg in args):
            waits[name] += 1
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out.as_subclass(Tensor) if name in ("cpu", "numpy") and isinstance(out, Tensor) else out


def there(tensor: Tensor) -> Tensor:
    return tensor.as_subclass(OnDevice)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, for this test. `waits` counts, from 0."""
    waits.clear()
    device = torch.device("cpu")

    def made(name: str) -> None:
        make = getattr(torch, name)

        def on(*args: Any, **kwargs: Any) -> Tensor:
            tensor = make(*args, **kwargs)
            if not isinstance(kwargs.get("device"), torch.device):
                return tensor
            if name == "tensor":
                waits["torch.tensor on the device"] += 1
            return there(tensor)

        monkeypatch.setattr(torch, name, on)

    for name in MADE:
        made(name)
    to = Tensor.to

    def sent(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = to(self, *args, **kwargs)
        if device not in [arg for arg in args if isinstance(arg, torch.device)] or isinstance(self, OnDevice):
            return out
        if not kwargs.get("non_blocking"):
            waits["a copy to the device from pageable memory"] += 1
        return there(out)

    monkeypatch.setattr(Tensor, "to", sent)
    plain = torch.from_numpy

    def uploaded(values: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        known = values if isinstance(values, Tensor) else plain(np.array(values))
        return there(known.to(dtype).clone())

    for module in list(sys.modules.values()):
        if getattr(module, "upload", None) is upload.upload and module is not upload:
            monkeypatch.setattr(module, "upload", uploaded)
    allocate = memory.allocate
    monkeypatch.setattr(memory, "allocate", lambda *given: there(allocate(*given)))


def move(decoder: Decoder) -> None:
    """The decoder's weights, to the device."""
    for holder in [decoder, *decoder.layers]:
        for name, value in vars(holder).items():
            if isinstance(value, Tensor):
                setattr(holder, name, there(value))
