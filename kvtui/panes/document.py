"""The document's own words, fading where an engine has let them go. Only the lines on the screen are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.cells import cell_len
from textual import events
from textual.message import Message

from kvtui import palette
from kvtui.fading import LEVELS, Fading, Kind
from kvtui.literal import literal
from kvtui.panes.ink import Ink, dots, glyph, name_of
from kvtui.panes.lines import Lines, Piece, joined, pieces_len
from kvtui.panes.minimap import Minimap
from kvtui.reading import ALL, Reading
from kvtui.state import RunState

WHEEL_LINES = 3
NARROW = 48  # columns; with less there is no room for positions and the map
SOON_S = 1 / 100
PLAIN_LEVEL = LEVELS


class DocumentPane(Lines):
    """Draws a `Reading`. With all engines, every line of text has a line of glyphs an engine under it."""

    class Moved(Message):
        """The mouse has changed what is on the screen, or where the cursor is."""

    def __init__(self, reading: Reading, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.reading = reading
        self.masked = False  # whether evicted words are dots
        self._ink = Ink()
        self._map = Minimap(reading)
        self._tokens = range(0)  # on the screen
        self._fading: dict[str, Fading] = {}
        self._laying_out = False

    def show(self, state: RunState) -> None:
        self.reading.take(state)
        self.redraw()

    def redraw(self) -> None:
        width, height = self.size
        if width and height:
            text = width - self._gutter() - self._map_width()
            self.reading.resize(max(1, text), max(1, height // self._rows()))
        super().redraw()
        if not self.reading.finished and not self._laying_out:
            self._laying_out = True
            self.set_timer(SOON_S, self._lay_out_more)

    def _lay_out_more(self) -> None:
        """A piece at a time, so that keys never wait for a long document."""
        self._laying_out = False
        self.reading.lay_out_more()
        self.redraw()

    def _rows(self) -> int:
        """Screen lines for a line of text."""
        return 1 + len(self.reading.engines) if self.reading.engine == ALL else 1

    def _gutter(self) -> int:
        if self.size.width < NARROW:
            return 2
        positions = len(f"{len(self.reading.script):,}")
        return max(positions + 4, 10 if self.reading.engine == ALL else 9)

    def _map_width(self) -> int:
        """With a free column before it."""
        return 2 + self._map.width if self.size.width >= NARROW else 0

    def key(self) -> Any:
        reading = self.reading
        self._tokens = reading.tokens_of(reading.visible())
        self._fading = {engine: reading.fading(engine, self._tokens) for engine in reading.engines}
        fading = [(engine, seen.kinds.tobytes(), seen.levels.tobytes()) for engine, seen in self._fading.items()]
        search = reading.search
        return (
            palette.now.name,
            (id(reading.script), len(reading.script), reading.top, reading.cursor, len(reading.layout)),
            (search.query, search.current, len(search)) if search is not None else None,
            (reading.engine, self.masked),
            self._map.key(),
            fading,
        )

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        reading = self.reading
        if reading.empty:
            return self._nothing(width, height)
        self._ink.renew(self.masked)
        kinds = {engine: seen.kinds.tolist() for engine, seen in self._fading.items()}
        levels = {engine: seen.levels.tolist() for engine, seen in self._fading.items()}
        lines: list[list[Piece]] = []
        for line in reading.visible():
            if reading.engine == ALL:
                words, cells = self._words(line, None, None)
                lines.append(self._place(line, cells) + words)
                for engine in reading.engines:
                    row = [
                        (
                            glyph(kinds[engine][token], levels[engine][token]) * count,
                            self._ink.mark(engine, kinds[engine][token], levels[engine][token]),
                        )
                        for token, count in cells
                    ]
                    lines.append([self._labelled(engine), *joined(row)])
            else:
                words, cells = self._words(line, kinds[reading.engine], levels[reading.engine])
                lines.append(self._place(line, cells) + words)
        if not self._map_width():
            return lines
        beside = self._map.draw(height, self._tokens)
        edge = width - self._map.width
        lines += [[] for _ in range(len(lines), height if beside else 0)]
        return [
            [*line, (" " * (edge - pieces_len(line)), palette.style()), *pieces]
            for line, pieces in zip(lines, beside or [[]] * len(lines), strict=False)
        ]

    def _nothing(self, width: int, height: int) -> list[list[Piece]]:
        reading = self.reading
        waits = any(engine.conversation for engine in reading.state.engines.values())
        said = "This prompt has no text." if waits else "No document yet. Esc, then paste one or ask a question."
        return [[]] * (height // 2) + [[(said.center(width).rstrip(), palette.style(palette.now.dim, italic=True))]]

    # A line's parts

    def _place(self, line: int, cells: list[tuple[int, int]]) -> list[Piece]:
        """Before a line (`cells` as of `_words`): the position of its first token, what became of most of its tokens,
        prompt or answer."""
        reading, script, dim = self.reading, self.reading.script, palette.style(palette.now.dim)
        tokens = range(cells[0][0], cells[-1][0] + 1) if cells else reading.tokens_of(range(line, line + 1))
        part = script.part_of(tokens.start)
        answer = palette.style(palette.engine_color(script.engine), bold=True)
        bar = ("┃", answer) if part.answer else ("│", palette.style(palette.now.faint))
        mark: Piece = (" ", dim)
        if reading.engine != ALL and cells:
            first = tokens.start - self._tokens.start
            seen = self._fading[reading.engine].kinds[first : first + len(tokens)]
            kind = Kind.ANCHOR if (seen == Kind.ANCHOR).any() else Kind(int(np.bincount(seen).argmax()))
            mark = (glyph(kind), self._ink.mark(reading.engine, kind, LEVELS // 2 if kind == Kind.THINNED else LEVELS))
        if self.size.width < NARROW:
            return [mark, bar]
        position = f"{script.position_of(tokens.start):,}" if cells else ""
        return [(f"{position:>{self._gutter() - 4}} ", dim), mark, bar, (" ", dim)]

    def _labelled(self, engine: str) -> Piece:
        """Before a line of glyphs."""
        gutter = self._gutter()
        return f"{name_of(engine)[: gutter - 1]:>{gutter - 1}} ", palette.style(palette.engine_color(engine))

    def _words(
        self, line: int, kinds: list[int] | None, levels: list[int] | None
    ) -> tuple[list[Piece], list[tuple[int, int]]]:
        """A line's text, and how many cells of it each token has. Without `kinds`, no word is brighter than another."""
        script, first = self.reading.script, self._tokens.start
        start, end = self.reading.layout.span(line)
        end = start + len(script.text[start:end].rstrip(" \t\n"))
        pieces: list[Piece] = []
        cells: list[tuple[int, int]] = []
        token, at = script.token_of(start), start
        while at < end:
            stop = min(script.ends[token], end)
            count = 0
            kind = kinds[token - first] if kinds is not None else Kind.KEPT
            level = levels[token - first] if levels is not None else PLAIN_LEVEL
            for begin, finish, match in self._marked(at, stop):
                shown = literal(script.text[begin:finish])
                count += cell_len(shown)
                if kind == Kind.EVICTED and self.masked and not match:
                    shown = dots(shown)
                pieces.append((shown, self._ink.word(kind, level, cursor=self._cursor(token), match=match)))
            cells.append((token, count))
            at, token = max(at, stop), token + 1
        if line == self.reading.line_of(self.reading.cursor) and script.span(self.reading.cursor)[0] >= end:
            space = "⏎" if "\n" in script.text[end : script.span(self.reading.cursor)[1]] else "␣"
            pieces.append((space, self._ink.word(Kind.KEPT, PLAIN_LEVEL, cursor=self._cursor(self.reading.cursor))))
        return joined(pieces), cells

    def _cursor(self, token: int) -> str:
        return palette.engine_color(self.reading.script.engine) if token == self.reading.cursor else ""

    def _marked(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Pieces of `start .. end` that a search has found (1; 2 for its current match) or not (0)."""
        search = self.reading.search
        if search is None or start >= end:
            yield start, end, 0
            return
        for begin, finish, number in search.within(start, end):
            if start < begin:
                yield start, begin, 0
            yield max(start, begin), min(end, finish), 2 if number == search.current else 1
            start = min(end, finish)
        if start < end:
            yield start, end, 0

    # Mouse

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._scroll(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._scroll(-WHEEL_LINES)

    def _scroll(self, lines: int) -> None:
        self.reading.scroll(max(1, abs(lines) // self._rows()) * (1 if lines > 0 else -1))
        self.redraw()
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        reading = self.reading
        line = reading.top_line + event.y // self._rows()
        if reading.empty:
            return
        if self._map_width() and event.x >= self.size.width - self._map.width:
            reading.go(event.y * len(reading.script) // max(1, self.size.height), centered=True)
        elif line in reading.visible():
            reading.following = False
            reading.go(reading.token_at(line, max(0, event.x - self._gutter())))
        self.redraw()
        self.post_message(self.Moved())
