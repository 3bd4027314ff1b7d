"""The document's own words, fading where an engine has let them go. Only the lines on the screen are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.cells import cell_len
from textual import events
from textual.message import Message

from kvtui import palette
from kvtui.fading import LEVELS, Fading, Kind
from kvtui.literal import literal
from kvtui.matches import Matches
from kvtui.names import name_of
from kvtui.panes.ink import Ink, dots, glyph
from kvtui.panes.lines import Lines, Piece, joined, pieces_len
from kvtui.panes.minimap import Minimap
from kvtui.reading import ALL, Reading
from kvtui.state import RunState

WHEEL_LINES = 3
NARROW = 48  # columns; with less there is no room for positions and the map
SOON_S = 1 / 100

Look = tuple[int, int]  # of a token: kind, level


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
        self._lines: dict[Any, list[list[Piece]]] = {}  # as they were drawn last, by `_line_key`
        self._edition = 0  # of the layout that they belong to

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
            (reading.edition, len(reading.script), reading.top, reading.cursor, len(reading.layout)),
            (search.query, search.current, len(search)) if search is not None else None,
            (reading.engine, self.masked),
            self._map.key(),
            fading,
        )

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        reading = self.reading
        if reading.empty:
            return self._nothing(width, height)
        if self._ink.renew(self.masked) or self._edition != reading.edition:
            self._lines.clear()
            self._edition = reading.edition
        before, self._lines = self._lines, {}
        lines: list[list[Piece]] = []
        for line in reading.visible():
            key = self._line_key(line)
            self._lines[key] = before.get(key) or self._draw_line(line)
            lines += self._lines[key]
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
        said = "This prompt has no text." if waits else "Nothing has been read yet. Esc leads back."
        return [[]] * (height // 2) + [[(said.center(width).rstrip(), palette.style(palette.now.dim, italic=True))]]

    # A line's parts

    def _line_key(self, line: int) -> Any:
        """What the look of one line depends on: scrolling draws only those that come into sight."""
        reading, search = self.reading, self.reading.search
        tokens = reading.tokens_of(range(line, line + 1))
        first, end = tokens.start - self._tokens.start, tokens.stop - self._tokens.start
        found = (search.query, search.current) if search is not None else None
        fading = [s.kinds[first:end].tobytes() + s.levels[first:end].tobytes() for s in self._fading.values()]
        return line, tokens, self._gutter(), reading.cursor if reading.cursor in tokens else None, found, *fading

    def _draw_line(self, line: int) -> list[list[Piece]]:
        """The text, and with all engines what each of them has of it."""
        reading, tokens = self.reading, self.reading.tokens_of(range(line, line + 1))
        first, end = tokens.start - self._tokens.start, tokens.stop - self._tokens.start
        looks = {
            engine: list(zip(seen.kinds[first:end].tolist(), seen.levels[first:end].tolist(), strict=True))
            for engine, seen in self._fading.items()
        }
        if reading.engine == ALL:
            words, cells = self._words(line, tokens, [(Kind.KEPT, LEVELS)] * len(tokens))
            rows = [self._glyphs(engine, cells, looks[engine]) for engine in reading.engines]
            return [self._place(tokens, cells, None) + words, *rows]
        words, cells = self._words(line, tokens, looks[reading.engine])
        return [self._place(tokens, cells, looks[reading.engine]) + words]

    def _place(self, tokens: range, cells: list[int], looks: list[Look] | None) -> list[Piece]:
        """Before a line: the position of its first token, what became of most of its tokens, prompt or answer."""
        script, dim = self.reading.script, palette.style(palette.now.dim)
        answer = palette.style(palette.engine_color(script.engine), bold=True)
        bar = ("┃", answer) if script.part_of(tokens.start).answer else ("│", palette.style(palette.now.faint))
        mark: Piece = (" ", dim)
        if looks is not None and cells:
            kinds = [kind for kind, _ in looks[: len(cells)]]
            most = Kind.ANCHOR if Kind.ANCHOR in kinds else max(kinds, key=kinds.count)
            level = LEVELS // 2 if most == Kind.THINNED else LEVELS
            mark = (glyph(most), self._ink.mark(script.engine, most, level))
        if self.size.width < NARROW:
            return [mark, bar]
        position = f"{script.position_of(tokens.start):,}" if cells else ""
        return [(f"{position:>{self._gutter() - 4}} ", dim), mark, bar, (" ", dim)]

    def _glyphs(self, engine: str, cells: list[int], looks: list[Look]) -> list[Piece]:
        """Under a line: what an engine has of each token."""
        gutter = self._gutter()
        name = f"{name_of(engine)[: gutter - 1]:>{gutter - 1}} ", palette.style(palette.engine_color(engine))
        row = [(glyph(*look) * count, self._ink.mark(engine, *look)) for look, count in zip(looks, cells, strict=False)]
        return [name, *joined(row)]

    def _words(self, line: int, tokens: range, looks: list[Look]) -> tuple[list[Piece], list[int]]:
        """A line's text, and how many cells of it each token has; those of space at its end have none."""
        script, cursor = self.reading.script, self.reading.cursor
        start, end = self.reading.layout.span(line)
        text = script.text[start:end].rstrip(" \t\n")
        end = start + len(text)
        plain = text.isascii() and text.isprintable()
        pieces: list[Piece] = []
        cells: list[int] = []
        at = start
        for token, (kind, level) in zip(tokens, looks, strict=True):
            if at >= end:
                break
            stop = max(at, min(script.ends[token], end))
            count = 0
            for begin, finish, match in self._marked(at, stop):
                shown = text[begin - start : finish - start]
                if not plain:
                    shown = literal(shown)
                count += len(shown) if plain else cell_len(shown)
                if kind == Kind.EVICTED and self.masked and not match:
                    shown = dots(shown)
                pieces.append((shown, self._ink.word(kind, level, cursor=self._cursor(token), match=match)))
            cells.append(count)
            at = stop
        if cursor in tokens and script.span(cursor)[0] >= end and line == self.reading.line_of(cursor):
            space = "⏎" if "\n" in script.text[end : script.span(cursor)[1]] else "␣"
            pieces.append((space, self._ink.word(Kind.KEPT, LEVELS, cursor=self._cursor(cursor))))
        return joined(pieces), cells

    def _cursor(self, token: int) -> str:
        return palette.engine_color(self.reading.script.engine) if token == self.reading.cursor else ""

    def _marked(self, start: int, end: int) -> Iterable[tuple[int, int, int]]:
        """Pieces of `start .. end` that a search has found (1; 2 for its current match) or not (0)."""
        search = self.reading.search
        return [(start, end, 0)] if search is None or start >= end else self._split(search, start, end)

    def _split(self, search: Matches, start: int, end: int) -> Iterator[tuple[int, int, int]]:
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
