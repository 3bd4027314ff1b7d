"""One engine's part of the full-screen cache picture: layers, or the heads of one layer, × a window of positions."""

from __future__ import annotations

from typing import Any

from rich.cells import set_cell_size
from textual import events
from textual.message import Message

from engines.events import ENGINE_LABELS
from kvtui import figures, palette
from kvtui.cache_view import View, column_of, line_of, position_at, rows_for, source_at, window
from kvtui.literal import one_line
from kvtui.panes.awaited import awaited
from kvtui.panes.heatmap import paint
from kvtui.panes.lines import Lines, Piece, overlaid, pieces_len, rule
from kvtui.state import EngineState

GUTTER = 5
GUTTER_FROM = 16  # cells of width, from which on rows are numbered
RULE_FROM = 3  # lines of height, from which on a picture has a line of its own for its name
HERE, HERE_COLUMN = "╋", "▼"


class CachePicture(Lines):
    """Says `Picked` when somebody clicks on it, `Wheeled` when the wheel is turned."""

    class Picked(Message):
        """`position` is this engine's; `row` a layer, or a head where heads are shown; None beside them."""

        def __init__(self, engine: str, position: int, row: int | None) -> None:
            super().__init__()
            self.engine, self.position, self.row = engine, position, row

    class Wheeled(Message):
        """Nearer (1) or farther (−1), around the position under the pointer."""

        def __init__(self, steps: int, position: int) -> None:
            super().__init__()
            self.steps, self.position = steps, position

    def __init__(self, engine: str, number: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine, self.number = engine, number
        self._state: EngineState | None = None
        self._view = View()
        self._cursor: int | None = None
        self._tokens = 0
        self._shown: Any = None  # what `_painted` shows,
        self._how: Any = None  # and how
        self._painted: list[list[Piece]] = []
        self._top = 1.0

    def show(self, state: EngineState | None, view: View, tokens: int, cursor: int | None) -> None:
        """`cursor` is this engine's position of what the view's cursor is on; None where it has no such token."""
        self._state, self._view, self._tokens, self._cursor = state, view, tokens, cursor
        self.redraw()

    def key(self) -> Any:
        cache = self._state.cache if self._state is not None else None
        seen = (id(cache), cache.version, id(self._heads())) if cache is not None else awaited(self._state)
        return palette.now.name, seen, self._view, self._cursor, window(self._view, self._tokens)

    def _heads(self) -> Any:
        """Of the layer in view, if they are what is shown and were seen already."""
        cache = self._state.cache if self._state is not None else None
        return cache.heads.get(self._view.layer) if cache is not None and self._view.heads else None  # type: ignore[arg-type]

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        margin = gutter(width)
        start, span = window(self._view, self._tokens)
        column = None
        if self._cursor is not None and start <= self._cursor < start + span:
            column = column_of(self._cursor, start, span, width - margin)
        named = height >= RULE_FROM
        lines = [self._rule(width, margin + column if column is not None else 0)] if named else []
        sources, picture = self._picture(width - margin, height - len(lines))
        row = self._view.head if self._view.heads else self._view.layer
        rows = rows_for(sources, height - len(lines)) if sources else 0
        here = line_of(min(row, sources - 1), sources, rows) if row is not None and sources else -1
        strong = palette.style(palette.now.background, palette.now.foreground, bold=True)
        for y, line in enumerate(picture):
            if y == here and column is not None:
                line = overlaid(line, column, (HERE, strong))
            lines.append([*self._margin(y, here, row, sources, rows, margin, named), *line])
        if not picture:
            seen = self._state is not None and self._state.cache is not None  # but not its heads
            words = "nothing to show yet" if seen else awaited(self._state)
            nothing = (words, palette.style(palette.now.dim, italic=True))
            lines.append([(" " * margin, nothing[1]) if named else self._short_name(margin), nothing])
        return lines

    def _rule(self, width: int, cursor: int) -> list[Piece]:
        """The engine's name and, in few words, what became of its entries; the cursor's column between."""
        color, dim = palette.engine_color(self.engine), palette.style(palette.now.dim)
        strong = palette.style(palette.now.background, color, bold=True)
        named: list[Piece] = [(f" {self.number} {self._label()} ", strong), (f"  {self._facts()} ", dim)]
        line = rule(named, [], width)
        if cursor > pieces_len(named):
            line = overlaid(line, cursor, (HERE_COLUMN, palette.style(palette.now.foreground, bold=True)))
        return line

    def _label(self) -> str:
        return one_line(self._state.label) if self._state is not None else ENGINE_LABELS.get(self.engine, self.engine)

    def _short_name(self, width: int) -> Piece:
        name = set_cell_size(self._label(), max(0, width - 1))
        return f"{name} "[:width], palette.style(palette.engine_color(self.engine), bold=True)

    def _facts(self) -> str:
        cache = self._state.cache if self._state is not None else None
        if cache is None:
            return "not told" if self._state is not None and self._state.remote else "no cache yet"
        facts = []
        if self._view.heads:
            heads = self._heads()
            if heads is None:
                return "this layer has not been seen head by head yet"
            if heads.tokens != cache.tokens:
                facts.append(f"as of token {heads.tokens:,}")
        else:
            facts.append(figures.counted(cache.tokens, "token"))
            if cache.evicted_tokens >= 0.5:
                facts.append(f"{cache.evicted_tokens:,.0f} evicted")
            if cache.fetched_tokens >= 0.5:
                facts.append(f"{cache.fetched_tokens:,.0f} fetched now")
        if not self._view.log:
            facts.append(f"full brightness at {figures.share(self._top)} of attention")
        return " · ".join(facts)

    def _picture(self, columns: int, lines: int) -> tuple[int, list[list[Piece]]]:
        """How many layers or heads there are, and the lines that show them; kept as long as they are the same."""
        cache = self._state.cache if self._state is not None else None
        shown = self._heads() if self._view.heads else cache
        if cache is None or shown is None or columns < 1 or lines < 1:
            return 0, []
        from kvtui.panes import raster  # numpy, with the first picture rather than with the first frame

        sources = len(shown.mass)
        start, span = window(self._view, self._tokens)
        how = (start, span, self._view.log, columns, lines, palette.now)
        if self._shown is not shown or self._how != how:
            rasterize: Any = raster.rasterize_heads if self._view.heads else raster.rasterize
            picture: raster.Raster = rasterize(
                shown, rows_for(sources, lines), columns, span, start, log=self._view.log
            )
            color = palette.engine_color(self.engine)
            self._painted = [paint(line, color) for line in raster.mark(picture)]
            self._shown, self._how, self._top = shown, how, picture.top
        return sources, self._painted

    def _margin(
        self, y: int, here: int, row: int | None, sources: int, rows: int, margin: int, named: bool
    ) -> list[Piece]:
        """The number of the line's first layer or head, on the outermost lines and the cursor's."""
        if not margin:
            return []
        if not named and y == 0:
            return [self._short_name(margin)]
        if y == here and row is not None:
            return [(f"{row + 1:>{margin - 2}} ▸", palette.style(palette.now.foreground, bold=True))]
        last = (rows - 1) // 2
        number = sources if y == last and not self._view.heads else source_at(y, sources, rows) + 1
        said = y in (0, last)
        if self._view.heads:
            said = y == line_of(number - 1, sources, rows)
        return [(f"{number if said else '':>{margin - 2}}  ", palette.style(palette.now.dim))]

    def on_click(self, event: events.Click) -> None:
        event.stop()
        width, height = self.size
        top = 1 if height >= RULE_FROM else 0
        sources, picture = self._picture(width - gutter(width), height - top)
        y = event.y - top
        row = source_at(y, sources, rows_for(sources, height - top)) if 0 <= y < len(picture) else None
        self.post_message(self.Picked(self.engine, self._position(event.x), row))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.post_message(self.Wheeled(1, self._position(event.x)))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.post_message(self.Wheeled(-1, self._position(event.x)))

    def _position(self, x: int) -> int:
        width = self.size.width
        columns = max(1, width - gutter(width))
        start, span = window(self._view, self._tokens)
        return position_at(min(max(0, x - gutter(width)), columns - 1), start, span, columns)


def gutter(width: int) -> int:
    return GUTTER if width >= GUTTER_FROM else 0
