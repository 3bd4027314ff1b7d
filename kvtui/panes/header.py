"""The first line: what is running, on what, and the race's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engines.commands import WorkerConfig
from kvtui import figures, palette
from kvtui.literal import one_line
from kvtui.panes.lines import Lines, Piece, pieces_len, spread
from kvtui.state import RunState

_STATES = {"racing": "▶ racing", "paused": "‖ paused", "idle": "■ ready", "loading": "◌ loading"}


class Header(Lines):
    def __init__(self, config: WorkerConfig, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._config = config
        self._state = RunState()
        self._ended = False
        self._budget = config.budget
        self._changes: list[str] = []
        self.replayed: Callable[[], list[Piece]] | None = None  # what stands in place of the race's state and clock

    def show(self, state: RunState, *, budget: float, changes: list[str], ended: bool) -> None:
        """`changes` are what the next run will have that this one has not."""
        self._state, self._ended, self._budget, self._changes = state, ended, budget, changes
        self.redraw()

    def key(self) -> Any:
        state = self._state
        return (
            id(state.started),
            state.status,
            self._ended,
            self._budget,
            self._changes,
            figures.clock(state.clock_s),
            self.replayed and self.replayed(),
        )

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        state, dim = self._state, palette.style(palette.now.dim)
        plain, strong = palette.style(palette.now.foreground), palette.style(palette.now.foreground, bold=True)
        word = "✖ worker ended" if self._ended else _STATES.get(state.status, state.status)
        right: list[Piece] = [(word, palette.style(_color(state.status, self._ended), bold=True))]
        if state.started is not None:
            right.append((f"  {figures.clock(state.clock_s)} ", strong))
        if self.replayed is not None and not self._ended:
            right = self.replayed()
        left: list[Piece] = [(" kvtui ", palette.style(palette.now.background, palette.now.foreground, bold=True))]
        if self._changes:
            left += self._next_run(width - pieces_len(left) - pieces_len(right) - 2)
        # What comes first matters most: whatever has no room is left out whole.
        for label, value in self._facts():
            fact = [("  ", dim), (f"{label} " if label else "", dim), (value, plain)]
            if pieces_len(left) + pieces_len(fact) + pieces_len(right) + 2 > width:
                break
            left += fact
        return [spread(left, right, width)]

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

    def _facts(self) -> list[tuple[str, str]]:
        started, config = self._state.started, self._config
        budget = f"{self._budget:.2f}"
        if started is None:
            return [("", one_line(config.model)), ("budget", budget)]
        device = "device (CPU stand-in)" if started.device_is_stand_in else started.device
        link = started.link.description or started.link.profile
        measured = "measured" if started.link.measured else "modelled"
        return [
            ("", f"{one_line(started.model)} · {started.dtype.removeprefix('torch.')} · {device}"),
            ("budget", budget),
            ("link", f"{one_line(link)} ({measured})"),
            ("context", f"{started.context_limit:,}"),
        ]


def _color(status: str, ended: bool) -> str:
    if ended:
        return palette.now.error
    return {"racing": palette.now.good, "paused": palette.now.warning}.get(status, palette.now.dim)
