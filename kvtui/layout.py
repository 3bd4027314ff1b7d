"""The lines of a long text at one width. Pure: no terminal, only numpy and how wide each character is shown.

A text's shape has one byte a cell: what begins there, or that a wider character goes on. Lines are found in the shape
by one regular expression, a few milliseconds for hundreds of kilobytes, in any script.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from kvtui.literal import literal

_LETTER, _SPACE, _WIDE, _GOES_ON, _BREAK = b"x Wy\n"
_CODES = 0x110000
# By code point, filled as characters are met (untouched pages cost no memory): how many cells it is shown in, and what
# it is in a shape (0: not met yet).
_cells = np.zeros(_CODES, np.uint8)
_kinds = np.zeros(_CODES, np.uint8)


class Layout:
    """Where each line of a text begins. A line holds at most `width` cells, one space that hangs over its end, and its
    line break (`dense`: and all empty lines that follow); words longer than a line are cut, wide characters never."""

    def __init__(self, width: int, *, dense: bool = False) -> None:
        self.width, self.dense = max(1, width), dense
        self.starts: list[int] = []
        self.end = 0  # of what is laid out, in characters

    def __len__(self) -> int:
        return len(self.starts)

    def grow(self, text: str, end: int | None = None) -> None:
        """Takes in `text` up to `end`; it begins as the one before did, so only the last line and what is new are
        broken anew."""
        end = len(text) if end is None else min(end, len(text))
        if end > self.end:
            begin = self.starts.pop() if self.starts else 0
            self.starts += [begin + start for start in line_starts(text[begin:end], self.width, self.dense)]
            self.end = end

    def line_of(self, character: int) -> int:
        """The line that holds a character, the last one for those beyond the end."""
        return max(0, bisect_right(self.starts, character) - 1)

    def span(self, line: int) -> tuple[int, int]:
        """A line's characters, the space and the line break at its end too."""
        return self.starts[line], self.starts[line + 1] if line + 1 < len(self.starts) else self.end


def line_starts(text: str, width: int, dense: bool = False) -> list[int]:
    """Where the lines of a text begin, see `Layout`."""
    encoded = text.encode("utf-32-le", "surrogatepass")
    if not encoded:
        return []
    codes = np.frombuffer(encoded, np.uint32)
    _meet(codes)
    cells = _cells[codes]
    # What takes no cell (an accent to be put on a letter) stays with what is before it; at a line's beginning, where
    # nothing is, it takes one.
    cells[(cells == 0) & np.concatenate([[True], codes[:-1] == 10])] = 1
    ends = np.cumsum(cells, dtype=np.int64)
    shape = np.full(int(ends[-1]), _GOES_ON, np.uint8)
    shown = cells > 0
    shape[(ends - cells)[shown]] = _kinds[codes[shown]]
    stops = [match.end() for match in _lines(width, dense).finditer(shape.tobytes())]
    found = np.searchsorted(ends, np.array(stops[:-1], np.int64), side="right")
    return [0, *found.tolist()]


@lru_cache(maxsize=16)
def _lines(width: int, dense: bool) -> re.Pattern[bytes]:
    """In this order: an empty line; up to a place between words (around wide characters, too), a space may hang over;
    as much of a long word as fits; a character that is wider than the line."""
    pattern = (
        rb"\n"
        rb"|[^\n]{1,%d}(?:(?=[ \nW]|\Z)|(?<=[ y])(?!y))(?: y*)?\n?"
        rb"|[^\n]{1,%d}(?!y)"
        rb"|[^\n]y*\n?" % (width, width)
    )
    if dense:
        pattern = pattern.replace(rb"\n?", rb"\n*").replace(rb"\n|", rb"\n+|", 1)
    return re.compile(pattern)


def _meet(codes: NDArray[np.uint32]) -> None:
    for code in np.unique(codes[_kinds[codes] == 0]).tolist():
        character = chr(code)
        shown = literal(character)
        cells = cell_len(shown)
        if character == "\n":
            kind, cells = _BREAK, 1
        elif shown.isspace():
            kind = _SPACE
        else:
            kind = _WIDE if cells > 1 else _LETTER
        _cells[code], _kinds[code] = cells, kind
