"""The picture of a cache as an event: whole at first, afterwards only what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engines.events import Cache, Heads, deflate

if TYPE_CHECKING:
    from engines.caches.base import CacheView, HeadsView

MASS_BINS = 256
_FLOOR_DECADES = 6.0  # a share of 10⁻⁶ is the dark end of the scale


class CellsEncoder:
    """Turns one engine's views into `Cache` events. Every request starts with a whole picture; the same request's next
    ones are XORed with the last, so that cells which kept their state are zeros and deflate to next to nothing."""

    def __init__(self) -> None:
        self._request: int | None = None
        self._cells = np.zeros((0, 0), np.uint8)

    def encode(self, request: int, view: CacheView) -> Cache:
        cells = np.ascontiguousarray(view.cells, dtype=np.uint8)
        layers, tokens = cells.shape
        known_layers, known = self._cells.shape
        whole = request != self._request or layers != known_layers or tokens < known
        changes = cells
        if not whole:
            changes = cells.copy()
            changes[:, :known] ^= self._cells
        self._request, self._cells = request, cells.copy()
        mass = bin_mass(view.mass)
        return Cache(
            request=request,
            tokens=tokens,
            layers=layers,
            whole=whole,
            states=deflate(changes.tobytes()),
            mass=deflate(mass.tobytes()),
            mass_bins=mass.shape[1],
            fetched_tokens=float(view.fetched_tokens),
            evicted_tokens=float(view.evicted_tokens),
        )


def bin_mass(mass: NDArray[np.float32], bins: int = MASS_BINS) -> NDArray[np.uint8]:
    """Shares [layers, tokens] to log-scaled bytes [layers, min(bins, tokens)]. Position p is in bin
    p * bins // tokens; a bin's mass is the sum of its positions' shares."""
    tokens = mass.shape[1]
    bins = min(bins, tokens)
    if not bins:
        return np.zeros(mass.shape, np.uint8)
    starts = (np.arange(bins) * tokens + bins - 1) // bins
    sums = np.add.reduceat(mass.astype(np.float64), starts, axis=1)
    return log_bytes(sums)


def log_bytes(shares: NDArray[np.floating]) -> NDArray[np.uint8]:
    """255 * (1 + log10(share) / 6), at least 1 from a share of 10⁻⁶ up, and 0 below."""
    visible = shares >= 10**-_FLOOR_DECADES
    scaled = np.rint(255 * (1 + np.log10(np.where(visible, shares, 1.0)) / _FLOOR_DECADES))
    return np.where(visible, np.clip(scaled, 1, 255), 0).astype(np.uint8)


def encode_heads(request: int, layer: int, view: HeadsView) -> Heads:
    """One layer's picture, head by head, as an event."""
    kv_heads, tokens = view.states.shape
    return Heads(
        request=request,
        layer=layer,
        kv_heads=kv_heads,
        tokens=tokens,
        states=deflate(view.states.astype(np.uint8).tobytes()),
        mass=deflate(log_bytes(view.mass).tobytes()),
    )
