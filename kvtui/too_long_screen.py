"""The question what of a prompt to leave out that is longer than the context has room for."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from kvtui import figures
from kvtui.literal import one_line
from kvtui.overlaid import Dialog

PLACES = (
    ("s", "start", "the end stays"),
    ("m", "middle", "both ends stay"),
    ("e", "end", "the beginning stays"),
)


class TooLongScreen(Dialog[str | None]):
    """Dismissed with "start", "middle" or "end", or with None when the person would rather change the text."""

    DEFAULT_CSS = """
    TooLongScreen { align: center middle; }
    TooLongScreen > Vertical { width: 76; max-width: 96%; height: auto; max-height: 92%; border: round $foreground;
                               background: $panel; padding: 0 2; border-title-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"cut('{place}')", f"Cut at the {place}") for key, place, _ in PLACES),
        Binding("escape", "cut('')", "Back to the input line"),
    ]

    def __init__(self, name: str, tokens: int, room_tokens: int) -> None:
        super().__init__()
        self._text = too_long(name, tokens, room_tokens)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = " Too long "
            lines = [Content(self._text), Content(""), Content("Cut at its")]
            for key, place, left in PLACES:
                lines.append(Content.assemble((f"  {key}", "bold"), f"    {place:<8}", (left, "dim")))
            lines.append(Content.assemble(("  Esc", "bold"), "  back to the input line; nothing is lost"))
            yield Static(Content("\n").join(lines))

    def action_cut(self, place: str) -> None:
        self.dismiss(place or None)


def too_long(name: str, tokens: int, room_tokens: int) -> str:
    room = f"the context has room for {room_tokens:,}" if room_tokens > 0 else "the conversation has filled the context"
    return f"{one_line(name)} has {figures.counted(tokens, 'token')}, {room}."
