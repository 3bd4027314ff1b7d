"""Where events come from: the worker's pipe, and with the same four verbs a trace or another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engines.commands import Command
from engines.events import AnyEvent
from kvtui.state import RunState


class SourceEndedError(Exception):
    """No more events will come. The message says why, in one line; it is empty when that is as it should be."""


@dataclass(frozen=True)
class Restored:
    """In place of events: the whole state as it was at another moment of a recording. From here on it is the
    receiver's own."""

    state: RunState


class Source(Protocol):
    def start(self) -> None:
        """Begins, or begins again after the end."""

    def receive(self, timeout_s: float) -> Sequence[AnyEvent | Restored]:
        """All events that have arrived, after waiting for the first at most `timeout_s`. Called in one thread, which
        is not the interface's. Raises SourceEndedError at the end. Whoever only hears events (a trace, a watcher) does
        not hear that: a worker's end that nobody asked for is its last event as well."""

    def send(self, command: Command) -> None:
        """Never waits, never raises: a source that has ended takes nothing in."""

    def close(self) -> None:
        """Ends it and all that belongs to it. May wait a few seconds; may be called again."""


class PassingSource:
    """What stands between a source and its receiver, and hears all that is said: `receive` is its own."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def log_path(self) -> Path | None:
        return getattr(self._source, "log_path", None)

    def start(self) -> None:
        self._source.start()

    def send(self, command: Command) -> None:
        self._source.send(command)

    def close(self) -> None:
        self._source.close()
