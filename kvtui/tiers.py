"""Where an engine's KV entries are, as shares that exclude each other. Only numpy, no terminal."""

from __future__ import annotations

from typing import Any

import numpy as np

from engines.events import KvState
from kvtui.cache_state import STATE_BITS, CacheState

ON_DEVICE = (KvState.DEVICE, KvState.FETCHED, KvState.ANCHOR)
BELOW = (KvState.HOST, KvState.DISK, KvState.FETCHED)  # of what was fetched, the tiers below keep a copy
SHARES = 31  # of a layer's KV heads, see `events.pack_cell`


def shares(cache: CacheState) -> dict[KvState, float]:
    """Of all entries that there are or were (layers × KV heads × positions of the engine's whole context) those in each
    state. They add up to 1, or to 0 where there are none. What is on the device counts there, whatever has a copy."""
    grid = _counts(cache)
    held = np.arange(SHARES + 1) / SHARES
    found: dict[KvState, float] = {state: float(grid[:, state].sum()) for state in KvState if state != KvState.ABSENT}
    rest = _elsewhere(grid)
    for state in ON_DEVICE:
        on_device = float(grid[:, state] @ held)
        found[rest] += found[state] - on_device
        found[state] = on_device
    entries = sum(found.values())
    return {state: part / entries if entries else 0.0 for state, part in found.items()}


def elsewhere(cache: CacheState) -> KvState:
    """Where a layer's other entries of a token are, when only some of its heads have it on the device: on the host, if
    this engine puts any there, else nowhere."""
    return _elsewhere(_counts(cache))


def _counts(cache: CacheState) -> Any:
    """Cells by heads on the device (0..SHARES) and by state: int64 [SHARES + 1, 8]."""
    return np.bincount(cache.cells.ravel(), minlength=256).reshape(-1, STATE_BITS + 1)


def _elsewhere(grid: Any) -> KvState:
    return KvState.HOST if grid[:, BELOW].any() else KvState.EVICTED
