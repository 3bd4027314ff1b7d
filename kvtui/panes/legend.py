"""What the glyphs of the cache picture mean: one line for all columns."""

from __future__ import annotations

from typing import Any

from engines.events import KvState
from kvtui import palette
from kvtui.panes.lines import Lines, Piece, spread

_MEANINGS = (
    (palette.GLYPHS[KvState.DEVICE], palette.FOREGROUND, "on device"),
    (palette.THINNED[1], palette.FOREGROUND, "thinned out"),
    (palette.GLYPHS[KvState.HOST], palette.FOREGROUND, "on host"),
    (palette.GLYPHS[KvState.FETCHED], palette.FETCHED, "fetched now"),
    (palette.GLYPHS[KvState.EVICTED], palette.DIM, "evicted"),
    (palette.GLYPHS[KvState.ANCHOR], palette.ANCHOR, "anchor"),
)


class Legend(Lines):
    def key(self) -> Any:
        return None

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        dim = palette.style(palette.DIM)
        left: list[Piece] = [(" cache  ", dim)]
        for glyph, color, meaning in _MEANINGS:
            left += [(glyph, palette.style(color, bold=True)), (f" {meaning}   ", dim)]
        steps = [
            palette.blend(palette.BACKGROUND, palette.FOREGROUND, share) for share in (0.25, 0.4, 0.55, 0.7, 0.85, 1)
        ]
        right = [("attention ", dim), *((("█", palette.style(step))) for step in steps), (" ", dim)]
        return [spread(left, right, width)]
