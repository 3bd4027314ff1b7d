"""Above and below the document: whose words these are and what is left of them, and what the looks of a word mean."""

from __future__ import annotations

from typing import Any

from engines.events import SERVER, KvState
from kvtui import figures, palette
from kvtui.fading import LEVELS, Kind
from kvtui.names import name_of
from kvtui.panes.ink import NAMES, Ink, glyph
from kvtui.panes.lines import Lines, Piece, pieces_len, spread
from kvtui.panes.server_load import NOT_TOLD
from kvtui.reading import ALL, Reading
from kvtui.tiers import ON_DEVICE, shares

THINNED_LEVEL = LEVELS // 4

_WORDS = {
    KvState.DEVICE: "on device",
    KvState.FETCHED: "fetched now",
    KvState.ANCHOR: "anchors",
    KvState.HOST: "on host",
    KvState.DISK: "on disk",
    KvState.EVICTED: "evicted",
}
_GLYPHS = {state: palette.GLYPHS[state] for state in _WORDS}


class DocumentHeader(Lines):
    """Two lines: the engines to choose from, and in words what the chosen ones have left."""

    def __init__(self, reading: Reading, catalogue: list[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._reading, self._catalogue = reading, catalogue

    def key(self) -> Any:
        reading, visible = self._reading, self._reading.visible()
        shown = (reading.edition, visible.start, visible.stop, len(reading.script))
        return palette.now.name, reading.engine, list(reading.state.engines), reading.looks, shown

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        return [spread(self._tabs(width), self._where(), width), self._left(width)][:height]

    def _tabs(self, width: int) -> list[Piece]:
        """Engines with the keys that choose them."""
        strong, dim = palette.style(palette.now.foreground, bold=True), palette.style(palette.now.dim)
        pieces: list[Piece] = [(" document  ", strong)] if width >= 60 else [(" ", dim)]
        for engine in self._reading.state.engines:
            number = self._catalogue.index(engine) + 1 if engine in self._catalogue else len(self._catalogue) + 1
            chosen = engine == self._reading.engine
            pieces.append(
                (f" {number} {name_of(engine)} ", palette.style(palette.engine_color(engine), reverse=chosen))
            )
        chosen = self._reading.engine == ALL
        return [*pieces, (" a overlaid ", palette.style(palette.now.foreground, reverse=chosen))]

    def _where(self) -> list[Piece]:
        reading, script = self._reading, self._reading.script
        tokens = reading.tokens_of(reading.visible())
        if not tokens:
            return []
        first, last = script.position_of(tokens.start), script.position_of(tokens.stop - 1)
        end = script.position_of(len(script) - 1) + 1
        return [(f"positions {first:,}–{last:,} of {end:,} ", palette.style(palette.now.dim))]

    def _left(self, width: int) -> list[Piece]:
        """What the engines have left, in as many words as there is room for."""
        there = {engine: self._reading.state.engines.get(engine) for engine in self._reading.engines}
        caches = {engine: state.cache for engine, state in there.items() if state is not None}
        held = {engine: shares(cache) if cache is not None else {} for engine, cache in caches.items()}
        if list(held) == [SERVER]:
            return [(f" {NOT_TOLD}", palette.style(palette.now.dim, italic=True))]
        if not any(held.values()):
            return [(" what is left of the words is not known yet", palette.style(palette.now.dim, italic=True))]
        tokens = {f"{cache.tokens:,} " for cache in caches.values() if cache is not None}
        of = f"of all KV entries (layers × heads × {tokens.pop() if len(tokens) == 1 else ''}tokens)"
        wordings = [
            _worded(held, *how) for how in ((of, _WORDS), ("of all entries", _WORDS), ("of all entries", _GLYPHS))
        ]
        fitting = (line for line in wordings if pieces_len(line) <= width)
        return next(fitting, _on_device(held))


class DocumentLegend(Lines):
    """One line: each look with its glyph, and how many of the chosen engine's tokens look like that."""

    def __init__(self, reading: Reading, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._reading = reading
        self.masked = False
        self._ink = Ink()

    def key(self) -> Any:
        return palette.now.name, self._reading.engine, self._reading.looks, self.masked

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        self._ink.renew(self.masked)
        reading = self._reading
        left = self._looks({}, width)
        if reading.engine != ALL and (reading.whole(reading.engine).kinds != Kind.UNREAD).any():
            looks = reading.whole(reading.engine).shares()
            told = self._looks(dict(zip(looks, figures.percents(list(looks.values())), strict=True)), width)
            left = told if pieces_len(told) <= width else left
        dim = palette.style(palette.now.dim)
        answer: list[Piece] = [("┃", palette.style(palette.engine_color(reading.script.engine), bold=True))]
        answer += [(" answer ", dim)]
        return [spread(left, answer if pieces_len(left) + 10 < width else [], width)]

    def _looks(self, counts: dict[Kind, str], width: int) -> list[Piece]:
        """`counts` are figures to put beside them; none, where there is nothing to count or no room."""
        reading, dim = self._reading, palette.style(palette.now.dim)
        gap = "  " if counts or width < 80 else "   "
        pieces: list[Piece] = [(" tokens  " if counts else " ", dim)]
        for kind, name in NAMES.items():
            level = THINNED_LEVEL if kind == Kind.THINNED else 0 if kind == Kind.HOST else LEVELS
            pieces += [(glyph(kind, level), self._ink.mark(reading.script.engine, kind, LEVELS)), (" ", dim)]
            plain = reading.engine == ALL or (kind == Kind.EVICTED and self.masked)
            pieces.append((name, dim if plain else self._ink.word(kind, level)))
            pieces.append((f" {counts[kind]:>5}{gap}" if counts else gap, dim))
        return pieces


def _worded(held: dict[str, dict[KvState, float]], of: str, words: dict[KvState, str]) -> list[Piece]:
    """All states of all engines; `of` is what the figures are shares of."""
    dim, strong = palette.style(palette.now.dim), palette.style(palette.now.foreground, bold=True)
    pieces: list[Piece] = [(f" {of}", dim)]
    for engine, parts in held.items():
        pieces.append((f"   {name_of(engine)} ", palette.style(palette.engine_color(engine), bold=True)))
        states = [state for state in words if parts.get(state)]
        told = zip(figures.percents([parts[state] for state in states]), map(words.get, states), strict=True)
        for number, (figure, word) in enumerate(told):
            before, after = ("", f" {word}") if words is _WORDS else (f"{word} ", "")
            between = "" if not number else " · " if words is _WORDS else " "
            pieces += [(between + before, dim), (figure, strong), (after, dim)]
        if not states:
            missing = "not told" if engine == SERVER else "not known yet"
            pieces.append((missing if words is _WORDS else "–", dim))
    return pieces


def _on_device(held: dict[str, dict[KvState, float]]) -> list[Piece]:
    """The one figure that matters most, where there is no room for others."""
    strong = palette.style(palette.now.foreground, bold=True)
    pieces: list[Piece] = [(" on device", palette.style(palette.now.dim))]
    for engine, parts in held.items():
        if engine == SERVER:  # never tells
            continue
        share = sum(parts.get(state, 0.0) for state in ON_DEVICE)
        pieces.append((f" {name_of(engine)} ", palette.style(palette.engine_color(engine), bold=True)))
        pieces.append((figures.percents([share])[0].replace(" ", "") if parts else "–", strong))
    return pieces
