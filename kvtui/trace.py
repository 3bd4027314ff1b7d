"""Traces: everything that a source said, in a file, each frame with the moment at which it came.

A `.kvtrace` file is a row of length-prefixed frames (`engines.frames`). The first one is a `TraceHeader`. Each other
one is HEAD, and then the events as they came up the worker's pipe. The head ends with checksums of the events and of
itself, so that damage anywhere is found when a trace is opened, and what was merely cut off can be told from it.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import stat
import struct
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from engines import events, frames
from engines.errors import BadRequest
from kvtui.literal import one_line
from kvtui.output_file import empty, holds_something, open_to_write
from kvtui.plausible import LONGEST_S, check
from kvtui.source import PassingSource, Restored, Source

MAGIC = "kvtrace"
HEADER_LIMIT_BYTES = 4096
HEAD = struct.Struct("<dII")  # seconds since the trace began, CRC-32 of the events, CRC-32 of length and head so far
_SIZE = struct.Struct("<I")
_MAGIC = msgspec.msgpack.encode("magic") + msgspec.msgpack.encode(MAGIC)


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    magic: str
    schema: int  # of the events
    kvtui: str
    recorded: str  # date and time with its zone, ISO 8601


class TraceWriter:
    """Writes what it is given until the disk takes no more. Raises BadRequest when the file cannot be opened, or holds
    something else than a trace; `clock` tells seconds. An older trace is replaced when the engines have started: until
    then, frames are held back, and a start that fails leaves it as it was."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._began_s: float | None = None
        self._turn = threading.Lock()
        self._file: BinaryIO | None = open_to_write(path, _is_trace, "a trace")
        self._held: list[bytes] | None = [] if holds_something(self._file) else None

    def write(self, batch: Sequence[events.AnyEvent]) -> str:
        """One frame, in the file when this returns: a run that is killed leaves a trace that can be played. Returns why
        the trace ends here if it just did, in one line, and else nothing."""
        with self._turn:
            if self._file is None:
                return ""
            try:
                self._write_frames(self._file, batch)
                if not os.fstat(self._file.fileno()).st_nlink:
                    raise FileNotFoundError(0, "it was deleted")
            except OSError as fault:
                self._close()
                return f"the trace {self._path.name} ends here ({fault.strerror or fault}); the run goes on"
        return ""

    def _write_frames(self, file: BinaryIO, batch: Sequence[events.AnyEvent]) -> None:
        begins = self._began_s is None
        began_s = self._began_s = self._clock() if self._began_s is None else self._began_s
        payloads = [pack(self._clock() - began_s, events.encode(batch))]
        if begins:
            header = TraceHeader(magic=MAGIC, schema=events.SCHEMA_VERSION, kvtui=_version(), recorded=_now())
            payloads.insert(0, msgspec.msgpack.encode(header))
        if self._held is not None:
            self._held += payloads
            if not any(isinstance(event, events.RunStarted) for event in batch):
                return
            payloads, self._held = self._held, None
            empty(file)
        for payload in payloads:
            frames.write_frame(file, payload)

    def close(self) -> None:
        with self._turn:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()


class TracingSource(PassingSource):
    """A `Source` that writes down what another one says. When the trace ends before its time, a notice says so. The
    trace is open after `close`: another source may go on with it."""

    def __init__(self, source: Source, trace: TraceWriter) -> None:
        super().__init__(source)
        self._trace = trace

    def receive(self, timeout_s: float) -> Sequence[events.AnyEvent | Restored]:
        batch = self._source.receive(timeout_s)
        said = [event for event in batch if not isinstance(event, Restored)]
        ended = self._trace.write(said) if said else ""
        return [*batch, events.Notice(level="warning", text=ended)] if ended else batch


