"""Samples of the machine at a fixed cadence, from threads of their own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from engines.events import Sample
from probes.gpu import GpuReading

EVERY_S = 0.25
STALE_S = 3.0  # a driver that has not answered for so long is not waited for in silence
KEPT = 240


class Host(Protocol):
    def read(self) -> dict[str, Any]: ...


class Gpus(Protocol):
    def read(self) -> GpuReading: ...

    def close(self) -> None: ...


class Sampler:
    """Two threads: one takes a sample every `every_s` seconds, the other asks the GPUs as often as they answer, and at
    most that often. A sample has the GPUs' latest figures, so that a slow driver delays nothing; one that does not
    answer for STALE_S is said to be lost, and its figures are left out. Slots that were missed are skipped, never made
    up for. `clock` tells monotonic seconds."""

    def __init__(
        self,
        host: Host,
        gpus: Gpus | None = None,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._gpus, self._every_s, self._clock = host, gpus, every_s, clock
        self._taken: deque[tuple[float, Sample]] = deque(maxlen=KEPT)
        self._ending = threading.Event()
        self._answered_s, self._reading = clock(), GpuReading()
        self._threads = [threading.Thread(target=self._sample, name="kvtui-sampler", daemon=True)]
        if gpus is not None:  # a daemon: a driver may never answer again
            self._threads.append(threading.Thread(target=self._ask_gpus, name="kvtui-gpus", daemon=True))

    def start(self) -> None:
        self._answered_s = self._clock()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits for the sample that is being taken, not for the driver."""
        self._ending.set()
        if self._threads[0].ident is not None:
            self._threads[0].join(1.0)

    def taken(self) -> list[tuple[float, Sample]]:
        """Since the last call, in order, each with the moment of `clock`; at most KEPT of them."""
        found = []
        while self._taken:
            found.append(self._taken.popleft())
        return found

    def _sample(self) -> None:
        for at_s in self._slots():
            reading = self._reading
            silent_s = at_s - self._answered_s
            if self._gpus is not None and silent_s > STALE_S:
                reading = GpuReading(driver=f"no answer for {silent_s:.0f} s")
            try:
                host = self._host.read()
            except Exception:  # a machine that does not tell must not end the probes of a long run
                host = {}
            self._taken.append((at_s, Sample(**host, gpus=reading.gpus, driver=reading.driver)))

    def _ask_gpus(self) -> None:
        assert self._gpus is not None
        for _ in self._slots():
            try:
                reading = self._gpus.read()
            except Exception as fault:  # nor may a driver, or its binding
                reading = GpuReading(driver=f"{type(fault).__name__}: {fault}")
            self._reading, self._answered_s = reading, self._clock()
        self._gpus.close()

    def _slots(self) -> Iterator[float]:
        """The moments to do something, until the end."""
        due_s = self._clock()
        while not self._ending.wait(max(0.0, due_s - self._clock())):
            now_s = self._clock()
            yield now_s
            missed = int((self._clock() - due_s) // self._every_s)
            due_s += (missed + 1) * self._every_s
