"""Reading a GGUF file: its metadata, its table of tensors, and each tensor's values. No architecture is known here.

The `gguf` package has a reader too, but it makes a Python object of every vocabulary entry (5 s for 49,000 tokens).
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.errors import ModelUnavailable

if TYPE_CHECKING:
    import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class GgufTensor:
    """`shape` has the slowest dimension first, as torch has it; `kind` is ggml's number for the quantisation."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """`metadata` holds scalars, strings and arrays of numbers; an array of strings (a vocabulary) is its length."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def rows(self, tensor: GgufTensor) -> Iterator[np.ndarray]:
        """The tensor's values in order, as float32 arrays [some rows, columns], so that no large one is held whole.
        Raises ModelUnavailable for a quantisation that cannot be read."""
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        count = math.prod(tensor.shape[:-1])
        data = np.memmap(self.path, np.uint8, "r", tensor.offset, (count, tensor.size_bytes // max(count, 1)))
        kind = GGMLQuantizationType(tensor.kind)
        step = max(1, _CHUNK_VALUES // tensor.shape[-1])
        for start in range(0, count, step):
            blocks = np.array(data[start : start + step])
            try:
                # As one long row, since gguf's loop goes over groups of rows.
                yield dequantize(blocks.reshape(1, -1), kind).reshape(len(blocks), -1)
            except NotImplementedError:
                raise ModelUnavailable(
                    f"{self.path.name} uses the quantisation {kind.name}, which cannot be read; "
                    "try a Q8_0, Q4_K_M or F16 file"
                ) from None


def read(path: Path) -> GgufFile:
    """Raises ModelUnavailable for a file that is no GGUF, is of another version, damaged or cut off."""
    try:
        with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except OSError as fault:
        raise ModelUnavailable(f"cannot read {path} ({fault.strerror or fault})") from fault
    except (struct.error, ValueError, KeyError, OverflowError, MemoryError) as fault:
        raise ModelUnavailable(f"{path} is damaged or cut off; download it again") from fault


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    if data[:4] != b"GGUF":
        raise ModelUnavailable(f"{path} is not a GGUF file (it does not begin with 'GGUF')")
    version, tensor_count, entry_count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ModelUnavailable(f"{path} has GGUF version {version}; versions 2 and 3 (little-endian) can be read")
    at = 24
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = _value(data, at + 4, kind)
    table = []
    for _ in range(tensor_count):
        name, at = _string(data, at)
        (dimensions,) = struct.unpack_from("<I", data, at)
        *shape, kind, offset = struct.unpack_from(f"<{dimensions}QIQ", data, at + 4)
        table.append((name, tuple(reversed(shape)), kind, offset))
        at += 16 + 8 * dimensions
    alignment = int(metadata.get("general.alignment", 32))
    base = -(-at // alignment) * alignment
    tensors = {}
    for name, dims, kind, offset in table:
        tensors[name] = tensor = GgufTensor(name, dims, kind, base + offset, _size_bytes(dims, kind))
        if tensor.offset + tensor.size_bytes > len(data):
            raise ModelUnavailable(f"{path} is cut off: {name} ends beyond the end of the file; download it again")
    return GgufFile(path, metadata, tensors)


def _size_bytes(shape: tuple[int, ...], kind: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    if not shape or shape[-1] % block:
        raise ValueError("a row is not a whole number of blocks")
    return math.prod(shape) // block * block_bytes


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    at += 8
    if at + size > len(data):
        raise ValueError("a string ends beyond the end of the file")
    return data[at : at + size].decode(), at + size


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind == _ARRAY:
        return _array(data, at)
    code = _SCALARS[kind]
    (value,) = struct.unpack_from("<" + code, data, at)
    if code == "f":
        value = _shortest(value)
    return value, at + struct.calcsize("<" + code)


def _array(data: mmap.mmap, at: int) -> tuple[Any, int]:
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind == _STRING:
        for _ in range(count):
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        return count, at
    if kind == _ARRAY:
        raise ValueError("nested arrays do not occur in models")
    if at + count > len(data):
        raise ValueError("an array ends beyond the end of the file")
    code = f"<{count}{_SCALARS[kind]}"
    return list(struct.unpack_from(code, data, at)), at + struct.calcsize(code)


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05 rather than 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))
