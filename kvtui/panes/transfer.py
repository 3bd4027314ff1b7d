"""Host ⇄ device traffic of one engine: rate over time, bytes so far, and whether the link is measured or modelled."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kvtui import figures, palette
from kvtui.panes import graph
from kvtui.panes.lines import Lines, Piece, pieces_len, rule
from kvtui.panes.window import time_scale
from kvtui.state import EngineState, RunState

RATE_WINDOW_S = 1.0


class TransferGraph(Lines):
    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._state: EngineState | None = None
        self._span_s = 2.0
        self._measured = False
        self._scale = 1.0

    def show(self, state: RunState) -> None:
        self._state = state.engines.get(self.engine)
        self._span_s = time_scale(state)
        link = state.started.link if state.started is not None else None
        self._measured = link is not None and link.measured
        # The link's own speed is the full height for everyone.
        self._scale = link.bytes_per_s if link is not None and link.bytes_per_s > 0 else 1.0
        self.redraw()

    def key(self) -> Any:
        engine = self._state
        if engine is None or engine.transfer is None:
            return None
        return engine.transfer_history.version, self._span_s, self._scale, self._measured

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        dim, color = palette.style(palette.now.dim), palette.engine_color(self.engine)
        engine = self._state
        if engine is None or engine.transfer is None:
            return [rule(self._label("host ⇄ device"), [], width)]
        transfer, history = engine.transfer, engine.transfer_history
        total = transfer.h2d_total_bytes + transfer.d2h_total_bytes
        window_s = min(RATE_WINDOW_S, max(1e-6, engine.clock_s - engine.started_clock_s))
        moved = history.between(engine.clock_s) - history.between(engine.clock_s - window_s)
        strong = palette.style(color, bold=True)
        now: list[Piece] = [("nothing moves", dim)]
        if total:
            speed, limit = figures.size(moved / window_s), figures.rate(self._scale)
            if limit.split(" ")[1].startswith(speed.split(" ")[1]):
                speed = speed.split(" ")[0]
            now = [(speed, strong), (f" of {limit}", dim)]
        label = self._label("host ⇄ device")
        if pieces_len(label) + pieces_len(now) + 3 > width:
            label = self._label("link")
        if pieces_len(label) + pieces_len(now) + 3 > width:
            now = [(figures.rate(moved / window_s), strong)]
        lines = [rule(label, now, width)]
        if height >= 3:
            lines.append(
                [
                    ("↑", strong),
                    (f" {figures.size(transfer.h2d_total_bytes)} to device   ", dim),
                    ("↓", strong),
                    (f" {figures.size(transfer.d2h_total_bytes)}", dim),
                ]
            )
        rows = height - len(lines)
        if rows > 0:
            step_s = self._span_s / width
            begin_s = engine.started_clock_s
            edges = [history.between(min(begin_s + x * step_s, engine.clock_s)) for x in range(width + 1)]
            columns: list[tuple[float, float] | None] = [
                (max(0.0, after - before) / step_s, 0.0) for before, after in pairwise(edges)
            ]
            lines += graph.stacked(columns, rows, self._scale, color)
        return lines

    def _label(self, name: str) -> list[Piece]:
        """What is modelled says so, in the pane's title."""
        measured = "measured" if self._measured else "modelled"
        return [
            (f"{name} ", palette.style(palette.now.dim)),
            (measured, palette.style(palette.now.dim, italic=True)),
        ]
