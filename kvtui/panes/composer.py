"""Where a person asks. A long paste becomes a chip: the text never enters the input line."""

from __future__ import annotations

from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from kvtui import figures
from kvtui.messages import Asked

PASTE_INLINE_CHARACTERS = 200


class Pasted(Message):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class AskInput(Input):
    """An input line that hands pastes on."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave input", show=True)]

    class Left(Message):
        """Escape was pressed."""

    class Emptied(Message):
        """Backspace in an empty line."""

    def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.post_message(Pasted(event.text))

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def action_delete_left(self) -> None:
        if not self.value:
            self.post_message(self.Emptied())
        super().action_delete_left()


class Composer(Horizontal):
    DEFAULT_CSS = """
    Composer { height: 1; background: $panel; }
    Composer > #mark { width: 3; color: $foreground; text-style: bold; }
    Composer > #chip { width: auto; max-width: 50%; padding: 0 1; margin-right: 1; display: none;
                       color: $background; background: $foreground; }
    Composer > #chip.-filled { display: block; }
    Composer > AskInput { width: 1fr; background: $panel; }
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._document = ""

    def compose(self) -> ComposeResult:
        yield Static(" › ", id="mark")
        yield Static("", id="chip", markup=False)
        yield AskInput(placeholder="paste a document, or ask …", select_on_focus=False, compact=True)

    @property
    def input(self) -> AskInput:
        return self.query_one(AskInput)

    def invite(self, text: str) -> None:
        if self.input.placeholder != text:
            self.input.placeholder = text

    def take_paste(self, text: str) -> None:
        """Short one-line text goes into the line, anything else becomes (or grows) the document."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")  # terminals paste line ends as carriage returns
        if len(text) <= PASTE_INLINE_CHARACTERS and len(text.splitlines()) <= 1:
            self.input.insert_text_at_cursor(text.strip("\r\n"))
        elif text.strip():
            self._set_document(f"{self._document}\n{text}" if self._document else text)
        self.screen.set_focus(self.input)  # at once: the next key may be part of the question

    @on(Pasted)
    def _pasted(self, message: Pasted) -> None:
        message.stop()
        self.take_paste(message.text)

    @on(AskInput.Emptied)
    def _drop_document(self, message: AskInput.Emptied) -> None:
        message.stop()
        self._set_document("")

    @on(Input.Submitted)
    def _submitted(self, message: Input.Submitted) -> None:
        message.stop()
        question = message.value.strip()
        if question or self._document:
            self.post_message(Asked(self._document, question))
            self._set_document("")
            self.input.value = ""

    def put_back(self, document: str, question: str) -> None:
        """What could not be sent: nothing of the user's is lost."""
        self._set_document(document)
        self.input.value = question

    def _set_document(self, text: str) -> None:
        self._document = text
        chip = self.query_one("#chip", Static)
        chip.set_class(bool(text), "-filled")
        # Bytes are estimated for long texts: encoding a megabyte only to count it would be felt.
        size = len(text.encode(errors="replace")) if len(text) < 100_000 else len(text)
        chip.update(f"▤ pasted text · {figures.size(size)} · ⌫" if text else "")
