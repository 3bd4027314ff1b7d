"""What the glyphs of the cache picture mean: one line for all columns."""

from __future__ import annotations

from typing import Any

from engines.events import KvState
from kvtui import palette
from kvtui.panes.lines import Lines, Piece, ends
from kvtui.state import RunState

_MEANINGS = (
    (palette.GLYPHS[KvState.DEVICE], "foreground", "on device"),
    (palette.THINNED[1], "foreground", "thinned out"),
    (palette.GLYPHS[KvState.HOST], "foreground", "on host"),
    (palette.GLYPHS[KvState.DISK], "host", "on disk"),
    (palette.GLYPHS[KvState.FETCHED], "fetched", "fetched now"),
    (palette.GLYPHS[KvState.EVICTED], "dim", "evicted"),
    (palette.GLYPHS[KvState.ANCHOR], "anchor", "anchor"),
)  # glyph, colour by its name in the palette, meaning


class Legend(Lines):
    """The disk is mentioned once it is in use."""

    _disk = False

    def show(self, state: RunState) -> None:
        self._disk = any(engine.disk_bytes for engine in state.engines.values())
        self.redraw()

    def key(self) -> Any:
        return palette.now.name, self._disk

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        dim = palette.style(palette.now.dim)
        left: list[Piece] = [(" cache  ", dim)]
        for glyph, color, meaning in _MEANINGS:
            if glyph == palette.GLYPHS[KvState.DISK] and not self._disk:
                continue
            if palette.now.flat and glyph == palette.GLYPHS[KvState.DEVICE]:
                glyph = "█"  # as the picture has it, where a cell has one colour
            left += [(glyph, palette.style(getattr(palette.now, color), bold=True)), (f" {meaning}   ", dim)]
        steps = [
            palette.blend(palette.now.background, palette.now.foreground, share)
            for share in (0.25, 0.4, 0.55, 0.7, 0.85, 1)
        ]
        right: list[Piece] = []
        if palette.now.colors:
            right = [("attention ", dim), *((("█", palette.style(step))) for step in steps), (" ", dim)]
        return [ends([left], [right, []], width)]
