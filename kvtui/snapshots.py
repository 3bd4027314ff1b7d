"""States of a recording that are kept, so that another moment of it need not be made from the very beginning."""

from __future__ import annotations

import bisect
import errno
import math
import pickle
import tempfile
import zlib
from typing import IO

from kvtui.state import RunState


class Snapshots:
    """States of a recording, packed, about `every_s` apart: in a temporary file, as they would be half of this
    process's memory. When they come to more than `limit_bytes`, every other one is dropped and they are kept further
    apart. Where no file can be written, none is kept: that costs time, not correctness."""

    def __init__(self, every_s: float = 10.0, limit_bytes: int = 32 << 20) -> None:
        self.every_s, self._limit_bytes = every_s, limit_bytes
        self._kept: list[tuple[int, float, int, int]] = []  # frames, their time, place and size in the file; in order
        self._file: IO[bytes] | None = None

    def before(self, frames: int) -> tuple[int, RunState]:
        """The last state of at most so many frames, and of how many it is. The caller may change it."""
        for done, _, place, size in reversed(self._kept):
            if done <= frames:
                return done, pickle.loads(zlib.decompress(self._read(place, size)))  # our own bytes, nobody else's
        return 0, RunState()

    def offer(self, frames: int, at_s: float, state: RunState) -> None:
        """Keeps a copy, unless there is one near by."""
        index = bisect.bisect_left(self._kept, (frames,))
        before_s = self._kept[index - 1][1] if index else 0.0
        after_s = self._kept[index][1] if index < len(self._kept) else math.inf
        if at_s - before_s < self.every_s or after_s - at_s < self.every_s / 2:
            return
        packed = zlib.compress(pickle.dumps(state, pickle.HIGHEST_PROTOCOL), 1)
        try:
            self._kept.insert(index, (frames, at_s, self._append(packed), len(packed)))
            while sum(size for *_, size in self._kept) > self._limit_bytes:
                self._thin_out()
        except OSError:  # a full disk
            self._kept.clear()
            self.every_s = math.inf

    def _append(self, packed: bytes) -> int:
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        place = self._file.seek(0, 2)
        if self._file.write(packed) != len(packed):
            raise OSError(errno.ENOSPC, "no space left for the states of a recording")
        return place

    def _read(self, place: int, size: int) -> bytes:
        assert self._file is not None
        self._file.seek(place)
        return self._file.read(size)

    def _thin_out(self) -> None:
        self.every_s *= 2
        stay = [(frames, at_s, self._read(place, size)) for frames, at_s, place, size in self._kept[1::2]]
        assert self._file is not None
        self._file.truncate(0)
        self._kept = [(frames, at_s, self._append(packed), len(packed)) for frames, at_s, packed in stay]
