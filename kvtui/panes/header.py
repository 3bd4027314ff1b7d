"""The first line: what is running, on what, and the race's clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from engines.commands import WorkerConfig
from engines.events import LinkInfo
from kvtui import figures, palette
from kvtui.literal import one_line
from kvtui.panes.lines import Lines, Piece, pieces_len, spread
from kvtui.state import RunState

WORKER_ENDED = "✖ worker ended"
_STATES = {
    "racing": "▶ racing",
    "paused": "‖ paused",
    "idle": "■ ready",
    "loading": "◌ loading",
    "ended": WORKER_ENDED,
}

PUBLISHED_EVERY_S, PUBLISHED_WELL, PUBLISHED_WELL_SHORT = 0.5, "mqtt connected", "mqtt"
LABELLED_FROM, LABELLED_WITH_CHANGES_FROM = 72, 100  # columns


class Header(Lines):
    def __init__(self, config: WorkerConfig, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._config = config
        self._state = RunState()
        self._ended = False
        self._budget: float | None = config.budget if config.engines else None  # without any, they are somebody else's
        self._changes: list[str] = []
        self.cancelling = False  # what the engines are at has still to end
        # What stands in place of the race's state and clock, with or without saying whose clock it is.
        self.replayed: Callable[[bool], list[Piece]] | None = None
        self.published: Callable[[], str] | None = None  # how it stands with whoever is told of the race

    def on_mount(self) -> None:
        if self.published is not None:
            self.set_interval(PUBLISHED_EVERY_S, self.redraw)

    def show(self, state: RunState, *, budget: float | None, changes: list[str], ended: bool) -> None:
        """`changes` are what the next run will have that this one has not; a `budget` of None is not known."""
        self._state, self._ended, self._budget, self._changes = state, ended, budget, changes
        self.redraw()

    def key(self) -> Any:
        state = self._state
        return (
            id(state.started),
            state.status,
            self._ended,
            self.cancelling,
            self._budget,
            self._changes,
            figures.clock(state.clock_s),
            self.replayed and self.replayed(True),
            self.published and self.published(),
        )

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        state, dim = self._state, palette.style(palette.now.dim)
        plain, strong = palette.style(palette.now.foreground), palette.style(palette.now.foreground, bold=True)
        labelled = width >= (LABELLED_WITH_CHANGES_FROM if self._changes else LABELLED_FROM)
        word, color = _STATES.get(state.status, state.status), _color(state.status, self._ended)
        if self._ended:
            word = WORKER_ENDED
        elif self.cancelling:
            word, color = "◼ cancelling …", palette.now.warning
        right: list[Piece] = [(word, palette.style(color, bold=True))]
        if state.started is not None:
            right += [("  clock " if labelled else "  ", dim), (f"{figures.clock(state.clock_s)} ", strong)]
        if self.replayed is not None:
            right = self.replayed(labelled)
        rights = [right]
        if self.published is not None:
            said = self.published()
            told = palette.style(palette.now.dim if said == PUBLISHED_WELL else palette.now.warning)
            worded = [said, PUBLISHED_WELL_SHORT] if said == PUBLISHED_WELL else [said]
            rights = [[(f"{words}  ", told), *right] for words in worded]
        left: list[Piece] = [(" kvtui ", palette.style(palette.now.background, palette.now.foreground, bold=True))]
        if self._changes:
            kept = sum(len(f"  {value}") for _, value in self._worded()[-1])
            room = width - pieces_len(left) - pieces_len(rights[-1]) - kept - 2
            pending = self._next_run(room)
            left += pending if pieces_len(pending) <= room else []
        for wording, right in product(self._worded(), rights):
            facts: list[Piece] = []
            for label, value in wording:
                facts += [("  ", dim), (f"{label} " if label else "", dim), (value, plain)]
            if pieces_len(left) + pieces_len(facts) + pieces_len(right) + 2 <= width:
                break
        return [spread([*left, *facts], right, width)]

    def _next_run(self, room: int) -> list[Piece]:
        """As many changes as have room, and how many more there are."""
        label = "  next run (r) "
        for shown in range(len(self._changes), -1, -1):
            more = len(self._changes) - shown
            told = ", ".join([*self._changes[:shown], *([f"{more} more"] if more and shown else [])])
            told = told or f"{more} change{'s' * (more > 1)}"
            if len(label) + len(told) <= room or not shown:
                break
        return [(label, palette.style(palette.now.dim)), (told, palette.style(palette.now.warning, bold=True))]

    def _worded(self) -> list[list[tuple[str, str]]]:
        """Labels and values, in more words and in fewer. That the link is modelled is said in all of them: it is in
        every speed on the screen. The budget, which keys change, goes last of the others."""
        started = self._state.started
        budget = [("budget", f"{self._budget:.2f}")] if self._budget is not None else []
        if started is None:
            return [[("", one_line(self._config.model)), *budget], budget, []]
        model = one_line(started.model)
        device = "device (CPU stand-in)" if started.device_is_stand_in else started.device
        precision = started.precision.removeprefix("torch.")
        link, last = _link(started.link)
        full, short = ("", f"{model} · {precision} · {device}"), ("", f"{model} · {device}")
        return [
            [full, *budget, *link, ("context", f"{started.context_limit:,}")],
            [full, *budget, *link],
            [short, *budget, *link],
            [("", model), *budget, *link],
            [*budget, *link],
            [("", model), *budget, *last],
            [*budget, *last],
            last,
        ]


def _link(info: LinkInfo | None) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Which it is, and what of it has to be said in any case. Nothing where nobody tells of one."""
    if info is None:
        return [], []
    named = f"{one_line(info.description or info.profile)} ({'measured' if info.measured else 'modelled'})"
    return [("link", named)], [] if info.measured else [("", "modelled")]


def _color(status: str, ended: bool) -> str:
    if ended or status == "ended":
        return palette.now.error
    return {"racing": palette.now.good, "paused": palette.now.warning}.get(status, palette.now.dim)
