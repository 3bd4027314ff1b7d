"""The tier below host memory: KV entries in a memory-mapped file that nobody else can see.

The file has no name (or loses it at once), so nothing of it is left behind even after a crash. Its blocks are claimed
when it is made: a full disk then says so, where a mapping over a hole would kill the process at the first write.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engines.memory import Pool

KIND = "kv"


@dataclass
class DiskTier:
    """Where entries go that host memory has no room for: a folder (None: the system's for temporary files) and a pool
    that keeps account, with the cap that a person gave."""

    pool: Pool
    folder: Path | None = None

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros in a file of its own; give it back with `drop`. Raises DiskFull."""
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        used = self.pool.used_bytes
        self.pool.charge(KIND, size)
        try:
            with tempfile.TemporaryFile(dir=self.folder, prefix="kvtui-") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    _write_zeros(file.fileno(), size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as fault:
            self.pool.release(KIND, size)
            raise self.pool.fault("KV", size, used) from fault
        return torch.frombuffer(mapped, dtype=dtype).view(shape)

    def drop(self, *tensors: Tensor) -> None:
        """The space is free again once the tensors are gone."""
        self.pool.drop(KIND, *tensors)


def _write_zeros(file: int, size: int) -> None:
    block = bytes(1 << 20)
    while size > 0:
        size -= os.write(file, block[:size])
