"""The caption bar: what is happening, in a few lines that can be read from the back of the room."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len

from kvtui import palette
from kvtui.captions import Caption, Held
from kvtui.literal import one_line
from kvtui.panes.lines import Lines, Piece
from kvtui.panes.stream import Wrapped
from kvtui.state import RunState

MARK = " ▌ "


class CaptionBar(Lines):
    """There in presenter mode, and when the screen has something of its own to say, with `override`."""

    DEFAULT_CSS = """
    CaptionBar { height: 3; display: none; background: $panel; }
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.said: str | None = None
        self._held = Held()
        self._captions: list[Caption] = []
        self._state = RunState()

    def show(self, state: RunState) -> None:
        self._state = state
        if self.display and self.said is None:
            self._captions = self._held.take(state)
        self.redraw()

    def on_show(self) -> None:
        """It was hidden, and had nothing to do."""
        self.show(self._state)

    def override(self, text: str | None) -> None:
        """Shows `text` in place of what the run has to say, until told otherwise; None gives the bar back."""
        self.said = text
        self.show(self._state)

    def go_on_from(self, other: CaptionBar) -> None:
        """On a screen that covers the other's: what has just begun to be said is said to its end."""
        self._held, self._state = other._held, other._state

    def key(self) -> Any:
        return palette.now.name, self.said, self._captions

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        said = [Caption("said", self.said, 0)] if self.said is not None else self._captions
        lines: list[list[Piece]] = []
        for caption in said:
            color = palette.engine_color(caption.engine) if caption.engine else palette.now.foreground
            strong = not lines
            words = Wrapped(max(1, width - cell_len(MARK) - 1))
            words.add(one_line(caption.text), -1, -1)
            for row in words.lines:
                text = "".join(run.text for run in row)
                style = palette.style(palette.now.foreground if strong else palette.now.dim, bold=strong)
                lines.append([(MARK, palette.style(color, bold=True)), (text, style)])
        return lines[:height]
