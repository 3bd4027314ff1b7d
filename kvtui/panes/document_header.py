"""Above and below the document: whose words these are and what is left of them, and what the looks of a word mean."""

from __future__ import annotations

from typing import Any

from kvtui import palette
from kvtui.fading import LEVELS, Kind
from kvtui.names import name_of
from kvtui.panes.ink import NAMES, Ink, glyph
from kvtui.panes.lines import Lines, Piece, pieces_len, spread
from kvtui.reading import ALL, Reading

THINNED_LEVEL = LEVELS // 4
WIDE = 110  # columns; with less, figures are said in fewer words


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
        reading, dim = self._reading, palette.style(palette.now.dim)
        pieces: list[Piece] = [(" ", dim)]
        for engine in reading.engines:
            name = palette.style(palette.engine_color(engine), bold=True)
            if len(pieces) > 1:
                pieces.append(("   ", dim))
            for number, (figure, words) in enumerate(self._facts(engine, width)):
                pieces += [(f"{name_of(engine)}  " if not number else " · ", name if not number else dim)]
                pieces += [(figure, palette.style(palette.now.foreground, bold=True)), (words, dim)]
        return pieces

    def _facts(self, engine: str, width: int) -> list[tuple[str, str]]:
        """Figures and what they are of."""
        whole = self._reading.whole(engine)
        if not (whole.kinds != Kind.UNREAD).any():
            return [("", "no picture of its cache yet")]
        shares = whole.shares()
        wide = self._reading.engine != ALL and width >= WIDE
        facts = [(_percent(whole.on_device()), " of all entries on the device" if wide else " on device")]
        for kind, words in (
            (Kind.EVICTED, " of the tokens evicted everywhere" if wide else " evicted"),
            (Kind.HOST, " of the tokens on the host" if wide else " on host"),
            (Kind.FETCHED, " fetched for the last token" if wide else " fetched"),
            (Kind.ANCHOR, " held by anchors" if wide else " anchors"),
        ):
            if shares[kind]:
                facts.append((_percent(shares[kind]), words))
        return facts


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
        reading, dim = self._reading, palette.style(palette.now.dim)
        alone = reading.engine != ALL
        shares = reading.whole(reading.engine).shares() if alone else {}
        # Figures where they fit: eleven columns each, spaces and glyph counted.
        alone = alone and width > sum(11 + len(name) for name in NAMES.values())
        gap = "   " if width >= 80 else " "
        left: list[Piece] = [(" ", dim)]
        for kind, name in NAMES.items():
            level = THINNED_LEVEL if kind == Kind.THINNED else 0 if kind == Kind.HOST else LEVELS
            mark = self._ink.mark(reading.script.engine, kind, LEVELS)
            left += [(glyph(kind, level), mark), (" ", dim)]
            plain = reading.engine == ALL or (kind == Kind.EVICTED and self.masked)
            left.append((name, dim if plain else self._ink.word(kind, level)))
            left.append((f" {_percent(shares[kind]):>5}{gap}" if alone else gap, dim))
        answer: list[Piece] = [("┃", palette.style(palette.engine_color(reading.script.engine), bold=True))]
        answer += [(" answer ", dim)]
        return [spread(left, answer if pieces_len(left) + 10 < width else [], width)]


def _percent(share: float) -> str:
    """Whole ones; not 0 or 100 for what is not quite that."""
    value = round(share * 100)
    if value == 0 and share > 0:
        return "<1 %"
    if value == 100 and share < 1:
        return ">99 %"
    return f"{value} %"
