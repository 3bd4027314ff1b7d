"""What figures were over a long time, in bounded memory: the latest in full, what is older ever coarser."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence

# How many seconds a row stands for (0: one sample), and how many rows are kept. At ten samples a second: two minutes
# in full, half an hour by the second, thirty hours by the quarter minute. What is older is forgotten.
LEVELS = ((0.0, 1200), (1.0, 1800), (15.0, 7200))

HOLD = 2.5

Bucket = tuple[float, float, float]  # the least, the mean, the greatest


class History:
    """Samples of the figures `names`; None is one that was not told."""

    def __init__(self, names: Sequence[str], levels: Sequence[tuple[float, int]] = LEVELS) -> None:
        self.names = tuple(names)
        self.version = 0
        self.end_s = -math.inf
        self._levels = [_Level(len(self.names), width_s, rows) for width_s, rows in levels]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and (self.names, self._levels) == (other.names, other._levels)

    def add(self, at_s: float, values: Sequence[float | None]) -> None:
        """Times that go back are taken for the latest one."""
        self.version += 1
        self.end_s = at_s = max(at_s, self.end_s)
        row = [math.nan if value is None else float(value) for value in values]
        for level in self._levels:
            level.add(at_s, row)

    def buckets(self, name: str, start_s: float, end_s: float, count: int) -> list[Bucket | None]:
        """The time from `start_s` to `end_s` in `count` equal parts, from the finest rows that reach back so far. A
        sample holds until the next one, for HOLD times their usual distance at most; None where nothing was told."""
        width_s = (end_s - start_s) / count
        column = self.names.index(name)
        level = next((level for level in self._levels if level.whole or level.begin_s <= start_s), self._levels[-1])
        return level.buckets(column, start_s, width_s, count)

    def mean(self, name: str, start_s: float, end_s: float) -> float | None:
        (bucket,) = self.buckets(name, start_s, end_s, 1)
        return None if bucket is None else bucket[1]


class _Level:
    """Rows of `width_s` seconds each, the last one still growing. float32: seven figures are enough for a graph."""

    def __init__(self, columns: int, width_s: float, most: int) -> None:
        self.width_s, self._most = width_s, most
        self._times = array("d")  # when a row begins
        self._low = [array("f") for _ in range(columns)]
        self._high = [array("f") for _ in range(columns)] if width_s else self._low
        self._mean = [array("f") for _ in range(columns)] if width_s else self._low
        self._counts = [0] * columns  # of the last row
        self.whole = True  # nothing was forgotten yet

    def __eq__(self, other: object) -> bool:
        """By bytes: what was not told is no number, and such are never equal."""
        return isinstance(other, _Level) and self._bytes() == other._bytes()

    def _bytes(self) -> list[bytes]:
        parts = [part for column in range(len(self._low)) for part in self._parts(column)]
        return [self._times.tobytes(), *(part.tobytes() for part in parts)]

    @property
    def begin_s(self) -> float:
        return self._times[0] if self._times else math.inf

    def add(self, at_s: float, row: list[float]) -> None:
        if not self.width_s or not self._times or at_s >= self._times[-1] + self.width_s:
            self._append(at_s, row)
        else:
            self._fold(row)

    def _append(self, at_s: float, row: list[float]) -> None:
        self._times.append(math.floor(at_s / self.width_s) * self.width_s if self.width_s else at_s)
        for column, value in enumerate(row):
            for part in self._parts(column):
                part.append(value)
            self._counts[column] = not math.isnan(value)
        if len(self._times) > self._most * 5 // 4:  # seldom, as dropping moves all that stays
            self._shrink()

    def _fold(self, row: list[float]) -> None:
        for column, value in enumerate(row):
            if math.isnan(value):
                continue
            low, mean, high = self._low[column], self._mean[column], self._high[column]
            self._counts[column] += 1
            if self._counts[column] == 1:
                low[-1] = mean[-1] = high[-1] = value
            else:
                low[-1], high[-1] = min(low[-1], value), max(high[-1], value)
                mean[-1] += (value - mean[-1]) / self._counts[column]

    def _parts(self, column: int) -> list[array[float]]:
        return [self._low[column], self._mean[column], self._high[column]] if self.width_s else [self._low[column]]

    def _shrink(self) -> None:
        self.whole, gone = False, len(self._times) - self._most
        del self._times[:gone]
        for column in range(len(self._low)):
            for part in self._parts(column):
                del part[:gone]

    def buckets(self, column: int, start_s: float, width_s: float, count: int) -> list[Bucket | None]:
        low, mean, high = self._low[column], self._mean[column], self._high[column]
        times, found = self._times, list[Bucket | None]()
        hold_s = HOLD * (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
        index = bisect_left(times, start_s)
        for number in range(count):
            begin, begin_s = index, start_s + number * width_s
            while index < len(times) and times[index] < begin_s + width_s:
                index += 1
            rows = range(begin, index)
            if not rows and 0 < index < len(times) and begin_s - times[index - 1] <= hold_s:
                rows = range(index - 1, index)
            told = [row for row in rows if not math.isnan(mean[row])]
            if told:
                average = sum(mean[row] for row in told) / len(told)
                found.append((min(low[row] for row in told), average, max(high[row] for row in told)))
            else:
                found.append(None)
        return found
