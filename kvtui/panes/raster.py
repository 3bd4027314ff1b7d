"""The cache picture, made small: layers × positions binned to the cells of a pane. Only numpy, no terminal.

A cell on the screen is two rows of the raster: the upper and the lower half of a block character.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from engines.events import KvState
from kvtui.cache_state import STATE_BITS, CacheState, HeadsState, share_of
from kvtui.figures import ceiling

STATES = len(KvState)
BINS = STATE_BITS + 1  # of states that a cell's bits can tell
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
    """`shares` float [rows, columns, states] sums to 1 where there are positions, to 0 elsewhere; `heat` float
    [rows, columns] in 0..1 is the attention mass, on its log scale or in proportion. `top` is the share of a layer's
    attention that is as bright as it gets."""

    shares: NDArray[np.float64]
    heat: NDArray[np.float64]
    top: float


def rasterize(cache: CacheState, rows: int, columns: int, span: int, start: int = 0, *, log: bool = True) -> Raster:
    """Averages states over each bin of layers and positions; `span` positions from `start` on fill all `columns`.
    With more rows than layers, or more columns than positions, each fills several."""
    return _raster(cache.cells, cache.mass, rows, columns, span, start, log)


def rasterize_heads(
    heads: HeadsState, rows: int, columns: int, span: int, start: int = 0, *, log: bool = True
) -> Raster:
    """As `rasterize`, with the KV heads of one layer in place of the layers."""
    return _raster(heads.states, heads.mass, rows, columns, span, start, log)


def _raster(
    cells: NDArray[np.uint8], mass: NDArray[np.uint8], rows: int, columns: int, span: int, start: int, log: bool
) -> Raster:
    sources, tokens = cells.shape
    binned, across = min(rows, sources), min(columns, span)
    end = max(start, min(start + span, tokens))
    row_of = np.arange(sources) * binned // sources
    counts = np.zeros((binned, across * BINS), np.int64)
    offset = np.arange(end - start) * across // span * BINS
    for source, row in enumerate(row_of):  # one after another: what they need stays in the processor's cache
        counts[row] += np.bincount(offset + (cells[source, start:end] & STATE_BITS), minlength=across * BINS)
    counts = counts.reshape(binned, across, BINS)[..., :STATES]
    shares = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1)
    # The strongest of a bin's layers: a mean of logarithms would hide the one layer that matters.
    strongest = np.maximum.reduceat(mass, np.searchsorted(row_of, np.arange(binned)), axis=0)
    strongest = _columns_of_mass(strongest, across, span, start, tokens)
    heat, top = strongest / 255, 1.0
    if not log:
        linear = share_of(strongest)
        # A round number, so that the scale jumps now and then rather than flickering all the time.
        top = ceiling(100 * float(linear.max(initial=0.0))) / 100
        heat = linear / top
    if rows > sources:
        repeated = np.arange(rows) * sources // rows
        shares, heat = shares[repeated], heat[repeated]
    if columns > span:
        repeated = np.arange(columns) * span // columns
        shares, heat = shares[:, repeated], heat[:, repeated]
    return Raster(shares, heat, top)


def _columns_of_mass(mass: NDArray[np.uint8], columns: int, span: int, start: int, tokens: int) -> NDArray[np.uint8]:
    """Mass bins [rows, bins] over all `tokens` as columns over `span` positions from `start` on: the strongest bin of
    each."""
    bins = mass.shape[1]
    if not bins:
        return np.zeros((len(mass), columns), np.uint8)
    edges = (start + np.arange(columns + 1) * span / columns) / max(1, tokens) * bins
    first = np.minimum(edges[:-1].astype(int), bins - 1)
    end = max(first[-1] + 1, min(bins, math.ceil(edges[-1])))
    return np.maximum.reduceat(mass[:, :end], first, axis=1)


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
