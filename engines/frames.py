"""Length-prefixed frames over a byte stream: four bytes, little-endian, then the payload."""

from __future__ import annotations

import struct
from typing import BinaryIO

MAX_FRAME_BYTES = 1 << 28


def write_frame(stream: BinaryIO, payload: bytes) -> None:
    stream.write(struct.pack("<I", len(payload)) + payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next payload, or None at the end of the stream (also when it was cut in the middle of a frame).
    Raises ValueError when the length is absurd, that is, when this is no frame at all."""
    head = _read_exactly(stream, 4)
    if head is None:
        return None
    (size,) = struct.unpack("<I", head)
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes is larger than allowed")
    return _read_exactly(stream, size)


def _read_exactly(stream: BinaryIO, size: int) -> bytes | None:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
