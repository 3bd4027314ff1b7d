"""A queue of events that loses none and stays small: the newest wait in a temporary file when there are many."""

from __future__ import annotations

import os
import struct
import tempfile
from collections import deque
from typing import IO

import msgspec

from engines import events

_HEAD = struct.Struct("<QI")  # the event's number, and its size in bytes


class Spool:
    """First in, first out. `in_memory` events are kept as they are; more are written to a file that has no name, up to
    `limit_bytes`. `lost` counts what even that had no room for."""

    def __init__(self, in_memory: int = 20_000, limit_bytes: int = 1 << 30) -> None:
        self._in_memory, self._limit_bytes = in_memory, limit_bytes
        self._front: deque[tuple[int, events.AnyEvent]] = deque()
        self._file: IO[bytes] | None = None
        self._read_at = self._written_to = 0
        self._in_file = 0
        self._decoder = msgspec.msgpack.Decoder(events.AnyEvent)
        self.lost = 0

    def __len__(self) -> int:
        return len(self._front) + self._in_file

    @property
    def first(self) -> int | None:
        """The number of the event that is next."""
        return self._front[0][0] if self._front else None

    def push(self, number: int, event: events.AnyEvent) -> None:
        if not self._in_file and len(self._front) < self._in_memory:
            self._front.append((number, event))
            return
        packed = msgspec.msgpack.encode(event)
        record = _HEAD.pack(number, len(packed)) + packed
        try:
            if self._written_to + len(record) > self._limit_bytes:
                raise OSError("the queue has had its share of the disk")
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            if os.pwrite(self._file.fileno(), record, self._written_to) != len(record):
                raise OSError("no space left")
        except OSError:
            self.lost += 1
            return
        self._written_to += len(record)
        self._in_file += 1

    def pop(self) -> events.AnyEvent:
        """Raises IndexError when it is empty."""
        event = self._front.popleft()[1]
        if not self._front and self._in_file:
            self._refill()
        return event

    def _refill(self) -> None:
        assert self._file is not None
        while self._in_file and len(self._front) < self._in_memory:
            number, size = _HEAD.unpack(os.pread(self._file.fileno(), _HEAD.size, self._read_at))
            packed = os.pread(self._file.fileno(), size, self._read_at + _HEAD.size)
            self._front.append((number, self._decoder.decode(packed)))
            self._read_at += _HEAD.size + size
            self._in_file -= 1
        if not self._in_file:
            self._read_at = self._written_to = 0
            os.ftruncate(self._file.fileno(), 0)
