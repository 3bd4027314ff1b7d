"""A person reading a conversation as an engine knows it: what is on the screen, where the cursor is, what is searched
for. Pure: the document view draws it and tells it of keys."""

from __future__ import annotations

from rich.cells import cell_len

from kvtui.cache_state import CacheState
from kvtui.fading import Fading, Kind, faded
from kvtui.layout import Layout
from kvtui.literal import literal
from kvtui.manuscript import Manuscript, parts_of
from kvtui.matches import Matches
from kvtui.state import PAGED, RunState

LAID_OUT_AT_ONCE = 100_000  # characters: some 15 ms
ALL = ""  # in place of an engine: one text, and what each engine has of it


class Reading:
    """`engine` is the one whose text is shown, or ALL. `top` is the first character on the screen, `cursor` a token;
    at the document's end, after `end`, both follow what is added."""

    def __init__(self, engine: str = ALL) -> None:
        self.engine = engine
        self.state = RunState()
        self.script = Manuscript()
        self.layout = Layout(1)
        self.lines = 1  # of text that are on the screen
        self.top = 0
        self.cursor = 0
        self.following = False
        self.search: Matches | None = None
        self.edition = 0  # counts the layouts that were begun
        self.looks = 0  # how often `look` saw something new
        self._whole: dict[str, tuple[CacheState | None, int, Fading]] = {}

    @property
    def engines(self) -> list[str]:
        """Those that are shown."""
        return list(self.state.engines) if self.engine == ALL else [self.engine]

    @property
    def empty(self) -> bool:
        return not self.script.ends

    def take(self, state: RunState) -> None:
        """The state as it is now. A text that is another one is read from its beginning."""
        self.state = state
        if self.engine != ALL and self.engine not in state.engines:
            self.engine = ALL
        source = self._source()
        if self.script.engine != source:
            self._turn_to(source)
            return
        before = self.script.text
        if not self.script.take(state.engines.get(source)):
            self._begin_layout(self.layout.width)
            self._whole.clear()
            asked = self.script.parts[0].tokens if self.script.parts else 0
            prompt = self.script.ends[asked - 1] if asked else 0
            if not prompt or before[:prompt] != self.script.text[:prompt]:
                self.top = self.cursor = 0
                self.following = False
            self._search_anew()
        self._settle()

    def choose(self, engine: str) -> None:
        """Another engine, or ALL: the same words stay at the top and under the cursor where it has them."""
        self.engine = engine
        if self._source() != self.script.engine:
            self._turn_to(self._source())
        elif self.layout.dense != (engine == ALL):
            self._begin_layout(self.layout.width)
            self._settle()

    def _source(self) -> str:
        """The engine whose words are shown: of all, the one that forgets nothing, or the first that has any."""
        if self.engine != ALL:
            return self.engine
        talking = [engine.id for engine in self.state.engines.values() if engine.conversation]
        return PAGED if PAGED in talking else next(iter(talking or self.state.engines), "")

    def _turn_to(self, source: str) -> None:
        before, top, cursor = self.script, self.script.token_of(self.top), self.cursor
        self.script = Manuscript(source)
        self.script.take(self.state.engines.get(source))
        self._begin_layout(self.layout.width)
        self._whole.clear()
        if before.ends and self.script.ends:
            at_top = self.script.find(before.address_of(top))
            at_cursor = self.script.find(before.address_of(min(cursor, len(before) - 1)))
            self.top = self.script.span(at_top)[0] if at_top is not None else 0
            self.cursor = at_cursor or 0
        else:
            self.top = self.cursor = 0
        self._search_anew()
        self._settle()

    def resize(self, width: int, lines: int) -> None:
        """The token at the top stays there."""
        if width != self.layout.width:
            self._begin_layout(width)
        self.lines = max(1, lines)
        self._settle()

    # Laying out

    def _begin_layout(self, width: int) -> None:
        """Where glyphs are under each line, empty ones would only take their place."""
        self.layout = Layout(width, dense=self.engine == ALL)
        self.edition += 1

    def _settle(self) -> None:
        """After any change: enough is laid out, the cursor and the top are where they may be."""
        self.cursor = max(0, min(self.cursor, len(self.script) - 1))
        if self.search is not None:
            self.search.take(self.script.text)
        if self.finished:
            self.layout.grow(self.script.text)
        elif not self.layout.end:
            self._lay_out_to(self.top)
        if self.following:
            self.end()
        if (line := self._within(self.top_line)) != self.top_line:
            self._scroll_to(line)

    @property
    def finished(self) -> bool:
        """Whether all but what was just added is laid out."""
        return len(self.script.text) - self.layout.end < LAID_OUT_AT_ONCE

    def lay_out_more(self) -> None:
        self.layout.grow(self.script.text, self.layout.end + LAID_OUT_AT_ONCE)

    def _lay_out_to(self, character: int) -> None:
        """And a piece more, so that a screen is full."""
        self.layout.grow(self.script.text, max(character + LAID_OUT_AT_ONCE, self.layout.end))

    # Moving

    @property
    def top_line(self) -> int:
        return self.layout.line_of(self.top)

    def visible(self) -> range:
        """The lines on the screen."""
        return range(self.top_line, min(len(self.layout), self.top_line + self.lines))

    def tokens_of(self, lines: range) -> range:
        """The tokens that have a character in these lines."""
        if not lines or self.empty:
            return range(0)
        first, last = self.layout.span(lines[0])[0], self.layout.span(lines[-1])[1] - 1
        return range(self.script.token_of(first), self.script.token_of(last) + 1)

    def line_of(self, token: int) -> int:
        """The line where a token ends: a space before a word may hang over the end of the line before."""
        start, end = self.script.span(token)
        return self.layout.line_of(max(start, end - 1))

    def scroll(self, lines: int) -> None:
        """Moves the text; the cursor stays on the screen."""
        self.following = False
        self._scroll_to(self.top_line + lines)
        visible = self.visible()
        if self.empty or not visible:
            return
        at = self.line_of(self.cursor)
        if at not in visible:
            line = visible[0] if at < visible[0] else visible[-1]
            self.cursor = self.token_at(line, self._column())

    def page(self, pages: int) -> None:
        lines = max(1, self.lines - 1) * pages
        before = self.top_line
        self.scroll(lines)
        if self.top_line == before:  # at an end already
            self.move_lines(lines)

    def move(self, tokens: int) -> None:
        """The cursor, by tokens that can be seen."""
        self.following = False
        step = 1 if tokens > 0 else -1
        for _ in range(abs(tokens)):
            if (there := self._shown_from(self.cursor + step, step)) is None:
                break
            self.go(there)

    def _shown_from(self, token: int, step: int) -> int | None:
        """The first token from there on that has any characters."""
        while 0 <= token < len(self.script):
            start, end = self.script.span(token)
            if start < end:
                return token
            token += step
        return None

    def move_lines(self, lines: int) -> None:
        """The cursor, up or down."""
        self.following = False
        if self.empty:
            return
        column = self._column()
        target = self.line_of(self.cursor) + lines
        if target >= len(self.layout):
            self._lay_out_to(self.layout.end)
        self.go(self.token_at(max(0, min(target, len(self.layout) - 1)), column))

    def home(self) -> None:
        self.following = False
        self.go(0)

    def end(self) -> None:
        """To the last token, and on with those that come."""
        self.go(len(self.script) - 1)
        self.following = True

    def go(self, token: int, *, centered: bool = False) -> None:
        """The cursor to a token, which is brought on the screen."""
        if self.empty:
            return
        token = max(0, min(token, len(self.script) - 1))
        self.cursor = self._shown_from(token, 1) or self._shown_from(token, -1) or 0
        self._lay_out_to(self.script.span(self.cursor)[1])
        line, visible = self.line_of(self.cursor), self.visible()
        if line in visible:
            return
        if centered:
            self._scroll_to(line - self.lines // 3)
        else:
            self._scroll_to(line if line < self.top_line else line - self.lines + 1)

    def _scroll_to(self, line: int) -> None:
        line = self._within(line)
        self.top = self.layout.span(line)[0] if len(self.layout) else 0

    def _within(self, line: int) -> int:
        """The nearest line that may be at the top."""
        if line + self.lines > len(self.layout):
            self._lay_out_to(self.layout.end)
        return max(0, min(line, len(self.layout) - self.lines))

    # Cells

    def token_at(self, line: int, cell: int) -> int:
        """The token in a cell of a line, the line's last one beyond its end."""
        start, end = self.layout.span(line)
        token = self.script.token_of(start)
        while True:
            first, last = self.script.span(token)
            cell -= cell_len(literal(self.script.text[max(first, start) : min(last, end)].rstrip("\n")))
            if cell < 0 or last >= end or token == len(self.script) - 1:
                return token
            token += 1

    def _column(self) -> int:
        """The cell in which the cursor's token begins."""
        start = self.layout.span(self.line_of(self.cursor))[0]
        return cell_len(literal(self.script.text[start : max(start, self.script.span(self.cursor)[0])]))

    # What the engines have of it

    def fading(self, engine: str, tokens: range) -> Fading:
        """As an engine has these tokens now."""
        state = self.state.engines.get(engine)
        theirs = self.script.parts if engine == self.script.engine else parts_of(state)
        return faded(self.script.parts, theirs, state.cache if state is not None else None, tokens.start, tokens.stop)

    def look(self) -> None:
        """At the whole document: dear for long ones, so not at every frame."""
        for engine in self.engines:
            state = self.state.engines.get(engine)
            cache = state.cache if state is not None else None
            before = self._whole.get(engine)
            if before is None or before[0] is not cache or before[1] != len(self.script):
                self._whole[engine] = (cache, len(self.script), self.fading(engine, range(len(self.script))))
                self.looks += 1

    def whole(self, engine: str) -> Fading:
        """As it was at the last look."""
        return self._whole[engine][2] if engine in self._whole else Fading.unread(len(self.script))

    def jump(self, *kinds: Kind) -> bool | None:
        """To the next run of such tokens in any of the engines that are shown. Returns whether that was around the
        end; None when there is none."""
        self.following = False
        self.look()
        found = [self.whole(engine).next_run(kinds, self.cursor) for engine in self.engines]
        places = [place for place in found if place is not None]
        if not places:
            return None
        ahead = [place for place in places if place > self.cursor]
        self.go(min(ahead or places), centered=True)
        return not ahead

    def elsewhere(self, *kinds: Kind) -> str | None:
        """An engine that has such tokens in a text of its own: it may be at another prompt, or have said other words
        than those that are laid over one another."""
        for engine in self.engines:
            theirs = parts_of(state := self.state.engines.get(engine))
            if state is not None and faded(theirs, theirs, state.cache).next_run(kinds, -1) is not None:
                return engine
        return None

    # Searching

    def find(self, query: str) -> None:
        """Searches for other words, from the cursor on; none at all for an empty query."""
        self.search = Matches(query) if query else None
        if self.search is not None:
            self.search.take(self.script.text)
            self.search.seek(0 if self.empty else self.script.span(self.cursor)[0])
            self._go_to_match()

    def find_next(self, by: int) -> bool:
        """To the match after the cursor, or before. Returns whether that was around an end."""
        search = self.search
        if search is None or not len(search):
            return False
        if self.script.token_of(search.starts[search.current]) == self.cursor:
            around = search.step(by)
        else:
            around = search.seek(self.script.span(self.cursor)[0])
            if by < 0:
                around = search.step(by) and not around
        self._go_to_match()
        return around

    def _go_to_match(self) -> None:
        if self.search is not None and len(self.search):
            self.following = False
            self.go(self.script.token_of(self.search.starts[self.search.current]), centered=True)

    def _search_anew(self) -> None:
        if self.search is not None:
            self.search = Matches(self.search.query)
