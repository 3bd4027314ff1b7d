"""Where every position's KV entry is, as far as events have told: the picture, its history, and layers head by head."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines import events

STATE_BITS = 7
FLOOR_DECADES = 6  # of the log scale of attention mass, see `events.Cache`
_SHARES = np.concatenate([[0.0], 10.0 ** (FLOOR_DECADES * (np.arange(1, 256) / 255 - 1))])  # by the byte

# In all columns together. Six engines on 128 layers and 131,072 tokens have 101 million cells, at five bytes each here.
MOST_CELLS = MOST_CELLS_OF_HEADS = 1 << 27


@dataclass
class HeadsState:
    """One layer, head by head: `states` uint8 [kv_heads, tokens] (`events.KvState`), `mass` uint8 the same shape, on
    the events' log scale. `tokens` is how many positions the cache had when it was seen."""

    states: NDArray[np.uint8]
    mass: NDArray[np.uint8]

    @property
    def tokens(self) -> int:
        return int(self.states.shape[1])


@dataclass
class CacheState:
    """`cells` uint8 [layers, tokens] (`events.pack_cell`), `mass` uint8 [layers, bins] on the events' log scale,
    `since` int32 [layers, tokens]: how many tokens the context had when the position's present state was first seen,
    `heads` the layers that were seen head by head, each as it was when its turn last came."""

    cells: NDArray[np.uint8]
    mass: NDArray[np.uint8]
    since: NDArray[np.int32]
    fetched_tokens: float
    evicted_tokens: float
    version: int
    heads: dict[int, HeadsState] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return int(self.cells.shape[1])

    @property
    def layers(self) -> int:
        return int(self.cells.shape[0])


def share_of(mass: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Shares (0..1) of a layer's attention, from bytes of the events' log scale; 0 for what is too small to tell."""
    return _SHARES[mass]


def check_room(started: events.RunStarted | None, event: events.Cache | events.Heads) -> None:
    """Raises ValueError for a picture that is larger than the model and its context, before any of it is unpacked."""
    if started is None:
        raise ValueError("a cache picture before the run's start")
    if isinstance(event, events.Cache):
        fits = event.layers <= started.layers
    else:
        fits = event.layer < started.layers and event.kv_heads <= started.kv_heads
    if not fits or event.tokens > started.context_limit:
        raise ValueError("a cache picture is larger than the model's cache")


def check_total(others: Collection[CacheState | None], event: events.Cache) -> None:
    """Raises ValueError where all pictures together would take too much memory."""
    held = sum(cache.cells.size + cache.mass.size for cache in others if cache is not None)
    if held + event.layers * (event.tokens + event.mass_bins) > MOST_CELLS:
        raise ValueError("the cache pictures take too much memory")


def keep_heads(caches: Collection[CacheState], of: CacheState, event: events.Heads) -> None:
    """Takes a layer in; those of this cache that were seen longest ago give way where all would take too much memory.
    Raises ValueError for damaged ones, and where there is no room."""
    of.heads.pop(event.layer, None)
    held = sum(heads.states.size for cache in caches for heads in cache.heads.values())
    room = MOST_CELLS_OF_HEADS - event.kv_heads * event.tokens
    while held > room and of.heads:
        held -= of.heads.pop(next(iter(of.heads))).states.size
    if held > room:
        raise ValueError("the cache pictures take too much memory")
    of.heads[event.layer] = seen_heads(event)


def seen(before: CacheState | None, event: events.Cache) -> CacheState | None:
    """The picture after `event`; None when that is a difference to one that was never seen. Raises ValueError for
    damaged ones."""
    cells = _array(event.states, event.layers, event.tokens)
    mass = _array(event.mass, event.layers, event.mass_bins)
    fits = before is not None and before.layers == event.layers
    if not event.whole:
        if before is None or not fits:
            return None
        cells = cells.copy()
        known = min(before.tokens, event.tokens)
        cells[:, :known] ^= before.cells[:, :known]
    since = np.full(cells.shape, event.tokens, np.int32)
    if before is not None and fits:
        known = min(before.tokens, event.tokens)
        same = (cells[:, :known] ^ before.cells[:, :known]) & STATE_BITS == 0
        np.copyto(since[:, :known], before.since[:, :known], where=same)
    version = 1 if before is None else before.version + 1
    heads = before.heads if before is not None and fits else {}
    return CacheState(cells, mass, since, event.fetched_tokens, event.evicted_tokens, version, heads)


def seen_heads(event: events.Heads) -> HeadsState:
    """Raises ValueError for damaged ones."""
    return HeadsState(
        _array(event.states, event.kv_heads, event.tokens), _array(event.mass, event.kv_heads, event.tokens)
    )


def _array(packed: bytes, rows: int, columns: int) -> NDArray[np.uint8]:
    cells = np.frombuffer(events.inflate(packed, rows * columns), np.uint8)
    if cells.size != rows * columns:
        raise ValueError("a cache picture does not match its shape")
    return cells.reshape(rows, columns)
