"""How far a recording has been played, on a line that can be clicked."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.message import Message

from kvtui import palette
from kvtui.panes.lines import Lines, Piece


class Scrubber(Lines):
    DEFAULT_CSS = """
    Scrubber { height: 1; background: $panel; }
    """

    class Moved(Message):
        """Somebody clicked at this share (0..1) of the recording."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._share = 0.0

    def show(self, share: float) -> None:
        self._share = share
        self.redraw()

    def key(self) -> Any:
        return self._played(self.size.width)

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        played = self._played(width)
        rest = max(0, width - 2 - played - 1)
        return [
            [
                (" ", palette.style()),
                ("━" * played, palette.style(palette.now.foreground)),
                ("●", palette.style(palette.now.foreground, bold=True)),
                ("─" * rest, palette.style(palette.now.dim)),
            ]
        ]

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.post_message(self.Moved(min(1.0, max(0.0, (event.x - 1) / max(1, self.size.width - 3)))))

    def _played(self, width: int) -> int:
        """In cells, between a margin of one on either side."""
        return max(0, round(self._share * (width - 3)))
