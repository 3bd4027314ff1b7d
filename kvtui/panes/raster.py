"""The cache picture, made small: layers × positions binned to the cells of a pane. Only numpy, no terminal.

A cell on the screen is two rows of the raster: the upper and the lower half of a block character.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from engines.events import KvState
from kvtui.cache_state import CacheState

STATES = len(KvState)
SHADES = 15  # steps of brightness above none: few, so that a flicker of attention repaints nothing
DOTS = 4

# A bin of positions is a mixture. It is drawn solid when half of it is on the device, as dots down to one entry in
# thirty, and below that as gone. Fetches are shown where more than usual of the same layers were fetched.
SOLID_FROM, KEPT_FROM = 1 / 2, 1 / 30
FETCHED_FROM, FETCHED_OVER_MEAN = 0.05, 1.4


class Mark(IntEnum):
    BLANK = 0
    SOLID = 1
    THINNED = 2
    HOST = 3
    DISK = 4
    FETCHED = 5
    EVICTED = 6
    ANCHOR = 7


@dataclass
class Raster:
    """`shares` float [rows, columns, states] sums to 1 where there are positions, to 0 beyond the last one; `heat`
    float [rows, columns] in 0..1 is the attention mass on its log scale."""

    shares: np.ndarray[Any, np.dtype[np.float64]]
    heat: np.ndarray[Any, np.dtype[np.float64]]


def rasterize(cache: CacheState, rows: int, columns: int, scale_tokens: int) -> Raster:
    """Averages states over each bin of layers and positions; `scale_tokens` positions span all `columns`. With more
    rows than layers, each layer fills several."""
    layers, tokens = cache.cells.shape
    binned = min(rows, layers)
    row_of = np.arange(layers) * binned // layers
    column_of = np.minimum(np.arange(tokens) * columns // scale_tokens, columns - 1)
    bins = ((row_of * columns)[:, None] + column_of) * STATES + (cache.cells & 7)
    counts = np.bincount(bins.ravel(), minlength=binned * columns * STATES).reshape(binned, columns, STATES)
    shares = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)
    # The strongest of a bin's layers: a mean of logarithms would hide the one layer that matters.
    first_layer = np.searchsorted(row_of, np.arange(binned))
    mass = np.maximum.reduceat(cache.mass, first_layer, axis=0)
    heat = _columns_of_mass(mass, columns, scale_tokens, tokens) / 255
    if rows > layers:
        repeated = np.arange(rows) * layers // rows
        shares, heat = shares[repeated], heat[repeated]
    return Raster(shares, heat)


def _columns_of_mass(
    mass: np.ndarray[Any, np.dtype[np.uint8]], columns: int, scale_tokens: int, tokens: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Mass bins [rows, bins] over `tokens` positions as columns over `scale_tokens`: the strongest bin of each."""
    bins = mass.shape[1]
    edges = np.arange(columns) * scale_tokens / columns / max(1, tokens) * bins
    return np.maximum.reduceat(mass, np.minimum(edges.astype(int), bins - 1), axis=1)


def mark(raster: Raster) -> list[list[tuple[int, int, int, int, int]]]:
    """What each cell of the screen shows: (Mark, brightness 0..SHADES of the upper and of the lower half, brightness by
    attention alone, dots 0..DOTS-1), line by line."""
    shares, heat = raster.shares, raster.heat
    if shares.shape[0] % 2:
        shares = np.concatenate([shares, np.zeros_like(shares[:1])])
        heat = np.concatenate([heat, np.zeros_like(heat[:1])])
    lines, columns = shares.shape[0] // 2, shares.shape[1]
    kept = shares[..., KvState.DEVICE] + shares[..., KvState.ANCHOR] + shares[..., KvState.FETCHED]
    bright = np.where(kept >= KEPT_FROM, np.sqrt(kept) * (0.3 + 0.7 * heat), 0)
    shade = np.minimum(np.ceil(bright * SHADES), SHADES).astype(int).reshape(lines, 2, columns)

    halves = shares.reshape(lines, 2, columns, STATES)
    filled = halves.sum(axis=(1, 3))  # 0..2: how many of the halves hold positions
    there = filled > 0
    mean = halves.sum(axis=1) / np.where(there, filled, 1)[..., None]
    kept_halves = kept.reshape(lines, 2, columns)
    kept_mean = kept_halves.sum(axis=1) / np.where(there, filled, 1)
    dots = np.clip(np.ceil(kept_mean / SOLID_FROM * DOTS) - 1, 0, DOTS - 1).astype(int)
    level = np.ceil(heat.reshape(lines, 2, columns).max(axis=1) * SHADES).astype(int)
    fetched = mean[..., KvState.FETCHED]
    usual = fetched.sum(axis=1, keepdims=True) / np.maximum(there.sum(axis=1, keepdims=True), 1)

    kind = np.full((lines, columns), Mark.EVICTED, int)
    kind[kept_mean >= KEPT_FROM] = Mark.THINNED
    kind[kept_halves.max(axis=1) >= SOLID_FROM] = Mark.SOLID
    kind[mean[..., KvState.HOST] >= 0.5] = Mark.HOST
    kind[mean[..., KvState.DISK] >= 0.5] = Mark.DISK
    kind[(fetched >= SOLID_FROM) | (fetched >= np.maximum(FETCHED_FROM, FETCHED_OVER_MEAN * usual))] = Mark.FETCHED
    kind[mean[..., KvState.ANCHOR] >= 0.5] = Mark.ANCHOR
    kind[~there | (mean[..., KvState.ABSENT] > 0.99)] = Mark.BLANK
    cells = np.stack([kind, shade[:, 0], shade[:, 1], level, dots], axis=2)
    return [[(m, u, lo, h, d) for m, u, lo, h, d in line] for line in cells.tolist()]
