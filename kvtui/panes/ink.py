"""How a token looks, by what an engine has left of it: as a word, and as a glyph under it."""

from __future__ import annotations

import re
from typing import Any

from rich.cells import cell_len
from rich.style import Style

from engines.events import KvState
from kvtui import palette
from kvtui.fading import LEVELS, Kind

FLOOR = 0.4  # of the foreground's brightness, for a word of which hardly anything is left
NAMES = {
    Kind.KEPT: "kept",
    Kind.THINNED: "thinned out",
    Kind.HOST: "on host",
    Kind.FETCHED: "fetched now",
    Kind.EVICTED: "evicted",
    Kind.ANCHOR: "anchor",
}
_STATES = {
    Kind.UNREAD: KvState.ABSENT,
    Kind.KEPT: KvState.DEVICE,
    Kind.HOST: KvState.HOST,
    Kind.FETCHED: KvState.FETCHED,
    Kind.EVICTED: KvState.EVICTED,
    Kind.ANCHOR: KvState.ANCHOR,
}
_WORDS = re.compile(r"\S+")


def glyph(kind: int, level: int = LEVELS // 4) -> str:
    if kind == Kind.THINNED:  # under half of it, in as many steps as there are dots
        return palette.THINNED[min(len(palette.THINNED) - 1, 2 * level * len(palette.THINNED) // (LEVELS + 1))]
    return palette.GLYPHS[_STATES[Kind(kind)]]


def dots(shown: str) -> str:
    """A word that has gone: as wide as it was."""
    return _WORDS.sub(lambda word: "·" * cell_len(word[0]), shown)


class Ink:
    """Styles of one palette, each made once: a line has dozens. `masked`: evicted words are dots rather than struck."""

    def __init__(self) -> None:
        self.palette = palette.now
        self.masked = False
        self._made: dict[Any, Style] = {}

    def renew(self, masked: bool) -> bool:
        """Before drawing: the palette may be another one by now. Returns whether anything is."""
        if self.palette is palette.now and self.masked == masked:
            return False
        self.palette, self.masked = palette.now, masked
        self._made.clear()
        return True

    def word(self, kind: int, level: int, *, cursor: str = "", match: int = 0) -> Style:
        """`cursor` is a colour where the cursor is, `match` 1 for what a search found and 2 for the current one."""
        key = (kind, level, cursor, match)
        if key not in self._made:
            self._made[key] = self._word(kind, level, cursor, match)
        return self._made[key]

    def _word(self, kind: int, level: int, cursor: str, match: int) -> Style:
        now, style = self.palette, palette.style
        if cursor:
            return style(cursor, now.background, bold=True, reverse=True)
        if match:
            return style(now.warning, now.background, bold=match == 2, underline=match == 2, reverse=True)
        if kind == Kind.UNREAD:
            return style(now.dim)
        if kind == Kind.HOST:
            return style(palette.blend(now.host, now.foreground, 0.6 * level / LEVELS), italic=True)
        if kind == Kind.FETCHED:
            return style(now.fetched, bold=True, underline=True)
        if kind == Kind.EVICTED:
            return style(now.evicted, strike=not self.masked)
        if kind == Kind.ANCHOR:
            return style(now.anchor, bold=True, reverse=True)
        return style(palette.blend(now.background, now.foreground, FLOOR + (1 - FLOOR) * level / LEVELS))

    def mark(self, engine: str, kind: int, level: int) -> Style:
        """Of the glyph under a word: in the engine's colour."""
        key = (engine, kind, level)
        if key not in self._made:
            self._made[key] = self._mark(engine, kind, level)
        return self._made[key]

    def _mark(self, engine: str, kind: int, level: int) -> Style:
        now, style, color = self.palette, palette.style, palette.engine_color(engine)
        if kind == Kind.HOST:
            return style(palette.blend(now.background, color, 0.45))
        if kind == Kind.FETCHED:
            return style(now.fetched, bold=True)
        if kind == Kind.EVICTED:
            return style(now.dim)
        if kind == Kind.ANCHOR:
            return style(now.anchor, bold=True)
        return style(palette.blend(now.background, color, FLOOR + (1 - FLOOR) * level / LEVELS))
