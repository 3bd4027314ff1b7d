"""Charts as SVG files (Matplotlib) and as text in the terminal (plotext)."""

from __future__ import annotations

import io
import math
from itertools import cycle
from typing import Any

from probes.studies.base import Chart, Point

# Okabe and Ito's colours, which people tell apart however they see colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^Dv*P"
TERMINAL_COLOURS = ("blue+", "orange+", "green+", "magenta+", "gray", "cyan+", "red")


def to_svg(chart: Chart) -> str:
    """The same chart gives the same file: no date in it, no random names."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "kvtui", "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.add_subplot()
        (_bars if _has_words(chart) else _lines)(axes, chart)
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if len(chart.series) > 1:
            axes.legend(frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "kvtui"})
    return out.getvalue()


def to_text(chart: Chart, width: int = 80, height: int = 18, *, colour: bool = True) -> str:
    """Lines of at most `width` columns."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(width, height)
    plotext.title(chart.title)
    plotext.xlabel(chart.x)
    plotext.ylabel(chart.y)
    if _has_words(chart):
        words = _words(chart)
        heights = [[_at(points, word) for word in words] for points in chart.series.values()]
        plotext.multiple_bar(
            words, heights, labels=list(chart.series), color=list(TERMINAL_COLOURS[: len(chart.series)])
        )
    else:
        if chart.log_x:
            plotext.xscale("log")
        if chart.log_y:
            plotext.yscale("log")
        for (name, points), shade in zip(chart.series.items(), cycle(TERMINAL_COLOURS), strict=False):
            xs = [float(point.x) for point in points]
            plotext.plot(xs, [point.y for point in points], label=name, color=shade, marker="braille")
    drawn = plotext.build()
    return (drawn if colour else plotext.uncolorize(drawn)).rstrip()


def _has_words(chart: Chart) -> bool:
    return any(isinstance(point.x, str) for points in chart.series.values() for point in points)


def _words(chart: Chart) -> list[str]:
    return list(dict.fromkeys(str(point.x) for points in chart.series.values() for point in points))


def _at(points: list[Point], word: str) -> float:
    return next((point.y for point in points if point.x == word), 0.0)


def _errors(points: list[Point]) -> list[list[float]] | None:
    """Below and above, or None where no point has a spread."""
    if all(point.low is None for point in points):
        return None
    low = [max(0.0, point.y - (point.y if point.low is None else point.low)) for point in points]
    high = [max(0.0, (point.y if point.high is None else point.high) - point.y) for point in points]
    return [low, high]


def _lines(axes: Any, chart: Chart) -> None:
    looks = cycle(zip(COLOURS, MARKERS, strict=True))
    for (name, points), (colour, marker) in zip(chart.series.items(), looks, strict=False):
        xs, ys = [point.x for point in points], [point.y for point in points]
        axes.errorbar(xs, ys, yerr=_errors(points), label=name, color=colour, marker=marker, markersize=4, capsize=2)
    if chart.log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: _count(x))
    if chart.log_y:
        axes.set_yscale("log")


def _count(number: float) -> str:
    """1,024 is 1k on an axis, and 1,000 is 1,000."""
    if number >= 1024 and math.log2(number).is_integer():
        return f"{number / 1024:g}k" if number < 1 << 20 else f"{number / (1 << 20):g}M"
    return f"{number:,.6g}"


def _bars(axes: Any, chart: Chart) -> None:
    words = _words(chart)
    breadth = 0.8 / len(chart.series)
    for place, ((name, points), colour) in enumerate(zip(chart.series.items(), cycle(COLOURS), strict=False)):
        known = [point for point in points if math.isfinite(point.y)]
        xs = [words.index(str(point.x)) + (place - (len(chart.series) - 1) / 2) * breadth for point in known]
        ys = [point.y for point in known]
        axes.bar(xs, ys, breadth, yerr=_errors(known), label=name, color=colour, capsize=2)
    axes.set_xticks(range(len(words)), words)
    if chart.log_y:
        axes.set_yscale("log")
