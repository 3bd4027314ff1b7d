"""A file, chosen by typing its path or walking the folders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from kvtui import figures, spelling
from kvtui.literal import one_line
from kvtui.overlaid import Dialog

SHOWN = 500  # more names than that are narrowed down by typing


@dataclass(frozen=True)
class Entry:
    name: str
    is_folder: bool
    size_bytes: int


class FilePicker(Dialog[Path | None]):
    """Dismissed with the path of a file, or with None."""

    DEFAULT_CSS = """
    FilePicker { align: center middle; }
    FilePicker > Vertical { width: 90; max-width: 96%; height: 80%; border: round $foreground; background: $panel;
                            padding: 0 1; border-title-style: bold; }
    FilePicker Input { background: $panel; margin-bottom: 1; }
    FilePicker OptionList { height: 1fr; border: none; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("down", "move(1)", "Next", priority=True),
        Binding("up", "move(-1)", "Previous", priority=True),
        Binding("tab", "complete", "Complete", priority=True),
    ]

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._start = folder or Path.cwd()
        self._folder: str | None = None  # whose entries these are
        self._entries: list[Entry] = []
        self._shown: list[Entry] = []
        self._waiting: Callable[[], None] | None = None  # for the folder to be listed

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = " Open a text file "
            box.border_subtitle = spelling.keys(" ↑ ↓ choose · tab complete · ⏎ open · Esc ")
            yield Input(os.path.join(self._start, ""), select_on_focus=False, compact=True)
            names = OptionList(markup=False)
            names.can_focus = False
            yield names

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._waiting = None
        folder, _ = self._parts()
        if folder == self._folder:
            self._show()
        else:
            self._list(folder)

    @work(exclusive=True)
    async def _list(self, folder: str) -> None:
        box = self.query_one(Vertical)
        try:
            self._entries = await asyncio.to_thread(entries_of, Path(folder).expanduser())
            box.border_title = " Open a text file "
        except (OSError, RuntimeError, ValueError) as fault:  # no such folder, not allowed, no such ~user
            self._entries = []
            box.border_title = Content(f" {one_line(getattr(fault, 'strerror', None) or str(fault))} ")
        self._folder = folder
        self._show()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting()

    def _listed(self, then: Callable[[], None]) -> bool:
        """Whether the folder that has been typed is on the screen; `then` is done when it is."""
        folder, _ = self._parts()
        if folder != self._folder:
            self._waiting = then
        return folder == self._folder

    def _parts(self) -> tuple[str, str]:
        """The folder that has been typed, and the beginning of a name in it."""
        folder, slash, name = self.query_one(Input).value.rpartition("/")
        return (folder + slash or "./"), name

    def _show(self) -> None:
        """What begins as typed; hidden names once their dot has been typed."""
        _, name = self._parts()
        names = self.query_one(OptionList)
        begun = [entry for entry in self._entries if entry.name.lower().startswith(name.lower())]
        self._shown = [entry for entry in begun if name or not entry.name.startswith(".")][:SHOWN]
        names.clear_options()
        names.add_options(Option(_line(entry)) for entry in self._shown)
        names.highlighted = 0 if self._shown else None

    def action_move(self, step: int) -> None:
        names = self.query_one(OptionList)
        if step > 0:
            names.action_cursor_down()
        else:
            names.action_cursor_up()

    def action_complete(self) -> None:
        """The highlighted name, written out."""
        if not self._listed(self.action_complete):
            return
        entry = self._highlighted()
        if entry is not None:
            field = self.query_one(Input)
            folder, slash, _ = field.value.rpartition("/")
            field.value = folder + slash + entry.name + ("/" if entry.is_folder else "")
            field.cursor_position = len(field.value)

    def _highlighted(self) -> Entry | None:
        index = self.query_one(OptionList).highlighted
        return self._shown[index] if index is not None and index < len(self._shown) else None

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._accept()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._accept()

    def _accept(self) -> None:
        if not self._listed(self._accept):
            return
        entry = self._highlighted()
        if entry is None:  # nothing here begins with that; whoever opens it will say so
            self.notify("There is no such file.", severity="warning", markup=False)
            return
        folder, _ = self._parts()
        self.action_complete()
        if not entry.is_folder:
            self.dismiss(Path(folder).expanduser() / entry.name)


def entries_of(folder: Path) -> list[Entry]:
    """Folders, then files, by name. Raises OSError; waits for the disk."""
    found = []
    with os.scandir(folder) as items:
        for item in items:
            try:
                is_folder = item.is_dir()
                found.append(Entry(item.name, is_folder, 0 if is_folder else item.stat().st_size))
            except OSError:  # a link to nowhere
                continue
    return sorted(found, key=lambda entry: (not entry.is_folder, entry.name.lower()))


def _line(entry: Entry) -> Content:
    name = one_line(entry.name)
    if entry.is_folder:
        return Content.assemble(f"{'':9}  ", (f"{name}/", "bold"))
    return Content.assemble((f"{figures.size(entry.size_bytes):>9}  ", "dim"), name)
