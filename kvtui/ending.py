"""The part of the app that ends it: at once when it is told to, and with a line that says why when it fails."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from platformdirs import user_log_path
from textual import events
from textual._context import active_message_pump
from textual.app import ScreenError
from textual.css.query import NoMatches
from textual.dom import DOMNode, NoScreen
from textual.errors import NoWidget
from textual.widget import MountError
from textual.worker import WorkerFailed, get_current_worker

from kvtui.dressing import Dressing
from kvtui.literal import literal, one_line

_OF_WHAT_GOES = (NoMatches, MountError, ScreenError, NoScreen, NoWidget)
LOG = "screen.log"
LONGEST = 200


class Ending(Dressing):
    leaving = False  # `exit` was called: nothing that a person does means anything any more
    failed = False
    fault = ""  # what a person is told of it, once the terminal is theirs again

    @property
    def exit_code(self) -> int:
        """1 after a fault, whatever ended the app then."""
        return 1 if self.failed else self.return_code or 0

    def exit(self, *arguments: Any, **options: Any) -> None:
        self.leaving = True
        super().exit(*arguments, **options)

    async def on_event(self, event: events.Event) -> None:
        """Keys and sizes that wait before the message that ends the app are dropped: a screen each took seconds."""
        if not (self.leaving and isinstance(event, (events.InputEvent, events.Paste, events.Resize))):
            await super().on_event(event)

    def panic(self, *renderables: Any) -> None:
        self.failed = True
        super().panic(*renderables)

    def _handle_exception(self, error: Exception) -> None:
        """What a part of the screen missed because it is being taken down is no fault."""
        if not self._is_of_what_goes(error):
            self.failed = True
            super()._handle_exception(error)

    def _is_of_what_goes(self, error: BaseException | None) -> bool:
        part: object = active_message_pump.get(None)
        while isinstance(error, WorkerFailed):
            error, part = error.error, get_current_worker().node
        if self.leaving:
            return isinstance(error, _OF_WHAT_GOES) or (isinstance(error, LookupError) and _raised_by_textual(error))
        if not isinstance(error, _OF_WHAT_GOES) or not isinstance(part, DOMNode) or part is self:
            return False
        with contextlib.suppress(NoScreen):
            return not part.is_attached or part.screen not in self.screen_stack
        return True

    def _fatal_error(self) -> None:
        """The traceback goes to a file: it is long, only for those who mend it, and may quote what was asked."""
        error = self._exception
        if not self.fault and error is not None:
            self.fault = _written_down(error)
        self._close_messages_no_wait()


def _raised_by_textual(error: BaseException) -> bool:
    """A style or an option that was not there yet, for instance."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__", "").startswith("textual.")


def _written_down(error: Exception) -> str:
    path = user_log_path("kvtui", ensure_exists=False) / LOG
    said = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(said, "utf-8", "replace")
    except OSError:
        return literal(said)
    last = one_line(said.strip().rsplit("\n", 1)[-1])[:LONGEST]
    return f"the screen failed ({last}); log: {path}"
