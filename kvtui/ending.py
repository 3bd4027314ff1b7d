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
from textual.screen import Screen
from textual.widget import MountError, Widget
from textual.worker import WorkerFailed, get_current_worker

from kvtui.dressing import Dressing
from kvtui.literal import literal, one_line
from kvtui.overlaid import is_of_option_list

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
        if self.leaving and isinstance(event, (events.InputEvent, events.Paste, events.Resize)):
            return
        try:
            await super().on_event(event)
        except LookupError as error:  # a key or a click on a list that was just filled anew: as if there was nothing
            if not is_of_option_list(error):
                raise

    def panic(self, *renderables: Any) -> None:
        self.failed = True
        super().panic(*renderables)

    def _handle_exception(self, error: Exception) -> None:
        """What a part of the screen missed because it is being taken down is no fault; one of a list ends the dialog
        that it is in, not the race."""
        part, cause = _blamed(error)
        if isinstance(part, Widget) and is_of_option_list(cause) and self.is_running and not self.leaving:
            self.call_later(self._end_dialog, part.screen)  # the list itself handles no messages any more
        elif not self._is_of_what_goes(part, cause):
            self.failed = True
            super()._handle_exception(error)

    def _end_dialog(self, dialog: Screen[Any]) -> None:
        if self.screen is dialog and dialog.is_modal:
            self.pop_screen()
            self.notify("The list was not ready yet: the same key opens it again.", markup=False)

    def _is_of_what_goes(self, part: object, error: BaseException | None) -> bool:
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


def _blamed(error: BaseException) -> tuple[object, BaseException | None]:
    """The part of the app that an error comes from, and the error itself where that was a worker's."""
    part: object = active_message_pump.get(None)
    cause: BaseException | None = error
    while isinstance(cause, WorkerFailed):
        part, cause = get_current_worker().node, cause.error
    return part, cause


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
