"""One engine for an audience: what it does, its speed in figures as tall as a hand, and one bar of memory."""

from __future__ import annotations

import re
from typing import Any

from rich.style import Style
from textual.widget import Widget

from kvtui import figures, palette
from kvtui.panes import server_load
from kvtui.panes.lines import PLAIN, Lines, Piece, pieces_len, spread
from kvtui.panes.vitals import share_read, state_of
from kvtui.state import EngineState, RequestState, RunState
from kvtui.verdict import paged_bytes

# Three by five dots a sign. A dot is two cells wide and a line high, or one cell wide and half a line high.
_DOTS = {
    "0": ("###", "#.#", "#.#", "#.#", "###"),
    "1": (".#.", "##.", ".#.", ".#.", "###"),
    "2": ("###", "..#", "###", "#..", "###"),
    "3": ("###", "..#", ".##", "..#", "###"),
    "4": ("#.#", "#.#", "###", "..#", "..#"),
    "5": ("###", "#..", "###", "..#", "###"),
    "6": ("###", "#..", "###", "#.#", "###"),
    "7": ("###", "..#", "..#", ".#.", ".#."),
    "8": ("###", "#.#", "###", "#.#", "###"),
    "9": ("###", "#.#", "###", "..#", "###"),
    ".": (".", ".", ".", ".", "#"),
    ",": (".", ".", ".", "#", "#"),
    "%": ("#.#", "..#", ".#.", "#..", "#.#"),
    "–": ("...", "...", "###", "...", "..."),
}
_HALVES = {"..": " ", "#.": "▀", ".#": "▄", "##": "█"}
TALL, LOW = 5, 3  # lines of the figures
BESIDE = 12  # cells that the words need


class Podium(Lines):
    DEFAULT_CSS = """
    Podium { display: none; }
    """

    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._whole = RunState()

    def show(self, state: RunState) -> None:
        self._whole = state
        self.redraw()

    @property
    def _state(self) -> EngineState | None:
        return self._whole.engines.get(self.engine)

    @property
    def _status(self) -> str:
        return self._whole.status

    def key(self) -> Any:
        engine = self._state
        request = engine.current if engine is not None else None
        if engine is None or request is None:
            return self._status
        held = (engine.cache_bytes, engine.host_bytes, paged_bytes(self._whole, self.engine), self._most_bytes())
        told = server_load.key(engine) if engine.remote else None
        return request.request, request.status, self._status, held, told, _figures(request, engine.remote)

    def _most_bytes(self) -> int:
        """Of any engine. From the state that is drawn: it changes while this is hidden, and is drawn before `show`."""
        return max(((e.cache_bytes or 0) + (e.host_bytes or 0) for e in self._whole.engines.values()), default=0)

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        engine, color = self._state, palette.engine_color(self.engine)
        request = engine.current if engine is not None else None
        strong, plain = palette.style(color, bold=True), palette.style(palette.now.foreground)
        glyph, word = state_of(request, self._status)
        bad = request is not None and request.status in ("device_oom", "error", "failed")
        mark = palette.style(palette.now.background, palette.now.error, bold=True) if bad else strong
        state: list[Piece] = [(f" {glyph} {word} " if bad else f"{glyph} {word}", mark)]
        memory = self._memory(engine, width) if engine is not None and height > 2 else []
        if bad:
            return [state, *[[]] * max(0, height - 1 - len(memory)), *memory]
        remote = engine is not None and engine.remote
        number, unit = _figures(request, remote) if request is not None else ("–", ("", ""))
        rows = TALL if height >= TALL + len(memory) and cells(number, TALL) + BESIDE <= width else LOW
        if height < rows + len(memory) or cells(number, rows) + BESIDE > width:
            told: list[Piece] = [
                (number, palette.style(palette.now.foreground, bold=True)),
                (f" {' '.join(unit)}", plain),
            ]
            return [spread(state, told, width), *memory]
        beside = [state, *[[]] * (rows - 3), *([(word, plain)] for word in unit)]
        figure = [
            spread(words, _drawn(line, strong), width) for words, line in zip(beside, big(number, rows), strict=True)
        ]
        gap: list[list[Piece]] = [[]] * (height - rows - len(memory))
        return [*figure, *gap[:1], *memory]

    def _memory(self, engine: EngineState, width: int) -> list[list[Piece]]:
        """Its size and how much less than the paged engine's that is, above a bar on everybody's scale. A server's has
        no size, and no place on that scale."""
        if engine.remote:
            strong, plain = palette.style(palette.engine_color(self.engine), bold=True), palette.style()
            return [[("KV ", plain), (server_load.usage(engine, width - len("KV ")), strong)], []]
        if engine.memory is None:
            return []
        device, host = engine.cache_bytes or 0, engine.host_bytes or 0
        color = palette.engine_color(self.engine)
        strong, plain = palette.style(color, bold=True), palette.style(palette.now.foreground)
        change = figures.change(device, paged_bytes(self._whole, self.engine))
        right: list[Piece] = [(change, palette.style(palette.now.foreground, bold=True))] if change else []
        left: list[Piece] = [("KV ", plain), (figures.size(device), strong)]
        if host:
            left.append((f"  ▒ host {figures.size(host)}", palette.style(color)))
        if pieces_len(left) + pieces_len(right) + 1 > width:
            left = left[:2]
        shown = max(1, self._most_bytes())
        solid = min(width, max(round(device / shown * width), bool(device)))
        hatched = min(width - solid, max(round(host / shown * width), bool(host)))
        track = palette.style(palette.now.faint)
        bar: list[Piece] = [("█" * solid, strong), ("▒" * hatched, palette.style(color))]
        return [spread(left, right, width), [*bar, ("─" * (width - solid - hatched), track)]]


def presented(widget: Widget) -> bool:
    """Whether its screen is in presenter mode; not, while it has none."""
    return any(node.has_class("-presenter") for node in widget.ancestors)


def _figures(request: RequestState, remote: bool) -> tuple[str, tuple[str, str]]:
    """The one number, and what it counts, in two lines."""
    if remote and not request.tokens:
        return "–", ("the server", "is reading")
    if request.status in ("prefill", "queued") and not request.tokens:
        return f"{share_read(request):.0%}", ("of the", "prompt read")
    speed = request.tokens_per_s
    if speed is None:
        return "–", ("tokens", "a second")
    return f"{speed:,.{1 if speed < 9.95 else 0}f}", ("tokens", "a second")


def _drawn(line: str, style: Style) -> list[Piece]:
    """Blocks and the gaps between them apart: what a gap has no need of, pictures of the screen need not keep."""
    return [(run, PLAIN if run.isspace() else style) for run in re.findall(r" +|[^ ]+", line)]


def big(number: str, lines: int) -> list[str]:
    """`number` in `lines` lines of blocks: `TALL` or `LOW`."""
    signs = [_DOTS[sign] for sign in number]
    rows = [" ".join(sign[row] for sign in signs) for row in range(TALL)]
    if lines == TALL:
        return ["".join("██" if dot == "#" else "  " for dot in row) for row in rows]
    rows.append("." * len(rows[0]))
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [
        "".join(
            _HALVES[(up if up == "#" else ".") + (low if low == "#" else ".")]
            for up, low in zip(upper, lower, strict=True)
        )
        for upper, lower in pairs
    ]


def cells(number: str, lines: int) -> int:
    """How wide that is."""
    dots = sum(len(_DOTS[sign][0]) + 1 for sign in number) - 1
    return 2 * dots if lines == TALL else dots
