"""The cache picture, made small."""

from __future__ import annotations

import numpy as np
import pytest

from engines.events import KvState, pack_cell
from kvtui.cache_state import CacheState
from kvtui.panes.raster import Mark, mark, rasterize


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
