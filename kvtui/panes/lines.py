"""A widget that is drawn as whole lines, and repaints only those that differ from the last time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from kvtui import palette

Piece = tuple[str, Style]
PLAIN = Style.null()
BLANK = Strip([])


class Lines(Widget):
    """Subclasses keep what they show, answer `key()` with whatever the picture depends on, and draw it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._strips: list[Strip] = []
        self._drawn: Any = None
        self._base: Style | None = None

    def key(self) -> Any:
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        """At most `height` lines, each at most `width` cells (what is more is cut off)."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draws anew if `key` changed, and asks for a repaint of the lines that came out different."""
        width, height = self.size
        if not width or not height or not self.display:
            return
        key = (self.key(), width, height)
        if key == self._drawn:
            return
        self._drawn = key
        before = self._strips
        if self._base is None:
            self._base = self.rich_style  # dear to compute: once, until the style changes
        base = self._base
        self._strips = [to_strip(line, width).apply_style(base) for line in self.draw(width, height)[:height]]
        changed = [
            Region(0, y, width, 1)
            for y in range(max(len(before), len(self._strips)))
            if y >= len(before) or y >= len(self._strips) or before[y]._segments != self._strips[y]._segments
        ]
        if changed:
            self.refresh(*changed)

    def forget(self) -> None:
        """The next state does not follow from the last: equal keys say nothing."""
        self._drawn = None

    def on_resize(self, event: events.Resize) -> None:
        self._draw_all()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._base = None
        self._draw_all()

    def _draw_all(self) -> None:
        self._drawn = None
        self._strips = []
        self.redraw()
        self.refresh()

    def on_show(self) -> None:
        self.redraw()

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else BLANK


def to_strip(pieces: Iterable[Piece], width: int) -> Strip:
    """The pieces that fit, the last one cut to fit."""
    segments, left = [], width
    for text, style in pieces:
        cells = cell_len(text)
        if cells > left:
            text, cells = set_cell_size(text, left), left
        if cells:
            segments.append(Segment(text, style))
        left -= cells
        if not left:
            break
    return Strip(segments, width - left)


def spread(left: list[Piece], right: list[Piece], width: int, fill: Piece = (" ", PLAIN)) -> list[Piece]:
    """`left` and `right` at the ends of a line; what does not fit is cut from the left part."""
    gap = width - pieces_len(left) - pieces_len(right)
    if gap < bool(right):
        right = [(" ", PLAIN), *right] if right else []
        return [*to_pieces(to_strip(left, max(0, width - pieces_len(right)))), *right]
    return [*left, (fill[0] * gap, fill[1]), *right]


def ends(left: list[list[Piece]], right: list[list[Piece]], width: int) -> list[Piece]:
    """As `spread`, in the least terse wordings that fit beside each other. Each side has its own, from the longest on;
    they give way in turn, the right one first."""
    places = sorted(product(range(len(left)), range(len(right))), key=lambda place: (sum(place), place))
    worded = [(left[i], right[j]) for i, j in places]
    fits = (pair for pair in worded if pieces_len(pair[0]) + pieces_len(pair[1]) + bool(pair[1]) <= width)
    return spread(*next(fits, worded[-1]), width)


def rule(label: list[Piece], facts: list[Piece], width: int) -> list[Piece]:
    """A section's first line: what it is on the left, how much on the right, a thin line between."""
    line = palette.style(palette.now.faint)
    return spread([*label, (" ", line)], [(" ", line), *facts] if facts else [], width, ("─", line))


def overlaid(line: list[Piece], x: int, piece: Piece) -> list[Piece]:
    """The line with a piece in place of the cells from `x` on; as it is where it does not reach so far."""
    if not 0 <= x < pieces_len(line):
        return line
    strip = to_strip(line, pieces_len(line))
    after = x + cell_len(piece[0])
    return [*to_pieces(strip.crop(0, x)), piece, *to_pieces(strip.crop(after))]


def pieces_len(pieces: Iterable[Piece]) -> int:
    return sum(cell_len(text) for text, _ in pieces)


def to_pieces(strip: Strip) -> list[Piece]:
    return [(segment.text, segment.style or PLAIN) for segment in strip]


def joined(cells: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one style as one piece: fewer segments to paint."""
    pieces: list[Piece] = []
    run: list[str] = []
    run_style: Style | None = None
    for text, style in cells:
        if style is not run_style:
            if run_style is not None:
                pieces.append(("".join(run), run_style))
            run, run_style = [], style
        run.append(text)
    if run_style is not None:
        pieces.append(("".join(run), run_style))
    return pieces
