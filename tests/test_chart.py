"""Charts tell how high they are, over which time, and what is drawn solid and hatched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvtui.panes.chart import GUTTER, Gauge, drawn, halves, legend
from kvtui.panes.lines import pieces_len
from probes.history import Bucket


def steady(mean: float, peak: float) -> Gauge:
    def columns(count: int) -> Sequence[Bucket | None]:
        return [None, *[(0.0, mean, peak)] * (count - 1)]

    return Gauge("CPU", "0 %", [], columns, 400.0, lambda value: f"{value:.0f} %")


def texts(gauges: list[Gauge], width: int = 60, height: int = 10, window_s: float = 120.0) -> list[str]:
    lines = drawn(gauges, width, height, window_s)
    assert len(lines) <= height
    assert all(pieces_len(line) <= width for line in lines)
    return ["".join(text for text, _ in line) for line in lines]


def test_a_chart_has_its_height_its_time_and_its_peak() -> None:
    headline, *rows, times = texts([steady(100.0, 300.0)])
    assert headline.split() == ["CPU", headline.split()[1], "now", "0", "%", "peak", "300", "%"]
    assert len(rows) == 8
    assert rows[0].startswith(f"{'400 %':>{GUTTER - 1}}┤")
    assert rows[-1].startswith(f"{'0':>{GUTTER - 1}}┤ █")
    # A line is 50 %: the mean fills two lines from below, the peak six.
    assert [row[GUTTER + 5] for row in rows] == [" ", " ", "▒", "▒", "▒", "▒", "█", "█"]
    assert times.split() == ["−2", "min", "−1", "min", "now"]
    assert times.index("−2") == GUTTER
    assert times.index("−1") - (GUTTER + 49 // 2) in range(-4, 1)
    assert times.endswith("now")


@pytest.mark.parametrize(
    ("window_s", "said"),
    [(30.0, "−30 s −15 s now"), (3600.0, "−1 h −30 min now"), (86_400.0, "−24 h −12 h now")],
)
def test_times_have_units(window_s: float, said: str) -> None:
    assert " ".join(texts([steady(1.0, 1.0)], window_s=window_s)[-1].split()) == said


def test_what_was_nothing_all_the_time_has_a_line_and_no_chart() -> None:
    headline, other, *rows = texts([steady(0.0, 0.0), steady(1.0, 1.0)])
    assert "now 0 %  peak 0 %" in headline
    assert "CPU" in other
    assert len(rows) == 8


def test_modelled_is_said_before_anything_is_left_out() -> None:
    for width in range(24, 80):
        gauge = steady(1.0, 1.0)
        gauge.label, gauge.mark, gauge.facts = "engines", "modelled", ["a fact of some length"]
        headline = texts([gauge], width)[0]
        assert " modelled" in headline
        assert "now 0 %" in headline
        assert ("peak" in headline) == (width >= 36)


def test_both_sides_have_as_many() -> None:
    silent = Gauge("GPU", "n/a")
    many = [steady(float(n), 1.0) for n in range(7)]
    for left, right, counts in (([], many, (3, 4)), ([silent], many, (3, 4)), (many[:2], many[2:], (3, 4))):
        ones, others = halves(left, right)
        assert (len(ones), len(others)) == counts
        assert [*ones, *others] == many
    assert halves(many, [silent, many[0]]) == (many, [many[0]])


def test_the_legend_fits_and_says_what_a_column_is() -> None:
    assert legend(118, 59, 120.0).startswith("a column is 2.5 s: solid up to the mean, hatched up to the peak")
    for room in range(0, 130):
        said = legend(room, 59, 120.0)
        assert len(said) <= room
        assert ("mean" in said and "peak" in said) == (room >= 24)
