"""What an engine has left of each token: how bright it is to be shown, and what became of it. Only numpy, no terminal.

A token's brightness is the share of layers × KV heads in which its entry is on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from engines.events import KvState
from kvtui.cache_state import STATE_BITS, CacheState
from kvtui.manuscript import Part

LEVELS = 15  # of brightness above none
SHARES = 31  # of a layer's KV heads, see `events.pack_cell`
KEPT_FROM = HOST_FROM = 1 / 2
ANCHORED_FROM = 1 / 4
# Every layer fetches a part of the context at every step; a token counts where more layers than usual want it.
FETCHED_FROM, FETCHED_OVER_MEAN = 0.05, 1.4


class Kind(IntEnum):
    UNREAD = 0  # the cache has no such position, or no picture of it came yet
    KEPT = 1
    THINNED = 2  # on the device in fewer than half of the layers and heads
    HOST = 3
    FETCHED = 4
    EVICTED = 5  # in no layer any more, neither on the device nor on the host
    ANCHOR = 6


RESCUED = (Kind.FETCHED, Kind.ANCHOR)


@dataclass
class Fading:
    """Token by token: `kinds` uint8 (`Kind`) and `levels` uint8, 0..LEVELS, 0 only where nothing is on the device."""

    kinds: NDArray[np.uint8]
    levels: NDArray[np.uint8]

    @classmethod
    def unread(cls, tokens: int) -> Fading:
        return cls(np.zeros(tokens, np.uint8), np.zeros(tokens, np.uint8))

    def shares(self) -> dict[Kind, float]:
        """Of the tokens that the cache has (or had): how many are of each kind, 0..1."""
        counts = np.bincount(self.kinds, minlength=len(Kind)).tolist()
        seen = max(1, sum(counts) - counts[Kind.UNREAD])
        return {kind: counts[kind] / seen for kind in Kind if kind != Kind.UNREAD}

    def on_device(self, first: int = 0, end: int | None = None) -> float:
        """The mean brightness (0..1) of tokens `first .. end` that the cache has; 0 where it has none."""
        levels = self.levels[first:end][self.kinds[first:end] != Kind.UNREAD]
        return float(levels.mean()) / LEVELS if levels.size else 0.0

    def next_run(self, kinds: Sequence[Kind], after: int) -> int | None:
        """Where the next run of such tokens begins after `after`; from the beginning again where none follows."""
        wanted = np.isin(self.kinds, kinds)
        begins = np.flatnonzero(wanted & ~np.concatenate([[False], wanted[:-1]]))
        if not begins.size:
            return None
        following = begins[begins > after]
        return int(following[0] if following.size else begins[0])


def fade(cells: NDArray[np.uint8], usual_fetched: float) -> Fading:
    """Of cells [layers, tokens]; `usual_fetched` (0..1) is the share of the context that a layer fetches. Bytes are
    counted in bytes wherever they fit: that is four times as fast, and long documents have millions."""
    layers, tokens = cells.shape
    if not layers:
        return Fading.unread(tokens)
    most = SHARES * layers
    held = (cells >> 3).sum(axis=0, dtype=np.uint16 if most < 1 << 16 else np.uint32)
    states = cells & STATE_BITS

    def count(state: KvState) -> NDArray[np.unsignedinteger]:
        return (states == np.uint8(state)).view(np.uint8).sum(axis=0, dtype=np.uint8 if layers < 256 else np.uint32)

    host, absent = count(KvState.HOST) + count(KvState.DISK), count(KvState.ABSENT)
    # Of a short context nearly everything is fetched: what every layer wants counts all the same.
    fetched_from = layers * min(1.0, max(FETCHED_FROM, FETCHED_OVER_MEAN * usual_fetched))
    kinds = np.full(tokens, Kind.THINNED, np.uint8)
    for kind, where in (  # each over those before it
        (Kind.KEPT, held >= KEPT_FROM * most),
        (Kind.HOST, (host >= HOST_FROM * layers) | ((host > 0) & (held == 0))),
        (Kind.FETCHED, count(KvState.FETCHED) >= max(1, fetched_from)),
        (Kind.EVICTED, count(KvState.EVICTED) + absent == layers),
        (Kind.ANCHOR, count(KvState.ANCHOR) >= ANCHORED_FROM * layers),
        (Kind.UNREAD, absent == layers),
    ):
        np.copyto(kinds, np.uint8(kind), where=where)
    levels = ((np.arange(most + 1) * LEVELS + most - 1) // most).astype(np.uint8)  # rounded up
    return Fading(kinds, levels[held])


def faded(
    parts: Sequence[Part], theirs: Sequence[Part], cache: CacheState | None, first: int = 0, end: int | None = None
) -> Fading:
    """Tokens `first .. end` of a conversation (its `parts`) as an engine has them in which the same conversation is
    `theirs`. Where its answer is another one, its cache says nothing about these tokens."""
    size = sum(part.tokens for part in parts)
    end = size if end is None else min(end, size)
    found = Fading.unread(max(0, end - first))
    if cache is None:
        return found
    usual = cache.fetched_tokens / max(1, cache.tokens)
    known = {(part.request, part.answer): part for part in theirs}
    for part in parts:
        other = known.get((part.request, part.answer))
        if other is None:
            continue
        # Prompts end alike (see `manuscript.Address`), answers begin alike.
        skipped = 0 if part.answer else part.tokens - other.tokens
        alike = other.tokens if other is part or not part.answer else _alike(part.said, other.said)
        begin = max(first, part.first + max(0, skipped))
        stop = min(end, part.first + part.tokens, part.first + skipped + alike)
        position = other.position - skipped - part.first
        stop = min(stop, cache.tokens - position)
        if begin < stop:
            piece = fade(cache.cells[:, position + begin : position + stop], usual)
            found.kinds[begin - first : stop - first] = piece.kinds
            found.levels[begin - first : stop - first] = piece.levels
    return found


def _alike(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens two answers begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, theirs, strict=False)))
