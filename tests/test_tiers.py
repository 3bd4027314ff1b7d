"""Where entries are: every one counts once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.events import KvState, pack_cell
from kvtui.cache_state import CacheState
from kvtui.tiers import ON_DEVICE, elsewhere, shares

CELL = st.tuples(st.sampled_from(sorted(KvState)), st.integers(0, 31))


def cache(*layers: list[tuple[KvState, float]]) -> CacheState:
    cells = np.array([[pack_cell(state, share) for state, share in layer] for layer in layers], np.uint8)
    return CacheState(cells, np.zeros((len(layers), 0), np.uint8), np.zeros(cells.shape, np.int32), 0.0, 0.0, 1)


def test_what_was_dropped_and_what_is_left() -> None:
    found = shares(cache([(KvState.DEVICE, 1), (KvState.EVICTED, 0)], [(KvState.DEVICE, 1 / 3), (KvState.EVICTED, 0)]))
    assert found[KvState.DEVICE] == pytest.approx((1 + 10 / 31) / 4)
    assert found[KvState.EVICTED] == pytest.approx(1 - (1 + 10 / 31) / 4)
    assert found[KvState.HOST] == found[KvState.FETCHED] == 0


def test_what_was_fetched_is_not_on_the_host_as_well() -> None:
    found = shares(cache([(KvState.FETCHED, 1), (KvState.HOST, 0)], [(KvState.HOST, 0), (KvState.HOST, 0)]))
    assert (found[KvState.FETCHED], found[KvState.HOST]) == (0.25, 0.75)


def test_heads_that_are_not_resident_are_on_the_host_where_there_is_one() -> None:
    resident = (KvState.DEVICE, 0.0)
    assert elsewhere(cache([resident, (KvState.HOST, 0)])) == KvState.HOST
    assert shares(cache([resident, (KvState.HOST, 0)]))[KvState.HOST] == 1
    assert elsewhere(cache([resident, (KvState.EVICTED, 0)])) == KvState.EVICTED


def test_what_is_not_there_yet_does_not_count() -> None:
    assert shares(cache([(KvState.ABSENT, 0), (KvState.DEVICE, 1)]))[KvState.DEVICE] == 1
    assert sum(shares(cache([(KvState.ABSENT, 0)])).values()) == 0
    assert sum(shares(cache([])).values()) == 0


@given(st.lists(CELL, min_size=1, max_size=40))
def test_they_add_up_to_one(column: list[tuple[KvState, int]]) -> None:
    found = shares(cache([(state, held / 31 if state in ON_DEVICE else 0.0) for state, held in column]))
    some = any(state != KvState.ABSENT for state, _ in column)
    assert sum(found.values()) == pytest.approx(1.0 if some else 0.0)
