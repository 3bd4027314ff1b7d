"""Words to look for, and how many there are."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static


class SearchBar(Horizontal):
    DEFAULT_CSS = """
    SearchBar { height: 1; display: none; background: $panel; }
    SearchBar > #slash { width: 9; text-style: bold; }
    SearchBar > Input { width: 1fr; background: $panel; }
    SearchBar > #count { width: auto; max-width: 60%; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "accept", "Keep", key_display="⏎", priority=True),
        Binding("down", "step(1)", "Next", key_display="↓", priority=True),
        Binding("up", "step(-1)", "Before", key_display="↑", priority=True),
        Binding("escape", "close", "Close", key_display="esc"),
    ]

    class Searched(Message):
        """Other words are looked for."""

        def __init__(self, query: str) -> None:
            super().__init__()
            self.query = query

    class Stepped(Message):
        """To the match that comes next (1) or before (-1)."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    class Accepted(Message):
        """The match that is shown is the one: keys are the document's again."""

    class Closed(Message):
        """No search any more."""

    _said = ""

    def compose(self) -> ComposeResult:
        yield Static(" search ", id="slash")
        yield Input(placeholder="words of the document", compact=True)
        yield Static("", id="count", markup=False)

    def open(self) -> None:
        self.display = True
        self.query_one(Input).focus()

    def say(self, count: str) -> None:
        if count != self._said:  # an update lays the screen out anew
            self._said = count
            self.query_one("#count", Static).update(count)

    @on(Input.Changed)
    def _changed(self, message: Input.Changed) -> None:
        message.stop()
        self.post_message(self.Searched(message.value))

    def action_step(self, by: int) -> None:
        self.post_message(self.Stepped(by))

    def action_accept(self) -> None:
        if self.query_one(Input).value:
            self.post_message(self.Accepted())
        else:
            self.action_close()

    def action_close(self) -> None:
        self.display = False
        self.query_one(Input).clear()
        self.post_message(self.Closed())
