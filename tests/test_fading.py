"""What is left of each token, and what became of it."""

from __future__ import annotations

import numpy as np
import pytest

from engines.events import KvState, pack_cell
from kvtui.cache_state import CacheState
from kvtui.fading import LEVELS, RESCUED, Fading, Kind, fade, faded
from kvtui.manuscript import Part

DEVICE, HOST, FETCHED, GONE = KvState.DEVICE, KvState.HOST, KvState.FETCHED, KvState.EVICTED


def cells(*columns: list[tuple[KvState, float]]) -> np.ndarray:
    """One column a token, one (state, share) a layer."""
    return np.array([[pack_cell(*cell) for cell in column] for column in columns], np.uint8).T


def cache(grid: np.ndarray, fetched: float = 0.0) -> CacheState:
    empty = np.zeros(grid.shape, np.int32)
    return CacheState(grid, np.zeros((len(grid), 0), np.uint8), empty, fetched, 0.0, 1)


@pytest.mark.parametrize(
    ("column", "kind", "level"),
    [
        ([(DEVICE, 1)] * 4, Kind.KEPT, LEVELS),
        ([(DEVICE, 1), (DEVICE, 1), (GONE, 0), (GONE, 0)], Kind.KEPT, 8),
        ([(DEVICE, 1 / 3), (DEVICE, 1), (GONE, 0), (GONE, 0)], Kind.THINNED, 5),
        ([(DEVICE, 1 / 31), (GONE, 0), (GONE, 0), (GONE, 0)], Kind.THINNED, 1),  # hardly anything is not nothing
        ([(GONE, 0)] * 4, Kind.EVICTED, 0),
        ([(HOST, 0)] * 4, Kind.HOST, 0),
        ([(HOST, 0), (GONE, 0), (GONE, 0), (GONE, 0)], Kind.HOST, 0),  # still somewhere
        ([(KvState.DISK, 0)] * 4, Kind.HOST, 0),
        ([(FETCHED, 1), (HOST, 0), (HOST, 0), (HOST, 0)], Kind.HOST, 4),  # no more than usual
        ([(FETCHED, 1), (FETCHED, 1), (HOST, 0), (HOST, 0)], Kind.FETCHED, 8),
        ([(KvState.ANCHOR, 1), (GONE, 0), (GONE, 0), (GONE, 0)], Kind.ANCHOR, 4),
        ([(KvState.ABSENT, 0)] * 4, Kind.UNREAD, 0),
        ([(KvState.ABSENT, 0), (GONE, 0), (GONE, 0), (GONE, 0)], Kind.EVICTED, 0),
    ],
)
def test_a_token(column: list[tuple[KvState, float]], kind: Kind, level: int) -> None:
    found = fade(cells(column), usual_fetched=0.25)
    assert (found.kinds.tolist(), found.levels.tolist()) == ([kind], [level])


def test_no_layers_and_no_tokens() -> None:
    assert fade(np.zeros((0, 3), np.uint8), 0).kinds.tolist() == [Kind.UNREAD] * 3
    assert fade(np.zeros((4, 0), np.uint8), 0).kinds.size == 0
    assert Fading.unread(0).on_device() == 0
    assert sum(Fading.unread(3).shares().values()) == 0


def test_many_layers_do_not_overflow() -> None:
    found = fade(np.full((300, 2), pack_cell(DEVICE, 1), np.uint8), 0)
    assert found.levels.tolist() == [LEVELS, LEVELS]
    assert fade(np.full((300, 1), pack_cell(GONE, 0), np.uint8), 0).kinds.tolist() == [Kind.EVICTED]


def test_shares_count_only_what_was_read() -> None:
    found = fade(cells([(DEVICE, 1)], [(GONE, 0)], [(KvState.ABSENT, 0)]), 0)
    assert found.shares()[Kind.KEPT] == found.shares()[Kind.EVICTED] == 0.5
    assert found.on_device() == 0.5


def test_runs_are_found_one_after_the_other_and_around() -> None:
    kinds = [Kind.EVICTED, Kind.KEPT, Kind.EVICTED, Kind.EVICTED, Kind.ANCHOR, Kind.FETCHED]
    found = Fading(np.array(kinds, np.uint8), np.zeros(6, np.uint8))
    assert [found.next_run((Kind.EVICTED,), after) for after in range(6)] == [2, 2, 0, 0, 0, 0]
    assert found.next_run(RESCUED, 0) == 4
    assert found.next_run((Kind.HOST,), 0) is None


def test_positions_of_another_engine() -> None:
    """Its follow-up begins elsewhere and has a token less at its beginning; its answer soon is another one."""
    mine = [Part(0, False, 0, 2), Part(0, True, 2, 3, (7, 8, 9), 2), Part(1, False, 5, 3, (), 5)]
    theirs = [Part(0, False, 0, 2), Part(0, True, 2, 4, (7, 1, 1, 1), 2), Part(1, False, 6, 2, (), 6)]
    held = cache(np.array([[pack_cell(DEVICE, position / 8) for position in range(1, 9)]], np.uint8))
    levels = fade(held.cells, 0).levels.tolist()
    found = faded(mine, theirs, held)
    assert found.levels.tolist() == [levels[0], levels[1], levels[2], 0, 0, 0, levels[6], levels[7]]
    assert found.kinds.tolist()[3:6] == [Kind.UNREAD] * 3
    assert faded(mine, theirs, held, 1, 7).levels.tolist() == found.levels.tolist()[1:7]
    assert faded(mine, mine, held).levels.tolist() == levels
    assert faded(mine, [], held).kinds.max() == Kind.UNREAD
    assert faded(mine, mine, None).kinds.tolist() == [Kind.UNREAD] * 8


def test_positions_that_are_not_in_the_cache_yet() -> None:
    part = [Part(0, False, 0, 5)]
    assert faded(part, part, cache(cells([(DEVICE, 1)]))).kinds.tolist() == [Kind.KEPT, *[Kind.UNREAD] * 4]
