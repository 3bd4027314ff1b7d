"""Where events come from: the worker's pipe, and with the same four verbs a trace or another machine."""

from __future__ import annotations

from typing import Protocol

from engines.commands import Command
from engines.events import AnyEvent


class SourceEndedError(Exception):
    """No more events will come. The message says why, in one line; it is empty when that is as it should be."""


class Source(Protocol):
    def start(self) -> None:
        """Begins, or begins again after the end."""

    def receive(self, timeout_s: float) -> list[AnyEvent]:
        """All events that have arrived, after waiting for the first at most `timeout_s`. Called in one thread, which
        is not the interface's. Raises SourceEndedError at the end."""

    def send(self, command: Command) -> None:
        """Never waits, never raises: a source that has ended takes nothing in."""

    def close(self) -> None:
        """Ends it and all that belongs to it. May wait a few seconds; may be called again."""
