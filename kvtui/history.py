"""What a figure was, over an engine's clock."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

LIMIT = 4096


@dataclass
class History:
    """Samples over an engine's clock. Beyond the limit every other one is dropped, so that memory stays bounded."""

    clock_s: list[float] = field(default_factory=list)
    values: list[tuple[float, ...]] = field(default_factory=list)
    version: int = 0
    top: float = 0.0  # the largest sum of a sample's values

    def add(self, clock_s: float, *values: float) -> None:
        self.version += 1
        self.top = max(self.top, sum(values))
        if self.clock_s and clock_s <= self.clock_s[-1]:
            self.values[-1] = values
            return
        self.clock_s.append(clock_s)
        self.values.append(values)
        if len(self.clock_s) > LIMIT:
            del self.clock_s[1:-1:2], self.values[1:-1:2]

    def clear(self) -> None:
        self.clock_s.clear()
        self.values.clear()
        self.top = 0.0
        self.version += 1

    def held(self, clock_s: float) -> tuple[float, ...] | None:
        """The last sample at or before `clock_s`."""
        index = bisect.bisect_right(self.clock_s, clock_s)
        return self.values[index - 1] if index else None

    def between(self, clock_s: float) -> float:
        """The first value at `clock_s`, on straight lines between samples (for totals that grow)."""
        index = bisect.bisect_right(self.clock_s, clock_s)
        if index == 0:
            return self.values[0][0] if self.values else 0.0
        left = self.values[index - 1][0]
        if index == len(self.clock_s):
            return left
        share = (clock_s - self.clock_s[index - 1]) / (self.clock_s[index] - self.clock_s[index - 1])
        return left + share * (self.values[index][0] - left)
