"""Where a text holds what a person searches for. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

GAP_CHARACTERS = 8


class Matches:
    """All places of `query` in a growing text, whatever the case; any white space matches any other (up to
    `GAP_CHARACTERS` of it, so that pages of nothing are no trap). One is current."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.current = 0
        gap = rf"\s{{1,{GAP_CHARACTERS}}}"
        words = gap.join(map(re.escape, re.split(r"\s+", query)))
        self._pattern = re.compile(words, re.IGNORECASE)
        self._seen = 0

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, text: str) -> None:
        """Goes on with what was added to the text."""
        if not self.query or len(text) == self._seen:
            return
        after = self.ends[-1] if self.ends else 0
        begin = max(after, self._seen - GAP_CHARACTERS * len(self.query))  # a match may span old and new
        for match in self._pattern.finditer(text, begin):
            self.starts.append(match.start())
            self.ends.append(match.end())
        self._seen = len(text)

    def within(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Those that have a character in `start .. end`: where they begin and end, and their numbers."""
        for number in range(bisect_right(self.ends, start), bisect_left(self.starts, end)):
            yield self.starts[number], self.ends[number], number

    def seek(self, character: int) -> bool:
        """Makes the first match at or after a character the current one; from the beginning where there is none.
        Returns whether that was around the end."""
        at = bisect_left(self.starts, character)
        self.current = at if at < len(self.starts) else 0
        return at != self.current

    def step(self, by: int) -> bool:
        """To the next one or the one before. Returns whether it went around an end; a single one has none."""
        at = self.current + by
        self.current = at % len(self.starts)
        return at != self.current and len(self.starts) > 1
