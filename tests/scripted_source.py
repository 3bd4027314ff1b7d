"""A `Source` that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import queue
from pathlib import Path

from engines import commands, events
from kvtui.source import SourceEndedError


class ScriptedSource:
    log_path = Path("/var/log/worker.log")

    def __init__(self, *batches: list[events.AnyEvent]) -> None:
        self.sent: list[commands.Command] = []
        self.starts = 0
        self.closed = False
        self._first = batches
        self._queue: queue.SimpleQueue[list[events.AnyEvent] | str] = queue.SimpleQueue()

    def start(self) -> None:
        self.starts += 1
        self.closed = False
        for batch in self._first:
            self._queue.put(batch)

    def say(self, *batch: events.AnyEvent) -> None:
        self._queue.put(list(batch))

    def end(self, reason: str) -> None:
        """As a worker's client tells it: first as an event."""
        self.say(events.Status(state="ended", detail=reason))
        self._queue.put(reason)

    def receive(self, timeout_s: float) -> list[events.AnyEvent]:
        if self.closed:
            raise SourceEndedError("")
        try:
            said = self._queue.get(timeout=min(timeout_s, 0.05))
        except queue.Empty:
            return []
        if isinstance(said, str):
            raise SourceEndedError(said)
        return said

    def send(self, command: commands.Command) -> None:
        self.sent.append(command)

    def close(self) -> None:
        self.closed = True
