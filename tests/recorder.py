"""CUDA graphs without CUDA: operators recorded while they run on CPU tensors, then run again on those very tensors.

What a step takes from anywhere but the tensors that it was recorded with, a replay does not see; and what would read a
tensor's value on the host, a recording refuses, as CUDA does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"}


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in READS:
            raise RuntimeError(f"{func._schema.name} while recording: the host would have to wait")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            for held, new in zip(_tensors(out), _tensors(func(*args, **kwargs)), strict=True):
                if held.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():  # else a view, or in place
                    held.copy_(new)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


class Recorder:
    """A `graphs.Backend`. With `fault`, recordings fail with it."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.recorded = self.replayed = self.forgotten = 0

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        if self.fault is not None:
            raise self.fault
        tape = _Tape()
        with tape:
            out = work()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        out.fill_(torch.nan)  # it is the replay that makes it
        return replay, out

    def forget(self) -> None:
        self.forgotten += 1
