"""The whole document in one narrow column: how much of each stretch is left, and which stretch is on the screen."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from kvtui import palette
from kvtui.fading import LEVELS, Fading, Kind
from kvtui.panes.ink import glyph
from kvtui.panes.lines import Piece
from kvtui.reading import ALL, Reading

_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Minimap:
    """Draws what `Reading.look` saw last: a bar an engine, as long as the share of entries on the device."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._bars: tuple[Any, list[list[Piece]]] = (None, [])

    @property
    def width(self) -> int:
        return 1 + (len(self._reading.engines) if self._reading.engine == ALL else 2)

    def key(self) -> Any:
        return self._reading.looks

    def draw(self, height: int, visible: range) -> list[list[Piece]]:
        """`height` lines; none for a document that is all `visible`."""
        reading, size = self._reading, len(self._reading.script)
        if not size or len(visible) >= size:
            return []
        edges = np.arange(height + 1) * size // height
        lines: list[list[Piece]] = []
        thumb, track = palette.style(palette.now.foreground), palette.style(palette.now.faint)
        for y in range(height):
            here = edges[y] < visible.stop and edges[y + 1] > visible.start
            lines.append([("┃", thumb) if here else ("│", track)])
        key = (reading.looks, reading.engine, height, palette.now.name)
        if self._bars[0] != key:
            cells = 1 if reading.engine == ALL else 2
            stretches = [(int(a), max(int(a) + 1, int(b))) for a, b in pairwise(edges)]
            whole = [(reading.whole(engine), engine) for engine in reading.engines]
            self._bars = key, [[_bar(seen, engine, *stretch, cells) for seen, engine in whole] for stretch in stretches]
        return [line + bars for line, bars in zip(lines, self._bars[1], strict=True)]


def _bar(whole: Fading, engine: str, first: int, end: int, cells: int) -> Piece:
    left = whole.on_device(first, end)
    color = palette.engine_color(engine)
    if left * cells * 8 >= 0.5:
        eighths = round(left * cells * 8)
        full, rest = divmod(eighths, 8)
        bar = "█" * full + (_EIGHTHS[rest] if rest else "")
        return f"{bar:<{cells}}", palette.style(palette.blend(palette.now.background, color, 0.4 + 0.6 * left))
    kinds = whole.kinds[first:end]
    for kind in (Kind.HOST, Kind.EVICTED):
        if (kinds == kind).mean() >= 0.5:
            return glyph(kind, LEVELS) * cells, palette.style(palette.now.dim)
    return " " * cells, palette.style()
