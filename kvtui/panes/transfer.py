"""Host ⇄ device traffic of one engine: rate over time, bytes so far, and whether the link is measured or modelled."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from kvtui import figures, palette, spelling
from kvtui.panes import graph
from kvtui.panes.lines import Lines, Piece, ends, pieces_len, rule
from kvtui.panes.window import time_scale
from kvtui.state import EngineState, RunState
from kvtui.traffic import Traffic

RATE_WINDOW_S = 1.0


class TransferGraph(Lines):
    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._state: EngineState | None = None
        self._span_s = 2.0
        self._measured = self._over = False
        self._scale = 1.0
        self._foresight = False  # of any engine: then all give a line to it, as graphs are as tall in every column

    def show(self, state: RunState) -> None:
        self._state = state.engines.get(self.engine)
        self._span_s = time_scale(state)
        link = state.started.link if state.started is not None else None
        self._measured, self._over = link is not None and link.measured, state.over
        # The link's own speed is the full height for everyone.
        self._scale = link.bytes_per_s if link is not None and link.bytes_per_s > 0 else 1.0
        self._foresight = any(map(_foresees, state.engines.values()))
        self.redraw()

    def key(self) -> Any:
        engine = self._state
        if engine is None or engine.transfer is None:
            return None
        return engine.transfer_history.version, self._span_s, self._scale, self._measured, self._over, self._foresight

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        dim, color = palette.style(palette.now.dim), palette.engine_color(self.engine)
        engine = self._state
        if engine is not None and engine.remote:
            return [
                rule([("link ", dim)], [("not told by the server", palette.style(palette.now.dim, italic=True))], width)
            ]
        if engine is None or engine.transfer is None:
            return [rule(self._label(spelling.arrows("host ⇄ device")), [], width)]
        transfer, history = engine.transfer, engine.transfer_history
        total = transfer.h2d_total_bytes + transfer.d2h_total_bytes
        window_s = min(RATE_WINDOW_S, max(1e-6, engine.clock_s - engine.started_clock_s))
        moved = history.between(engine.clock_s) - history.between(engine.clock_s - window_s)
        strong = palette.style(color, bold=True)
        now: list[Piece] = [("nothing moves", dim)]
        if self._over:
            now = [("–", dim)]
        elif total:
            speed, limit = figures.rate(moved / window_s), figures.rate(self._scale)
            if limit.split(" ")[1] == speed.split(" ")[1]:
                speed = speed.split(" ")[0]
            now = [(speed, strong), (f" of {limit}", dim)]
        label = self._label(spelling.arrows("host ⇄ device"))
        if pieces_len(label) + pieces_len(now) + 3 > width:
            label = self._label("link")
        if pieces_len(label) + pieces_len(now) + 3 > width and not self._over:
            now = [(figures.rate(moved / window_s), strong)]
        lines = [rule(label, now, width)]
        if height >= 3:
            lines += self._told(engine, width)[: height - 2]
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

    def _told(self, engine: EngineState, width: int) -> list[list[Piece]]:
        """What moved since the run began; and in the present answer, what of it nobody had to wait for, and what did
        not have to move. As many lines in every column."""
        assert engine.transfer is not None
        dim, strong = palette.style(palette.now.dim), palette.style(palette.engine_color(self.engine), bold=True)
        up, down = (figures.size(b) for b in (engine.transfer.h2d_total_bytes, engine.transfer.d2h_total_bytes))
        traffic = engine.current.traffic if engine.current is not None else Traffic()
        up_only: list[Piece] = [("↑", strong), (f" {up}", dim)]
        moved: list[list[Piece]] = [
            [("↑", strong), (f" {up} to device   ", dim), ("↓", strong), (f" {down}", dim)],
            [*up_only, ("  ", dim), ("↓", strong), (f" {down}", dim)],
            up_only,
        ]
        hidden: list[list[Piece]] = [[]]
        if (share := traffic.hidden_share) is not None:
            percent = (_percent(share), strong)
            hidden = [[percent, (" of transfer time hidden", dim)], [percent, (" hidden", dim)]]
        lines = [ends(moved, hidden, width)]
        if not self._foresight:
            return lines
        if (rate := traffic.hit_rate) is None:
            return [*lines, []]
        percent = (_percent(rate), strong)
        wanted = figures.size(traffic.saved_bytes + traffic.fetched_bytes)
        saved = (figures.size(traffic.saved_bytes), strong)
        hits: list[list[Piece]] = [
            [percent, (" of selected entries on the device already", dim)],
            [percent if rate < 1 else ("all", strong), (" hit", dim)],
        ]
        spared: list[list[Piece]] = [
            [saved, (f" of {wanted} saved", dim)],
            [saved, (" saved", dim)],
        ]
        return [*lines, ends(hits, spared, width)]

    def _label(self, name: str) -> list[Piece]:
        """What is modelled says so, in the pane's title."""
        measured = "measured" if self._measured else "modelled"
        return [
            (f"{name} ", palette.style(palette.now.dim)),
            (measured, palette.style(palette.now.dim, italic=True)),
        ]


def _foresees(engine: EngineState) -> bool:
    """Whether it keeps entries on the device for the next step, as far as is known."""
    request = engine.current
    return engine.knobs.get("prefetch") == "predictive" or (
        request is not None and request.traffic.hit_rate is not None
    )


def _percent(share: float) -> str:
    """Whole ones; only what is all of it is 100 %."""
    return f"{round(share * 100) if share >= 1 else min(99, round(share * 100))} %"
