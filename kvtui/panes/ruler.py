"""A scale of positions under the cache pictures, with the cursor's place on it."""

from __future__ import annotations

from typing import Any

from kvtui import palette
from kvtui.cache_view import View, column_of, window
from kvtui.panes.cache_picture import gutter
from kvtui.panes.lines import Lines, Piece, overlaid

LABEL_COLUMNS = 12  # at least, from one label to the next
HERE = "▲"


class Ruler(Lines):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._view, self._tokens = View(), 0

    def show(self, view: View, tokens: int) -> None:
        self._view, self._tokens = view, tokens
        self.redraw()

    def key(self) -> Any:
        return palette.now.name, self._view.cursor, window(self._view, self._tokens)

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        start, span = window(self._view, self._tokens)
        margin = gutter(width)
        columns = max(1, width - margin)
        dim, strong = palette.style(palette.now.dim), palette.style(palette.now.foreground, bold=True)
        cursor = margin + column_of(self._view.cursor, start, span, columns)
        here = f"{HERE}{self._view.cursor:,}"
        first = cursor
        if cursor + len(here) > width:
            here, first = f"{self._view.cursor:,}{HERE}", max(0, cursor - len(here) + 1)
        line: list[Piece] = [(" " * width, dim)]
        step = step_of(span, columns)
        for position in range(-(-start // step) * step, start + span, step):
            at, label = margin + column_of(position, start, span, columns), f"╵{position:,}"
            if at + len(label) < first or first + len(here) < at:  # not into the cursor's
                line = overlaid(line, at, (label, dim)) if at + len(label) <= width else line
        return [overlaid(line, first, (here, strong))]


def step_of(span: int, columns: int) -> int:
    """The round number of positions from one label to the next."""
    least = max(1, -(-span * LABEL_COLUMNS // columns))
    power = 10 ** (len(str(least)) - 1)
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
