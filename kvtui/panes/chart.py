"""Charts over time, one below another: each with its figures, its full height, and one axis of time for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvtui import palette
from kvtui.panes import graph
from kvtui.panes.lines import Piece, pieces_len, rule, spread
from probes.history import Bucket

Columns = Callable[[int], Sequence[Bucket | None]]  # so many of them
GUTTER = 11  # cells, for the full height; as many in all charts, so that times are below each other
AXES_FROM = 3 * GUTTER  # cells of width


@dataclass
class Gauge:
    """`now` is what it is now, `facts` what else there is to say, in order of importance; `facts_first` of them matter
    more than the peak does. `mark` belongs to every figure of it. `scale` is the graph's full height, worded by
    `unit`."""

    label: str
    now: str
    facts: list[str] = field(default_factory=list)
    columns: Columns | None = None
    scale: float = 1.0
    unit: Callable[[float], str] = str
    color: str = field(default_factory=lambda: palette.now.foreground)
    mark: str = ""
    facts_first: int = 0

    @property
    def told(self) -> bool:
        return self.columns is not None and any(bucket is not None for bucket in self.columns(100))

    @property
    def shown(self) -> bool:
        """What is not told throughout takes no room."""
        return self.told or not all(fact.endswith("n/a") for fact in (self.now, *self.facts))


def tops(columns: Columns) -> list[float]:
    return [bucket[2] for bucket in columns(100) if bucket is not None]


def halves(left: list[Gauge], right: list[Gauge]) -> tuple[list[Gauge], list[Gauge]]:
    """The gauges that are shown, on two sides: those of the right one go over while the left one has fewer."""
    left, right = ([gauge for gauge in side if gauge.shown] for side in (left, right))
    over = max(0, len(right) - len(left)) // 2
    return [*left, *right[:over]], right[over:]


def drawn(gauges: list[Gauge], width: int, height: int, window_s: float) -> list[list[Piece]]:
    """Each with a line that says what it is, and as tall a graph as there is room for: those above get what is over,
    those in which nothing would be seen get none. The axis of time, over the last `window_s` seconds, ends them."""
    gauges = [gauge for gauge in gauges if gauge.shown]
    gutter = GUTTER if width >= AXES_FROM else 0
    charts = [list(g.columns(width - gutter)) if g.columns is not None and g.told else [] for g in gauges]
    tall = [any(bucket is not None and bucket[2] > 0 for bucket in chart) for chart in charts]
    with_axis = bool(gutter) and any(tall) and height > len(gauges) + 1
    room, over = divmod(max(0, height - len(gauges) - with_axis), max(1, sum(tall)))
    lines: list[list[Piece]] = []
    for gauge, chart, is_tall in zip(gauges, charts, tall, strict=True):
        lines.append(_headline(gauge, chart, width))
        rows = room + (over > 0) if is_tall else 0
        over -= is_tall
        if rows:
            columns = [None if b is None else (b[1], b[2] - b[1]) for b in chart]
            rowed = graph.stacked(columns, rows, gauge.scale, gauge.color)
            lines += [[*_height(gauge, row, rows, gutter), *line] for row, line in enumerate(rowed)]
    return [*lines, _times(width, window_s)] if with_axis else lines


def legend(room: int, width: int, window_s: float) -> str:
    """How charts that are so wide are to be read, in `room` cells."""
    axes, mean = width >= AXES_FROM, "solid up to the mean, hatched up to the peak"
    cell = f"{window_s / max(1, width - GUTTER * axes):.2g} s"
    worded = [f"a column is {cell}: {mean} in that time; the full height is at the left", f"{mean}; full height left"]
    worded = [*(worded if axes else []), mean, "solid mean, hatched peak"]
    return next((words for words in worded if len(words) <= room), "")


def _headline(gauge: Gauge, chart: Sequence[Bucket | None], width: int) -> list[Piece]:
    """What it is, what it is now, and as much else as there is room for."""
    strong, dim = palette.style(gauge.color, bold=True), palette.style(palette.now.dim)
    label: list[Piece] = [(gauge.label, dim)]
    peak = max((bucket[2] for bucket in chart if bucket is not None), default=None)
    mark: list[Piece] = [(f" {gauge.mark}", strong)] if gauge.mark else []
    now: list[Piece] = [(f"now {gauge.now}" if peak is not None else gauge.now, strong)]
    top: list[Piece] = [] if peak is None else [(f"  peak {gauge.unit(peak)}", strong)]
    facts: list[list[Piece]] = [[(f"  {fact}", dim)] for fact in gauge.facts]
    room = width - pieces_len([*label, *now, *mark]) - 3
    taken = set()
    wanted = [*facts[: gauge.facts_first], top, *facts[gauge.facts_first :]]
    for pieces in wanted:
        if pieces_len(pieces) > room:
            break
        room -= pieces_len(pieces)
        taken.add(id(pieces))
    more = [piece for pieces in (top, mark, *facts) if pieces is mark or id(pieces) in taken for piece in pieces]
    return rule(label, [*now, *more], width)


def _height(gauge: Gauge, row: int, rows: int, gutter: int) -> list[Piece]:
    """The scale's ends, at the first and the last row."""
    if not gutter:
        return []
    said = gauge.unit(gauge.scale) if row == 0 else "0" if row == rows - 1 else ""
    return [(f"{said:>{gutter - 1}}{'┤' if said else '│'}", palette.style(palette.now.dim))]


def _times(width: int, window_s: float) -> list[Piece]:
    dim = palette.style(palette.now.dim)
    room = width - GUTTER
    left: list[Piece] = [(" " * GUTTER + _ago(window_s), dim)]
    middle = _ago(window_s / 2)
    gap = GUTTER + room // 2 - pieces_len(left) - len(middle) // 2
    if gap > 0:
        left.append((" " * gap + middle, dim))
    return spread(left, [("now", dim)], width)


def _ago(seconds: float) -> str:
    for unit_s, unit in ((3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"−{seconds / unit_s:g} {unit}"
    return f"−{seconds:g} s"
