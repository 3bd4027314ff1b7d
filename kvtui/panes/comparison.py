"""All engines' memory over time in one plot with axes: for the zoomed view, where there is room for it."""

from __future__ import annotations

from typing import Any

from textual_plotext import PlotextPlot

from kvtui import figures, palette
from kvtui.panes.window import time_scale
from kvtui.state import RunState

POINTS = 160
EVERY_S = 0.5  # of the race's clock: one plot takes 10 to 20 ms to build


class Comparison(PlotextPlot):
    DEFAULT_CSS = """
    Comparison { height: 8; }
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._drawn: Any = None

    def show(self, state: RunState) -> None:
        drawn = (int(state.clock_s / EVERY_S), time_scale(state), state.status, self.size, palette.now.name)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        span_s = time_scale(state)
        plot = self.plt
        plot.clear_figure()
        plot.xlim(0, span_s)
        marks_s = [span_s * quarter / 4 for quarter in range(5)]
        plot.xticks(marks_s, [f"{mark_s:g} s" for mark_s in marks_s])
        top = 0.0
        for index, marker in ((1, "braille"), (0, "hd")):  # host first, so that device lines lie on top
            for number, engine in enumerate(state.engines.values(), 1):
                red, green, blue = palette.parts(palette.engine_color(engine.id))
                points = self._points(engine.memory_history.held, engine.started_clock_s, engine.clock_s, span_s, index)
                if any(value > 0 for _, value in points):
                    top = max(top, *(value for _, value in points))
                    seconds, sizes = zip(*points, strict=True)
                    sign = marker if palette.now.colors else str(number)  # without colours: the column's number
                    plot.plot(seconds, sizes, marker=sign, color=(red, green, blue))
        scale = figures.ceiling(top or 1e6)
        plot.ylim(0, scale)
        marks = [0.0, scale / 2, scale]
        plot.yticks(marks, [figures.size(mark) for mark in marks])
        self.refresh()

    @staticmethod
    def _points(held: Any, start_s: float, now_s: float, span_s: float, index: int) -> list[tuple[float, float]]:
        points = []
        for step in range(POINTS + 1):
            at_s = span_s * step / POINTS
            values = held(start_s + at_s) if start_s + at_s <= now_s else None
            if values is not None:
                points.append((at_s, values[index]))
        return points
