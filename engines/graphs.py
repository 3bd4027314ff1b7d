"""Decode steps as CUDA graphs: the kernels of a step recorded once, then launched all together.

A decode step at batch 1 is hundreds of small kernels; launched one by one, they cost the host more time than the device
needs to run them. A step can be replayed when it is the same kernels on the same tensors: so what differs from step to
step (tokens, positions, block tables, lengths) is copied into tensors that stay, and tables are padded to a few widths.
Paged attention and H2O decode that way; what either does around the layers (tables before, eviction after) is not
recorded. InfiniGen is: which of the entries move is decided on the host, layer by layer, so its steps go one by one.

A recording is made outside the engine's clock, as a server makes them before it serves.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engines.caches.base import Cache
from engines.caches.placement import Placement
from engines.clock import Clock
from engines.forward import forward, whole
from engines.memory import BLOCK_TOKENS
from engines.sequence import Step
from engines.upload import upload

WIDTH_BLOCKS = 32  # tables are as wide as a multiple of this: 512 tokens
MOST = 32  # recordings; the oldest goes first
_WARM_UPS = 2


class Backend(Protocol):
    """Records `work`, which runs at least once for that, and gives what replays it with the tensor that it fills."""

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]: ...

    def forget(self) -> None:
        """All recordings are gone."""


class CudaBackend:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # recordings take turns in one: no two run at once

    def record(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        side, compute = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        side.wait_stream(compute)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):  # compiles, and lets libraries take their workspaces
                work()
        compute.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: probes do.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = work()
        self._pool = graph.pool()
        return graph.replay, out

    def forget(self) -> None:
        self._pool = None


@dataclass
class _Recorded:
    """`ids` and `positions` int64 [B] and `placed` are read by `replay`, which leaves `hidden` [B, hidden]."""

    ids: Tensor
    positions: Tensor
    placed: Placement
    replay: Callable[[], None]
    hidden: Tensor


class Graphs:
    """Of one engine: a recording for every batch size and width of tables that came up."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend, self._clock = backend, clock
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        self._works = True

    def __len__(self) -> int:
        return len(self._recorded)

    def clear(self) -> None:
        """Every recording goes, with its memory."""
        self._recorded.clear()
        self._backend.forget()

    def decode(self, cache: Cache, step: Step) -> Tensor | None:
        """Runs the layers of a step that has begun: hidden states [B, hidden], good until the next step. None, and
        nothing done, for steps that are not to be recorded."""
        if not self._works or cache.placed is None:
            return None
        key = len(step.ids), -(-cache.placed.tables.shape[1] // WIDTH_BLOCKS) * WIDTH_BLOCKS
        fresh = cache.placed
        recorded = self._recorded.get(key)
        if recorded is None:
            with self._clock.excluded():
                recorded = self._record(cache, step, key[1])
            if recorded is None:
                cache.placed = fresh
                return None
            self._recorded[key] = recorded
            if len(self._recorded) > MOST:
                del self._recorded[next(iter(self._recorded))]
        else:
            self._fill(recorded, step, fresh)
        cache.placed = recorded.placed
        recorded.replay()
        if step.observe and cache.observes_in_attend:
            with self._clock.excluded():  # the same step once more, watched; it leaves what is there already
                whole(forward(cache, step))
        return recorded.hidden

    def _record(self, cache: Cache, step: Step, width: int) -> _Recorded | None:
        assert cache.placed is not None
        device = cache.model.device
        placed = cache.placed.like(width, width * BLOCK_TOKENS)
        ids, positions = (torch.zeros(len(step.ids), dtype=torch.int64, device=device) for _ in range(2))
        recorded = _Recorded(ids, positions, placed, lambda: None, ids)
        self._fill(recorded, step, cache.placed)
        cache.placed = placed
        observe, step.observe = step.observe, False
        try:
            recorded.replay, recorded.hidden = self._backend.record(
                lambda: whole(cache.model.decoder.forward(ids, positions, cache))
            )
        except Exception as fault:  # what a driver, a library or a full device may raise: all goes on without
            self._works = False
            self.clear()
            warnings.warn(f"decode steps go without CUDA graphs, more slowly: {fault}", stacklevel=2)
            return None
        finally:
            step.observe = observe
        return recorded

    @staticmethod
    def _fill(recorded: _Recorded, step: Step, fresh: Placement) -> None:
        device = recorded.ids.device
        recorded.ids.copy_(upload(step.ids, torch.int64, device))
        recorded.positions.copy_(upload(step.positions, torch.int64, device))
        recorded.placed.take(fresh)


def open_graphs(device: torch.device, clock: Clock, wanted: bool) -> Graphs | None:
    """On CUDA, unless they are not wanted: by the caller, or with KVTUI_GRAPHS=0 in the environment."""
    if device.type != "cuda" or not wanted or os.environ.get("KVTUI_GRAPHS") == "0":
        return None
    return Graphs(CudaBackend(device), clock)