class TraceReader:
    """A trace, by frames in the order of time. Opening reads it once and decodes nothing but the header; raises
    BadRequest, in one line, for what cannot be read, is no trace, comes from another schema version, or is damaged. A
    trace whose end is missing has `cut_off` set and ends with its last whole frame."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._times = array("d")
        self._places, self._sizes = array("Q"), array("I")  # of the frames' events, in bytes
        self._file = _open_to_read(path)
        try:
            self.header = self._read_header()
            self.cut_off = self._index()
        except OSError as fault:
            raise self._fault(f"cannot be read: {fault.strerror or fault}") from fault
        if not self._times:
            raise self._fault("holds no events: it was cut off at its beginning")

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[list[events.AnyEvent]]:
        """All frames' events."""
        return map(self.events, range(len(self)))

    @property
    def duration_s(self) -> float:
        return self._times[-1]

    def at_s(self, frame: int) -> float:
        """Seconds from the beginning of the trace to that frame."""
        return self._times[frame]

    def frames_until(self, at_s: float) -> int:
        """How many frames come at `at_s` or before."""
        return bisect.bisect_right(self._times, at_s)

    def events(self, frame: int) -> list[events.AnyEvent]:
        """Raises BadRequest where the events are none of this schema's (a later kvtui may have more kinds of them), or
        the file is not what it was when it was opened."""
        try:
            self._file.seek(self._places[frame])
            batch = events.decode(self._file.read(self._sizes[frame]))
            for event in batch:
                check(event)
            return batch
        except OSError as fault:
            raise self._fault(f"cannot be read: {fault.strerror or fault}") from fault
        except msgspec.ValidationError as fault:  # well-formed, and as its checksum says: nothing is damaged
            raise self._fault(
                f"has an event {self._times[frame]:.1f} s in that schema {events.SCHEMA_VERSION} does not know, "
                f"from kvtui {one_line(self.header.kvtui)}: {one_line(str(fault))}"
            ) from fault
        except (ValueError, msgspec.DecodeError) as fault:
            raise self._fault(f"is damaged {self._times[frame]:.1f} s in: {one_line(str(fault))}") from fault

    def close(self) -> None:
        self._file.close()

    def _read_header(self) -> TraceHeader:
        payload = self._file.read(_SIZE.size)
        if not payload:
            raise self._fault("is empty")
        size = _SIZE.unpack(payload)[0] if len(payload) == _SIZE.size else 0
        try:
            payload = self._file.read(size) if size <= HEADER_LIMIT_BYTES else b""
            header = msgspec.msgpack.decode(payload, type=TraceHeader)
        except (ValueError, msgspec.DecodeError):
            header = None
        if header is None or header.magic != MAGIC:
            raise self._fault("is not a kvtui trace")
        if header.schema != events.SCHEMA_VERSION:
            raise self._fault(
                f"has events of schema {header.schema}, from kvtui {one_line(header.kvtui)}; "
                f"this kvtui plays schema {events.SCHEMA_VERSION}"
            )
        return header

    def _index(self) -> bool:
        """Finds all frames and checks them. Returns whether the last one is not whole."""
        place, end = self._file.tell(), os.fstat(self._file.fileno()).st_size
        before_s = 0.0
        while end - place >= _SIZE.size + HEAD.size:
            size_bytes, head = self._file.read(_SIZE.size), self._file.read(HEAD.size)
            size, (at_s, checksum, head_checksum) = _SIZE.unpack(size_bytes)[0], HEAD.unpack(head)
            if (
                head_checksum != zlib.crc32(head[: -_SIZE.size], zlib.crc32(size_bytes))
                or not HEAD.size <= size <= frames.MAX_FRAME_BYTES
                or not before_s <= at_s < LONGEST_S
            ):
                raise self._damaged(place)
            if place + _SIZE.size + size > end:
                return True
            if zlib.crc32(self._file.read(size - HEAD.size)) != checksum:
                raise self._damaged(place)
            self._times.append(at_s)
            self._places.append(place + _SIZE.size + HEAD.size)
            self._sizes.append(size - HEAD.size)
            place, before_s = place + _SIZE.size + size, at_s
        return place < end

    def _damaged(self, place: int) -> BadRequest:
        where = f"{self._times[-1]:.1f} s in" if self._times else "at its beginning"
        return self._fault(f"is damaged {where} (byte {place:,})")

    def _fault(self, what: str) -> BadRequest:
        self._file.close()
        return BadRequest(f"{self._path} {what}")


def pack(at_s: float, payload: bytes) -> bytes:
    """A frame's bytes after its length: `payload` are encoded events."""
    size_bytes = _SIZE.pack(HEAD.size + len(payload))
    head = HEAD.pack(at_s, zlib.crc32(payload), 0)[: -_SIZE.size]
    return head + _SIZE.pack(zlib.crc32(head, zlib.crc32(size_bytes))) + payload


def _is_trace(begin: bytes) -> bool:
    """Whether it begins with the frame of a `TraceHeader`, of any schema: a small map whose first key is the magic."""
    size = int.from_bytes(begin[: _SIZE.size], "little")
    if len(begin) <= _SIZE.size or size > HEADER_LIMIT_BYTES or begin[_SIZE.size] >> 4 != 0x8:
        return False
    return begin[_SIZE.size + 1 :].startswith(_MAGIC)


def _open_to_read(path: Path) -> BinaryIO:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise BadRequest(f"{path} is not a file")
        return path.open("rb")
    except (OSError, ValueError) as fault:
        raise BadRequest(f"cannot read {path}: {getattr(fault, 'strerror', None) or fault}") from fault


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # for those who write: reading begins sooner without

    try:
        return version("kvtui")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
