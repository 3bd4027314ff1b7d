"""The cache picture, made small."""

from __future__ import annotations

import numpy as np
import pytest

from engines.events import KvState, pack_cell
from kvtui.cache_state import CacheState, HeadsState
from kvtui.panes.raster import Mark, mark, rasterize, rasterize_heads


def cache(states: np.ndarray, mass: np.ndarray | None = None) -> CacheState:
    shares = {KvState.DEVICE: 1.0, KvState.FETCHED: 1.0, KvState.ANCHOR: 1.0}
    table = np.array([pack_cell(KvState(i % 8), shares.get(KvState(i), 0.0)) for i in range(len(KvState))], np.uint8)
    mass = np.full((states.shape[0], 4), 255, np.uint8) if mass is None else mass
    return CacheState(table[states], mass, np.zeros(states.shape, np.int32), 0.0, 0.0, 1)


def marks(states: np.ndarray, lines: int, columns: int, scale: int | None = None) -> list[list[Mark]]:
    picture = rasterize(cache(states), 2 * lines, columns, scale or states.shape[1])
    return [[Mark(cell[0]) for cell in line] for line in mark(picture)]


def test_one_position_a_cell_is_shown_as_it_is() -> None:
    states = np.array([[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]])
    expected = [Mark.SOLID, Mark.HOST, Mark.DISK, Mark.FETCHED, Mark.EVICTED, Mark.ANCHOR]
    assert marks(states, 1, 6) == [expected]


def test_beyond_the_last_position_there_is_nothing() -> None:
    shown = marks(np.ones((4, 10), int), 2, 8, scale=20)
    assert all(line[:4] == [Mark.SOLID] * 4 and line[4:] == [Mark.BLANK] * 4 for line in shown)


@pytest.mark.parametrize(
    ("kept", "expected"), [(60, Mark.SOLID), (30, Mark.THINNED), (1, Mark.EVICTED), (0, Mark.EVICTED)]
)
def test_bins_tell_how_much_is_left(kept: int, expected: Mark) -> None:
    states = np.full((2, 100), int(KvState.EVICTED))
    states[:, :kept] = KvState.DEVICE
    assert marks(states, 1, 1) == [[expected]]


def test_fetches_are_shown_where_there_are_more_than_usual() -> None:
    states = np.full((2, 100), int(KvState.HOST))
    states[:, ::10] = KvState.FETCHED
    states[:, 50:54] = KvState.FETCHED
    line = marks(states, 1, 10)[0]
    assert line[5] == Mark.FETCHED
    assert line[0] == Mark.HOST


def test_every_layer_and_position_counts_once() -> None:
    rng = np.random.default_rng(1)
    states = rng.integers(1, 7, (30, 997))
    picture = rasterize(cache(states), 30, 36, 997)
    per_row = np.array([[(row == state).mean() for state in range(7)] for row in states])
    columns = np.bincount(np.arange(997) * 36 // 997, minlength=36) / 997
    assert np.allclose((picture.shares * columns[:, None]).sum(axis=1), per_row)


def test_more_rows_than_layers_repeat_layers() -> None:
    states = np.array([[1] * 8, [5] * 8])
    assert marks(states, 2, 8) == [[Mark.SOLID] * 8, [Mark.EVICTED] * 8]


def test_brightness_is_the_strongest_attention_of_a_bin() -> None:
    mass = np.zeros((4, 8), np.uint8)
    mass[1, 3] = 255
    picture = rasterize(cache(np.ones((4, 64), int), mass), 2, 8, 64)
    assert picture.heat[0, 3] == 1
    assert picture.heat.sum() == 1


def test_an_odd_number_of_rows_and_a_cell_a_side() -> None:
    assert marks(np.ones((3, 1), int), 1, 1, scale=64) == [[Mark.SOLID]]
    assert len(mark(rasterize(cache(np.ones((3, 5), int)), 3, 4, 64))) == 2


def test_a_window_is_that_part_of_the_whole() -> None:
    rng = np.random.default_rng(2)
    states = rng.integers(1, 7, (6, 120))
    mass = rng.integers(0, 256, (6, 120)).astype(np.uint8)
    whole = rasterize(cache(states, mass), 6, 120, 120)
    part = rasterize(cache(states, mass), 6, 40, 40, start=30)
    assert np.array_equal(part.shares, whole.shares[:, 30:70])
    assert np.array_equal(part.heat, whole.heat[:, 30:70])


def test_a_window_beyond_the_end_is_empty_there() -> None:
    picture = rasterize(cache(np.ones((4, 50), int)), 4, 10, 20, start=40)
    assert picture.shares[:, :5].sum(axis=2).all()
    assert not picture.shares[:, 5:].any()
    assert not rasterize(cache(np.ones((4, 50), int)), 4, 10, 20, start=60).shares.any()


def test_more_columns_than_positions_leave_no_gaps() -> None:
    states = np.array([[1, 5, 1, 5]] * 2)
    assert marks(states, 1, 10) == [[Mark.SOLID] * 3 + [Mark.EVICTED] * 2 + [Mark.SOLID] * 3 + [Mark.EVICTED] * 2]


def test_linear_brightness_is_in_proportion_and_says_to_what() -> None:
    mass = np.array([[255, 213, 170, 0]], np.uint8)  # all of it, a tenth, a hundredth, nothing
    picture = rasterize(cache(np.ones((1, 4), int), mass), 1, 4, 4, log=False)
    assert picture.top == 1
    assert picture.heat[0] == pytest.approx([1, 0.1, 0.01, 0], rel=0.05)
    picture = rasterize(cache(np.ones((1, 4), int), mass), 1, 2, 2, start=2, log=False)
    assert picture.top == pytest.approx(0.01, rel=0.05)
    assert picture.heat.max() == pytest.approx(1, rel=0.05)


def test_heads_are_rows() -> None:
    states = np.array([[1, 5], [5, 1], [5, 5]], np.uint8)
    picture = rasterize_heads(HeadsState(states, np.zeros((3, 2), np.uint8)), 6, 2, 2)
    assert [[Mark(cell[0]) for cell in line] for line in mark(picture)] == [
        [Mark.SOLID, Mark.EVICTED],
        [Mark.EVICTED, Mark.SOLID],
        [Mark.EVICTED, Mark.EVICTED],
    ]


def test_nothing_is_a_picture_too() -> None:
    empty = cache(np.ones((3, 0), int), np.zeros((3, 0), np.uint8))
    assert not rasterize(empty, 3, 8, 64).shares.any()
    assert not rasterize(empty, 3, 8, 64, log=False).heat.any()
