"""Screens over the race's: each only once, and gone only once, however fast keys and clicks come."""

from __future__ import annotations

from typing import Any

from textual.app import App
from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen, Screen, ScreenResultType

from kvtui.sturdy import Sturdy


class Dismissable(Sturdy[ScreenResultType]):
    """A second dismissal, on its way when the first came, would take away the screen beneath."""

    def dismiss(self, result: Any = None) -> AwaitComplete:
        return super().dismiss(result) if self.is_active else AwaitComplete()


class Dialog(Dismissable[ScreenResultType], ModalScreen[ScreenResultType]):
    """What is beneath stays in sight."""


def is_open(app: App[Any], kind: type[Screen[Any]]) -> bool:
    return any(isinstance(screen, kind) for screen in app.screen_stack)


def is_of_option_list(error: BaseException | None) -> bool:
    """Whether an error is Textual's own: its list of options looks for one that was just replaced by others."""
    if not isinstance(error, (KeyError, IndexError)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith("_option_list.py")
