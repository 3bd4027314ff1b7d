"""What part of the cache the full-screen picture shows, and the moves within it: numbers only.

`tokens` is always how many positions the longest of the shown caches has, `columns` how many cells a line has for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kvtui import figures

SPAN_LEAST = 16
JUMPS = 32  # while it follows the tail, the window moves on by so small a part of itself: bins stay the same between


@dataclass(frozen=True)
class View:
    """The window begins at `start` and is `span` positions long (None: all of them, rounded up). `cursor` is a
    position. With `follow` the window's right edge is at the newest token, and a cursor on the newest stays there.
    `heads` shows the KV heads of `layer`; otherwise `layer` (None: all) is the row of the cursor, as `head` is then.
    `log`: brightness on the log scale of attention mass, or in proportion to it."""

    cursor: int = 0
    start: int = 0
    span: int | None = None
    follow: bool = True
    log: bool = True
    heads: bool = False
    layer: int | None = None
    head: int | None = None


def whole(tokens: int) -> int:
    return figures.position_ceiling(tokens)


def span_of(view: View, tokens: int) -> int:
    return view.span if view.span is not None else whole(tokens)


def window(view: View, tokens: int) -> tuple[int, int]:
    """(start, span) as it is to be drawn."""
    return view.start, span_of(view, tokens)


def clamped(view: View, tokens: int, layers: int, heads: int, *, grown_from: int | None = None) -> View:
    """The nearest view that exists: within `tokens`, `layers` and KV `heads` (0: not known). `grown_from` is how many
    positions there were when the view was last clamped."""
    last = max(0, tokens - 1)
    cursor = min(max(0, view.cursor), last)
    if view.follow and grown_from is not None and view.cursor >= grown_from - 1:
        cursor = last
    span = view.span if view.span is not None and max(SPAN_LEAST, view.span) < whole(tokens) else None
    span = span and max(SPAN_LEAST, span)
    if span is None:
        start = 0
    elif view.follow:
        start = tail(tokens, span)
    else:
        start = min(max(0, view.start), tail(tokens, span))
    cursor = min(max(start, cursor), start + (span or whole(tokens)) - 1)
    layer, head = _within(view.layer, layers), _within(view.head, heads)
    if view.heads:
        layer = layer or 0
    return replace(view, cursor=cursor, start=start, span=span, layer=layer, head=head if view.heads else None)


def _within(row: int | None, rows: int) -> int | None:
    return row if row is None or not rows else min(max(0, row), rows - 1)


def tail(tokens: int, span: int) -> int:
    """The start of the window that ends at the newest token."""
    jump = max(1, span // JUMPS)
    return max(0, -(-(tokens - span) // jump) * jump)


def zoomed(view: View, steps: int, tokens: int, around: int | None = None) -> View:
    """Nearer (`steps` > 0) or farther by powers of two; `around` (by default the cursor) stays where it is on screen.
    The tail is followed on only where it stays in sight."""
    start, span = window(view, tokens)
    centre = view.cursor if around is None else around
    centre = min(max(start, centre), start + span - 1)
    new = min(max(SPAN_LEAST, span >> steps if steps > 0 else span << -steps), whole(tokens))
    begin = centre - (centre - start) * new // span
    return replace(view, start=begin, span=new, follow=view.follow and begin + new >= tokens)


def panned(view: View, positions: int, tokens: int) -> View:
    """The window moves, and the cursor with it. To the left it lets go of the tail."""
    start, span = window(view, tokens)
    begin = min(max(0, start + positions), tail(tokens, span))
    moved = begin - start
    return replace(view, start=begin, cursor=view.cursor + moved, follow=view.follow and moved >= 0)


def moved(view: View, cells: int, tokens: int, columns: int) -> View:
    """The cursor moves by cells of the screen (by positions, where a position fills several)."""
    start, span = window(view, tokens)
    if span <= columns:
        return placed(view, view.cursor + cells, tokens)
    column = (view.cursor - start) * columns // span + cells
    return placed(view, start + -(-column * span // columns), tokens)


def placed(view: View, position: int, tokens: int) -> View:
    """The cursor at a position, the window moved just so far that it shows it."""
    start, span = window(view, tokens)
    cursor = min(max(0, position), max(0, tokens - 1))
    begin = min(max(start, cursor - span + 1), cursor)
    return replace(view, cursor=cursor, start=begin, follow=view.follow and begin >= start)


def followed(view: View, tokens: int) -> View:
    """Follows the tail, the cursor on the newest token."""
    return replace(view, follow=True, cursor=max(0, tokens - 1))


def seen_layer(view: View, wanted: int, seen: Sequence[Collection[int]]) -> int | None:
    """The layer whose heads can be shown when nothing more comes: the nearest to `wanted` that as many of the shown
    engines as possible were `seen` in, head by head (a set an engine); beyond the view's own layer, if that is shown
    already. None where there is none."""
    counts = Counter(layer for layers in seen for layer in layers)
    most = max(counts.values(), default=0)
    best = [layer for layer, count in counts.items() if count == most]
    if view.heads and view.layer is not None and wanted != view.layer:
        step = 1 if wanted > view.layer else -1
        best = [layer for layer in best if (layer - view.layer) * step > 0]
    return min(best, key=lambda layer: (abs(layer - wanted), layer), default=None)


def column_of(position: int, start: int, span: int, columns: int) -> int:
    """The cell that shows a position; its middle one, where a position fills several."""
    index = position - start
    if span >= columns:
        return index * columns // span
    first, end = -(-index * columns // span), -(-(index + 1) * columns // span)
    return (first + end - 1) // 2


def position_at(column: int, start: int, span: int, columns: int) -> int:
    """The first position that a cell shows."""
    return start + (-(-column * span // columns) if span >= columns else column * span // columns)


def rows_for(sources: int, lines: int) -> int:
    """Half lines for `sources` rows (layers or heads) in `lines` lines: whole lines each where they fit."""
    return 2 * sources * (lines // sources) if lines >= sources else min(sources, 2 * lines)


def line_of(source: int, sources: int, rows: int) -> int:
    """The line that shows a layer or head; the first, where it fills several."""
    return (source * rows // sources if rows < sources else source * (rows // sources)) // 2


def source_at(line: int, sources: int, rows: int) -> int:
    """The first layer or head that a line shows."""
    row = min(2 * line, rows - 1)
    return -(-row * sources // rows) if rows < sources else row // (rows // sources)
