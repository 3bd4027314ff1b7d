"""The fair clock: an engine's own time, advanced by its own steps and its own transfers only.

Three engines take turns on one device, yet each clock reads as if the engine had the machine to itself. What the
observer needs (attention mass for the picture) and what a modelled transfer really copies are left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    def __init__(self, device: torch.device | None = None) -> None:
        self._elapsed_s = 0.0
        self._since: float | None = None
        self._cuda = device if device is not None and device.type == "cuda" else None

    @property
    def now_s(self) -> float:
        running_s = time.perf_counter() - self._since if self._since is not None else 0.0
        return self._elapsed_s + running_s

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts the block's time, with the device synchronised at both ends."""
        self._synchronize()
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._synchronize()
            self._stop()

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Leaves the block's time out; usable within `running` and outside of it. What was queued before the block is
        the engine's own work, and is waited for first; what the block queued is not."""
        counting = self._since is not None
        if counting:
            self._synchronize()
            self._stop()
        try:
            yield
        finally:
            if counting:
                self._synchronize()
                self._since = time.perf_counter()

    def wait_until(self, moment_s: float) -> float:
        """Moves the clock forward to `moment_s` if that lies ahead; returns the seconds waited."""
        waited_s = max(0.0, moment_s - self.now_s)
        self._elapsed_s += waited_s
        return waited_s

    def _stop(self) -> None:
        if self._since is not None:
            self._elapsed_s += time.perf_counter() - self._since
            self._since = None

    def _synchronize(self) -> None:
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)
