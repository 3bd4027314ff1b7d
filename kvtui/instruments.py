"""A source whose worker's machine is watched, too: samples of the hardware come along with the events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engines import events
from kvtui.source import PassingSource, Restored, Source, SourceEndedError

if TYPE_CHECKING:
    from probes.sampler import Sampler


def sampler_of(worker_id: int | None) -> Sampler:
    """Of this machine, and of that process on it."""
    from probes.gpu import GpuProbe  # psutil, too: in the thread that listens, after the first frame
    from probes.host import HostProbe
    from probes.sampler import Sampler

    return Sampler(HostProbe(worker_id), GpuProbe())


class Instruments(PassingSource):
    """Puts `Sample` events among what `source`, a worker, says: after what it said meanwhile, with the run's name and
    time. `sampling` makes the sampler of a worker's process."""

    def __init__(self, source: Source, sampling: Callable[[int | None], Sampler] = sampler_of) -> None:
        super().__init__(source)
        self._sampling = sampling
        self._turns = threading.Lock()  # start and close, one at a time
        self._sampler: Sampler | None = None
        self._run, self._began_s = "", 0.0
        self._pinned: dict[str, int] = {}  # by engine, where the device is a GPU
        self._on_gpu = False

    @property
    def process_id(self) -> int | None:
        return getattr(self._source, "process_id", None)

    def start(self) -> None:
        with self._turns:
            self._stop()
            self._source.start()
            self._run, self._began_s = "", time.monotonic()
            self._sampler = self._sampling(self.process_id)
            self._sampler.start()

    def receive(self, timeout_s: float) -> Sequence[events.AnyEvent | Restored]:
        try:
            batch = self._source.receive(timeout_s)
        except SourceEndedError:
            with self._turns:
                self._stop()
            raise
        for event in batch:
            if not isinstance(event, Restored):
                self._heard(event)
        sampler = self._sampler
        samples = [self._placed(at_s, sample) for at_s, sample in sampler.taken()] if sampler is not None else []
        return [*batch, *samples] if samples else batch

    def close(self) -> None:
        with self._turns:
            self._stop()
        self._source.close()

    def _stop(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()

    def _heard(self, event: events.AnyEvent) -> None:
        if event.run and event.wall_s:
            began_s = time.monotonic() - event.wall_s
            # An event comes late, never early: the least delay of a run's events is nearest to the truth.
            self._began_s = began_s if event.run != self._run else min(began_s, self._began_s)
            self._run = event.run
        if isinstance(event, events.RunStarted):
            self._on_gpu = event.device.startswith("cuda")
            self._pinned = {id: self._pinned.get(id, 0) for id in (info.id for info in event.engines)}
        elif isinstance(event, events.Memory):
            self._pinned[event.engine] = sum(event.host_bytes.values())

    def _placed(self, at_s: float, sample: events.Sample) -> events.Sample:
        """Host memory of an engine on a GPU is pinned, and the kernel does not count what CUDA pins."""
        if self._on_gpu:
            sample = replace(sample, pinned_bytes=max(sample.pinned_bytes or 0, sum(self._pinned.values())))
        return replace(sample, run=self._run, wall_s=max(0.0, at_s - self._began_s))
