"""Where a person asks. A long paste and a file become a chip: their text never enters the input line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from engines.errors import BadRequest
from kvtui import spelling
from kvtui.documents import PASTED, Document, dropped_paths, may_be_dropped, read_documents
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
    Composer > #chip { width: auto; max-width: 75%; padding: 0 1; margin-right: 1; display: none;
                       color: $background; background: $foreground; }
    Composer > #chip.-filled { display: block; }
    Composer > AskInput { width: 1fr; background: $panel; }
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._document: Document | None = None
        self._context_limit: int | None = None
        self._reading = 0  # files on their way
        self._invitation = "paste a document, or ask …"

    def compose(self) -> ComposeResult:
        yield Static(" › ", id="mark")
        yield Static("", id="chip", markup=False)
        yield AskInput(placeholder=self._invitation, select_on_focus=False, compact=True)

    @property
    def input(self) -> AskInput:
        return self.query_one(AskInput)

    def invite(self, text: str, context_limit: int | None = None) -> None:
        """What an empty line says, while no document waits for its question; and what the chip measures one by."""
        self._invitation = text
        self._show_invitation()
        if self._context_limit != context_limit:
            self._context_limit = context_limit
            self._label_chip()

    def take_paste(self, text: str) -> None:
        """Paths of files that were dropped on the terminal become the document, as does anything long; short one-line
        text goes into the line."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")  # terminals paste line ends as carriage returns
        if may_be_dropped(text):
            self.run_worker(self._take_dropped(text))
        else:
            self._take_text(text)
        self.screen.set_focus(self.input)  # at once: the next key may be part of the question

    def open(self, path: Path) -> None:
        """A file becomes the document, or is said to be none."""
        self.run_worker(self._read([path]))
        self.screen.set_focus(self.input)

    async def _take_dropped(self, text: str) -> None:
        paths = await asyncio.to_thread(dropped_paths, text)
        if not paths or not await self._read(paths):
            self._take_text(text)

    async def _read(self, paths: list[Path]) -> bool:
        self._reading += 1
        try:
            document = await asyncio.to_thread(read_documents, paths)
        except BadRequest as fault:
            self.app.notify(str(fault), severity="warning", markup=False)
            return False
        finally:
            self._reading -= 1
        self._add(document)
        return True

    def _take_text(self, text: str) -> None:
        if len(text) <= PASTE_INLINE_CHARACTERS and len(text.splitlines()) <= 1:
            self.input.insert_text_at_cursor(text.strip("\r\n"))
        elif text.strip():
            self._add(Document(PASTED, text))

    @on(Pasted)
    def _pasted(self, message: Pasted) -> None:
        message.stop()
        self.take_paste(message.text)

    @on(AskInput.Emptied)
    def _drop_document(self, message: AskInput.Emptied) -> None:
        message.stop()
        self._set_document(None)

    @on(Input.Submitted)
    def _submitted(self, message: Input.Submitted) -> None:
        message.stop()
        if self._reading:
            self.app.notify("The file is still being read.", markup=False)
            return
        question, document = message.value.strip(), self._document or Document("", "")
        if question or document.text:
            self.post_message(Asked(document.text, question, document.name))
            self._set_document(None)
            self.input.value = ""

    def put_back(self, document: str, question: str, name: str = "") -> None:
        """What could not be sent, before what has been written since: nothing of the user's is lost."""
        if len(question) > PASTE_INLINE_CHARACTERS and not document:
            document, question = question, ""
        since = self._document
        self._set_document(Document(name or PASTED, document) if document else None)
        if since is not None:
            self._add(since)
        self.input.value = " ".join(part for part in (question, self.input.value) if part)
        self.input.cursor_position = len(self.input.value)

    def _add(self, document: Document) -> None:
        self._set_document(self._document.followed_by(document) if self._document else document)

    def _set_document(self, document: Document | None) -> None:
        self._document = document
        self.query_one("#chip", Static).set_class(document is not None, "-filled")
        self._label_chip()
        self._show_invitation()

    def _show_invitation(self) -> None:
        text = "ask about it" if self._document is not None else self._invitation
        if self.input.placeholder != text:
            self.input.placeholder = text

    def _label_chip(self) -> None:
        document = self._document
        label = f"▤ {document.label(self._context_limit)} · {spelling.keys('⌫')}" if document else ""
        self.query_one("#chip", Static).update(label)
