"""What one engine says, token by token: shown literally, wrapped at words, following its end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.style import Style
from textual import events

from engines.events import ENGINE_LABELS
from kvtui import palette
from kvtui.inspection import paged_text
from kvtui.literal import literal, one_line, quoted, spoken
from kvtui.names import chosen
from kvtui.panes.lines import Lines, Piece, joined
from kvtui.state import EngineState, RequestState, RunState

READING_CHARACTERS = 2000
_WORDS = re.compile(r"\S+|[^\S\n]+|\n")


@dataclass
class Run:
    """Part of a line: text of one token (or of a question, token −1)."""

    text: str
    token: int
    request: int


@dataclass
class Wrapped:
    """Greedy line breaking that can go on where it stopped: only the last line is ever broken anew."""

    width: int
    lines: list[list[Run]] = field(default_factory=lambda: [[]])
    _cells: int = 0

    def add(self, text: str, token: int, request: int) -> None:
        for word in _WORDS.findall(literal(text)):
            if word == "\n":
                self._break([])
            elif word.isspace():
                if self._cells >= self.width:  # no room for the space: it becomes the line break
                    self._break([])
                else:
                    self._put(word[: self.width - self._cells], token, request)
            else:
                self._add_word(word, token, request)

    def _add_word(self, word: str, token: int, request: int) -> None:
        cells = cell_len(word)
        if self._cells + cells > self.width:
            # The word may have begun in an earlier token: take that beginning along to the next line.
            start = self._take_word()
            taken = sum(cell_len(run.text) for run in start)
            if taken + cells <= self.width and self.lines[-1]:
                self._break(start)
            else:
                self._restore(start)
        while self._cells + cells > self.width:
            room = self.width - self._cells
            # Only what could fit is measured: a word may be longer than a book.
            head = chop_cells(word[: 2 * self.width], room)[0] if room > 0 else ""
            if head and cell_len(head) <= room:
                self._put(head, token, request)
                word = word[len(head) :]
                cells -= cell_len(head)
            self._break([])
            if self.width < 2:
                return
        if word:
            self._put(word, token, request)

    def _take_word(self) -> list[Run]:
        line, taken = self.lines[-1], []
        while line and not line[-1].text[-1:].isspace():
            taken.append(line.pop())
        return taken[::-1]

    def _restore(self, runs: list[Run]) -> None:
        self.lines[-1].extend(runs)

    def _put(self, text: str, token: int, request: int) -> None:
        if text:
            self.lines[-1].append(Run(text, token, request))
            self._cells += cell_len(text)

    def _break(self, begin: list[Run]) -> None:
        self.lines.append(begin)
        self._cells = sum(cell_len(run.text) for run in begin)


def trimmed(line: list[Run]) -> list[Run]:
    """Without white space at the end: it would show under the marks of tokens that differ."""
    end = len(line)
    while end and line[end - 1].text.isspace():
        end -= 1
    return line[:end]


class Stream(Lines):
    """The current conversation's answers, each follow-up's question before its answer."""

    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._whole: RunState | None = None
        self._state: EngineState | None = None
        self._wrapped = Wrapped(1)
        self._taken: list[tuple[int, int]] = []  # (request, tokens) that are in `_wrapped`, in order
        self._reasons: list[str] = []  # what is said of each of these requests before its answer
        self._read, self._reading = -1, ""  # the request that is being read, and how its prompt ends
        self._back = 0  # lines that the view is scrolled back from the end
        self._first = 0  # the line that is at the top

    def show(self, state: RunState) -> None:
        self._whole, self._state = state, state.engines.get(self.engine)
        current = self._state.current if self._state is not None else None
        if current is None:
            self._read, self._reading = -1, ""
        elif current.request != self._read:
            prompt = next((p for p in state.prompts if p.request == current.request), None)
            self._read, self._reading = current.request, prompt.text[-READING_CHARACTERS:] if prompt is not None else ""
        self.redraw()

    def forget(self) -> None:
        super().forget()
        self._wrapped, self._taken, self._back, self._read = Wrapped(1), [], 0, -1

    def scroll_back(self, lines: int) -> None:
        """Towards the beginning; at the end it follows what comes."""
        most = max(0, len(self._text_lines()) - self.size.height)
        self._back = min(most, max(0, self._back + lines))
        self.redraw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.scroll_back(1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.scroll_back(-1)

    def on_click(self, event: events.Click) -> None:
        """On a token that differs from the paged engine's: what that one said in its place."""
        run = self._run_at(event.x, event.y)
        request = self._state.requests.get(run.request) if run is not None and self._state is not None else None
        if run is None or request is None or run.token < 0 or self._whole is None:
            return
        paged = paged_text(self._whole, request, run.token)
        if paged is not None:
            name = ENGINE_LABELS.get(self.engine, self.engine)
            said = f"{name} {quoted(request.texts[run.token])}  ≠  paged {quoted(paged)}"
            self.notify(said, title=f"Answer token {run.token + 1:,}", markup=False)

    def _run_at(self, x: int, y: int) -> Run | None:
        lines = self._text_lines()
        if self._first + y >= len(lines):
            return None
        for run in trimmed(lines[self._first + y]):
            x -= cell_len(run.text)
            if x < 0:
                return run
        return None

    def key(self) -> Any:
        marks = [
            (r.request, len(r.tokens), len(r.differs), r.first_difference, r.status, r.outcome is None, id(r.decision))
            for r in self._requests()
        ]
        return marks, self._back, self._over

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        requests = self._requests()
        self._take(requests, width)
        lines, ending = self._text_lines(), self._ending(width)
        if not ending and not any(r.tokens or r.follow_up for r in requests):
            told = [[(run.text, self._style(run, None)) for run in trimmed(line)] for line in lines]
            told += [[]] * bool(told)
            return told[:height] + self._prompt_lines(width, max(0, height - len(told)))
        first = self._first = max(0, len(lines) + len(ending) - height - self._back)
        by_number = {r.request: r for r in requests}
        shown = [
            joined((run.text, self._style(run, by_number.get(run.request))) for run in trimmed(line))
            for line in lines[first : first + height]
        ]
        if requests and requests[-1].status == "decode" and not self._over and first + height >= len(lines):
            cursor = ("▌", palette.style(palette.engine_color(self.engine)))
            if shown:
                shown[-1].append(cursor)
            else:
                shown.append([cursor])
        return shown[:height] + ending[: max(0, height - len(shown))]

    def _prompt_lines(self, width: int, height: int) -> list[list[Piece]]:
        """While there is no answer yet: the end of what the engine is reading."""
        words = Wrapped(width)
        words.add("… " + spoken(self._reading) if self._reading else "", -1, self._read)
        quiet = palette.style(palette.now.dim, italic=True)
        shown = words.lines[max(0, len(words.lines) - height) :]
        return [[("".join(run.text for run in line), quiet)] for line in shown]

    @property
    def _over(self) -> bool:
        return self._whole is not None and self._whole.over

    def _requests(self) -> list[RequestState]:
        state = self._state
        return [state.requests[r] for r in state.conversation] if state is not None else []

    def _take(self, requests: list[RequestState], width: int) -> None:
        """Wraps what is new, or everything when it is not the same conversation or width any more."""
        now = [(r.request, len(r.tokens)) for r in requests]
        reasons = [_reason(r, width) for r in requests]
        if self._wrapped.width != width or not self._grows(now) or reasons[: len(self._reasons)] != self._reasons:
            self._wrapped, self._taken, self._back = Wrapped(width), [], 0
        self._reasons = reasons
        for index, request in enumerate(requests):
            begun = index < len(self._taken)
            if not begun and request.follow_up:
                if self._wrapped.lines != [[]]:
                    self._wrapped.add("\n", -1, request.request)
                self._wrapped.add(f"› {one_line(request.title)}\n", -1, request.request)
            if not begun and reasons[index]:
                self._wrapped.add(f"{reasons[index]}\n", -1, request.request)
            for token in range(self._taken[index][1] if begun else 0, len(request.tokens)):
                text = request.texts[token]
                self._wrapped.add(text.lstrip() if token == 0 else text, token, request.request)
        self._taken = now

    def _grows(self, now: list[tuple[int, int]]) -> bool:
        """Whether `now` only adds to what is wrapped already."""
        if len(now) < len(self._taken):
            return False
        for index, (request, tokens) in enumerate(self._taken):
            last = index == len(self._taken) - 1
            if now[index][0] != request or (now[index][1] < tokens if last else now[index][1] != tokens):
                return False
        return True

    def _text_lines(self) -> list[list[Run]]:
        lines = self._wrapped.lines
        return lines if lines[-1] else lines[:-1]

    def _ending(self, width: int) -> list[list[Piece]]:
        """Lines after the text: why it ended, when it did not end well."""
        requests = self._requests()
        outcome = requests[-1].outcome if requests else None
        if outcome is None or outcome.outcome == "ok":
            return []
        words = Wrapped(width)
        words.add(outcome.detail or outcome.outcome, -1, outcome.request)
        bad = palette.style(palette.now.error, bold=True)
        return [[("".join(run.text for run in line), bad)] for line in words.lines]

    def _style(self, run: Run, request: RequestState | None) -> Style:
        if run.token < 0 or request is None:
            return palette.style(palette.now.dim, italic=True)
        if run.token < len(request.differs) and request.differs[run.token]:
            if run.token == request.first_difference:
                return palette.style(palette.now.background, palette.now.error, bold=True)
            return palette.style(palette.now.error, underline=True)
        return palette.style(palette.now.foreground)


def _reason(request: RequestState, width: int) -> str:
    """Why an engine that chooses among others chose that one; empty where the line of figures has room for it."""
    if request.decision is None:
        return ""
    engine, reason = chosen(request.decision)
    text = f"→ {engine}: {reason}"
    return text if cell_len(text) > width else ""
