"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtui import figures


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (94_371_840, "94.4 MB"),
        (1.21e9, "1.21 GB"),
        (128_400, "128 kB"),
        (999_600, "1.00 MB"),
    ],
)
def test_size(value: float, shown: str) -> None:
    assert figures.size(value) == shown


@given(st.floats(0, 9e11))
def test_sizes_have_three_figures_and_a_bounded_width(value: float) -> None:
    number, unit = figures.size(value).split()
    assert len(number) <= 4
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.006, abs=0.51)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0262, "26 ms"), (0.0042, "4.2 ms"), (0.9996, "1.00 s"), (2.1, "2.10 s"), (75.2, "75.2 s")],
)
def test_seconds(value: float | None, shown: str) -> None:
    assert figures.seconds(value) == shown


def test_change_against_a_reference() -> None:
    assert figures.change(30, 100) == "−70 %"
    assert figures.change(100, 100) == "±0 %"
    assert figures.change(112, 100) == "+12 %"
    assert figures.change(5, 0) == ""


def test_percents_add_up_and_hide_nothing() -> None:
    assert figures.percents([1 / 3, 1 / 3, 1 / 3]) == ["34 %", "33 %", "33 %"]
    assert figures.percents([0.997, 0.003]) == [">99 %", "<1 %"]
    assert figures.percents([0.0, 1.0]) == ["0 %", "100 %"]
    assert figures.percents([0.255]) == ["26 %"]
    assert figures.percents([]) == []


def test_clock_never_shows_sixty_seconds() -> None:
    assert figures.clock(59.96) == "01:00.0"
    assert figures.clock(72.44) == "01:12.4"


@given(st.floats(1e-3, 1e15))
def test_a_scale_holds_its_value_and_is_at_most_half_as_large_again(value: float) -> None:
    assert value * (1 - 1e-6) <= figures.ceiling(value) <= value * 1.5


@given(st.integers(0, 300_000))
def test_position_scales_leave_little_room(tokens: int) -> None:
    edge = figures.position_ceiling(tokens)
    assert tokens <= edge <= max(64, tokens * 1.25)
