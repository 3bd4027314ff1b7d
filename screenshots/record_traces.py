"""Records the traces that ship with kvtui: the real model on the built-in prompt stream, and on a device that is full.

    python -m screenshots.record_traces

What the worker loads before the race is left out, so that a replay begins with the race. Cache pictures are thinned out
in time, as they are nine tenths of a trace; each one that is left says exactly what the worker said.
"""

from __future__ import annotations

import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from engines import events
from engines.commands import WorkerConfig
from kvtui.client import WorkerClient
from kvtui.prompts import built_in_prompts
from kvtui.trace import TraceReader, TraceWriter

DATA = Path(__file__).parent.parent / "kvtui" / "data"
DEMO, OUT_OF_MEMORY = DATA / "demo.kvtrace", DATA / "out-of-memory.kvtrace"
SMALL_DEVICE_BYTES = 284 << 20
PICTURE_EVERY_S = 0.8  # of the run, per engine
HEADS_EVERY = 3  # events
Picture = TypeVar("Picture", events.Cache, events.Heads)


class Thinner:
    """Drops cache pictures that come too soon after the last; the differences that they held go into the next one."""

    def __init__(self) -> None:
        self._held: dict[str, events.Cache] = {}
        self._shown_s: dict[str, float] = {}
        self._heads: Counter[str] = Counter()

    def thin(self, batch: Sequence[events.AnyEvent]) -> Iterator[events.AnyEvent]:
        for event in batch:
            if isinstance(event, events.Cache):
                self._hold(event)
                if event.wall_s - self._shown_s.get(event.engine, -1.0) >= PICTURE_EVERY_S:
                    yield from self._release(event.engine, event.wall_s)
            elif isinstance(event, events.Heads):
                if self._heads[event.engine] % HEADS_EVERY == 0:
                    yield _packed(event)
                self._heads[event.engine] += 1
            else:
                if isinstance(event, events.Outcome):  # the last picture of an answer stays on the screen
                    yield from self._release(event.engine, event.wall_s)
                yield event

    def _hold(self, event: events.Cache) -> None:
        before = self._held.get(event.engine)
        if before is not None and not event.whole:
            cells = events.apply_cells(events.inflate(before.states), before.tokens, event)
            event = replace(event, whole=before.whole, states=events.deflate(cells))
        self._held[event.engine] = event

    def _release(self, engine: str, wall_s: float) -> Iterator[events.Cache]:
        event = self._held.pop(engine, None)
        if event is not None:
            self._shown_s[engine] = wall_s
            yield _packed(event)


def _packed(event: Picture) -> Picture:
    """As small as it gets: the worker has less time for it."""
    states, mass = (zlib.compress(events.inflate(part), 9) for part in (event.states, event.mass))
    return replace(event, states=states, mass=mass)


def record(config: WorkerConfig, path: Path) -> None:
    """Runs `config.prompts` to their end."""
    with closing(TraceWriter(path)) as trace, closing(WorkerClient(config)) as client:
        client.start()
        begun = False
        while True:
            batch = client.receive(1.0)
            begun = begun or any(isinstance(event, events.RunStarted) for event in batch)
            if begun and batch and (fault := trace.write(batch)):
                raise SystemExit(fault)
            if any(isinstance(event, events.Status) and (event.engine, event.state) == ("", "idle") for event in batch):
                return


def slim(whole: Path, path: Path) -> None:
    """The same trace with fewer pictures, at the same pace."""
    reader, thinner, at_s = TraceReader(whole), Thinner(), 0.0
    with closing(TraceWriter(path, clock=lambda: at_s)) as trace:
        for frame, batch in enumerate(reader):
            at_s = reader.at_s(frame)
            if (thinned := list(thinner.thin(batch))) and (fault := trace.write(thinned)):
                raise SystemExit(fault)


def record_slim(config: WorkerConfig, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.kvtrace"
        record(config, whole)
        slim(whole, path)


def main() -> None:
    prompts = built_in_prompts()
    record_slim(WorkerConfig(prompts=prompts), DEMO)
    first = [replace(prompts[0], max_new_tokens=32)]
    record_slim(WorkerConfig(prompts=first, device_memory_bytes=SMALL_DEVICE_BYTES), OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
