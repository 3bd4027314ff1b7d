"""The cache picture: layers × token positions, two layers a line."""

from __future__ import annotations

from typing import Any

from textual import events

from engines.events import KvState
from kvtui import figures, palette
from kvtui.cache_view import position_at, rows_for, source_at
from kvtui.inspection import Place
from kvtui.messages import Pointed
from kvtui.panes.awaited import awaited
from kvtui.panes.lines import Lines, Piece, joined, pieces_len, rule
from kvtui.panes.podium import presented
from kvtui.panes.server_load import told_nothing
from kvtui.state import EngineState, RunState


class Heatmap(Lines):
    """Reads `engine.cache`; all heatmaps share the scale of positions."""

    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._state: EngineState | None = None
        self._scale_tokens = 0

    def show(self, state: RunState) -> None:
        self._state = state.engines.get(self.engine)
        tokens = [engine.cache.tokens for engine in state.engines.values() if engine.cache is not None]
        self._scale_tokens = figures.position_ceiling(max(tokens, default=0))
        self.redraw()

    def key(self) -> Any:
        cache = self._state.cache if self._state is not None else None
        if cache is None:
            return awaited(self._state), self._anchors(), palette.now.name
        return id(cache), cache.version, self._scale_tokens, self._anchors()

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        dim = palette.style(palette.now.dim)
        cache = self._state.cache if self._state is not None else None
        scale = f"0–{self._scale_tokens:,}" if cache is not None else ""
        label = "layers × positions" if width >= 34 else "layers"
        if presented(self):
            label, scale = "what the cache holds" if width >= 24 else "cache", ""
        lines = [rule(self._title(label, width - len(scale) - 3), [(scale, dim)] if scale else [], width)]
        picture_lines = height - 1
        if cache is None:
            return lines + told_nothing(awaited(self._state), width, picture_lines)
        if picture_lines < 1:
            return lines
        from kvtui.panes import raster  # numpy, with the first picture rather than with the first frame

        picture = raster.rasterize(cache, rows_for(cache.layers, picture_lines), width, self._scale_tokens)
        color = palette.engine_color(self.engine)
        return lines + [paint(line, color) for line in raster.mark(picture)]

    def _title(self, label: str, width: int) -> list[Piece]:
        """What the picture is of; where there is room, or instead, how many positions are anchors."""
        dim = palette.style(palette.now.dim)
        pinned, left_out = self._anchors()
        if pinned is None:
            return [(label, dim)]
        style = palette.style(palette.now.anchor, bold=True)
        glyph, count = palette.GLYPHS[KvState.ANCHOR], figures.counted(pinned, "anchor")
        without = f"{count}, {left_out:,} left out" if left_out else count
        wordings: list[list[Piece]] = [
            [(f"{label}  ", dim), (f"{glyph} {without}", style)],
            [(f"{glyph} {without}", style)],
            [(f"{label}  ", dim), (f"{glyph} {count}", style)],
            [(f"{glyph} {count}", style)],
            [(count, style)],
        ]
        fitting = (wording for wording in wordings if pieces_len(wording) <= width)
        return next(fitting, [(f"{glyph} {pinned:,}", style)])

    def _anchors(self) -> tuple[int | None, int]:
        """Positions that are protected (None where none ever is), and early ones that found no room among them."""
        memory = self._state.memory if self._state is not None else None
        return (None, 0) if memory is None else (memory.anchors, memory.anchors_left_out)

    def on_click(self, event: events.Click) -> None:
        """Asks for the place to be looked at closely. The line above the picture is all layers."""
        cache = self._state.cache if self._state is not None else None
        width, height = self.size
        if cache is None or not width:
            return
        rows, y = rows_for(cache.layers, max(1, height - 1)), event.y - 1
        layer = source_at(y, cache.layers, rows) if 0 <= y < (rows + 1) // 2 else None
        position = position_at(event.x, 0, self._scale_tokens, width)
        self.post_message(Pointed(Place(position, layer, engine=self.engine)))


HOT = 12  # of `raster.SHADES`: without shades, what has more attention is bright, what has less is not


def paint(line: list[tuple[int, int, int, int, int]], color: str) -> list[Piece]:
    """One line of cells (see `raster.mark`), with one piece a run of equal ones."""
    from kvtui.panes.raster import SHADES, Mark

    cells: list[Piece] = []
    for mark, upper, lower, heat, dots in line:
        if mark == Mark.SOLID and palette.now.flat:
            shown = palette.blend(palette.now.background, color, 1.0 if heat >= HOT else 0.4)
            cells.append((_HALVES[upper > 0, lower > 0], palette.style(shown)))
        elif mark == Mark.SOLID:
            upper_color = palette.blend(palette.now.background, color, upper / SHADES)
            lower_color = palette.blend(palette.now.background, color, lower / SHADES)
            cells.append((palette.GLYPHS[KvState.DEVICE], palette.style(upper_color, lower_color)))
        elif mark == Mark.THINNED:
            shown = palette.blend(palette.now.background, color, 0.4 + 0.6 * heat / SHADES)
            ground = palette.blend(palette.now.background, color, max(upper, lower) / SHADES * 0.35)
            cells.append((palette.THINNED[dots], palette.style(shown, None if palette.now.flat else ground)))
        elif mark == Mark.BLANK:
            cells.append((" ", palette.style()))
        else:
            state, name, floor = _MARKS[mark]
            base = getattr(palette.now, name) if name else color
            shown = palette.blend(palette.now.background, base, floor + (1 - floor) * heat / SHADES)
            cells.append((palette.GLYPHS[state], palette.style(shown)))
    return joined(cells)


_HALVES = {(True, True): "█", (True, False): "▀", (False, True): "▄", (False, False): " "}

# By `raster.Mark`: the state, the name of its colour in the palette ("" is the engine's own), and the share of it that
# is left without attention.
_MARKS = {
    3: (KvState.HOST, "", 0.25),
    4: (KvState.DISK, "host", 0.4),
    5: (KvState.FETCHED, "fetched", 0.5),
    6: (KvState.EVICTED, "evicted", 1.0),
    7: (KvState.ANCHOR, "anchor", 0.6),
}
