"""What widgets and threads tell the app."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from engines.events import AnyEvent
from kvtui.inspection import Place
from kvtui.source import Restored


class FirstFrame(Message):
    """The screen is there."""


class EventsArrived(Message):
    """All that the source had since the last one: at most one message a frame."""

    def __init__(self, batch: Sequence[AnyEvent | Restored]) -> None:
        super().__init__()
        self.batch = batch


class SourceEnded(Message):
    """No more events will come; `reason` is empty when that is as it should be."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class Asked(Message):
    """A person submitted text: `document` was pasted or read from the file `name`, `question` typed. At least one is
    not empty."""

    def __init__(self, document: str, question: str, name: str = "") -> None:
        super().__init__()
        self.document, self.question, self.name = document, question, name


class Pointed(Message):
    """A person pointed at a place of the cache, to see more of it."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
