"""What the host tells of itself, of the worker and of this process: psutil, /proc and control groups."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from probes.cgroup import MemoryLimit

_KIB = 1024


class HostProbe:
    """`read` answers within a millisecond. The worker may end at any time: then its figures are None."""

    def __init__(
        self,
        worker_id: int | None,
        *,
        limit: MemoryLimit | None = None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker, self._face = _process(worker_id), _process(os.getpid())
        self._limit, self._proc, self._clock = limit or MemoryLimit(), proc, clock
        self._cores = psutil.cpu_count() or 1
        self._faults: tuple[float, int] | None = None
        psutil.cpu_percent()  # the first call only sets the mark that the next one measures from

    def read(self) -> dict[str, Any]:
        """Fields of `events.Sample`. CPU figures are of the time since the last call, in percent of one core."""
        memory, limit = psutil.virtual_memory(), self._limit.read()
        worker, face = _usage(self._worker), _usage(self._face)
        return {
            "worker_rss_bytes": worker.get("rss"),
            "worker_cpu_percent": worker.get("cpu"),
            "worker_page_faults_per_s": self._page_faults_per_s(),
            "face_rss_bytes": face.get("rss"),
            "face_cpu_percent": face.get("cpu"),
            "host_used_bytes": memory.total - memory.available,
            "host_total_bytes": memory.total,
            "host_cpu_percent": psutil.cpu_percent() * self._cores,
            "memory_limit_bytes": None if limit is None else limit[0],
            "memory_limit_used_bytes": None if limit is None else limit[1],
            "pinned_bytes": self._pinned_bytes(),
        }

    def _page_faults_per_s(self) -> float | None:
        """Major ones of the worker since the last call; psutil does not tell on Linux."""
        count = self._page_faults()
        if count is None:
            return None
        now_s, before = self._clock(), self._faults
        self._faults = now_s, count
        if before is None or now_s <= before[0]:
            return None
        return max(0, count - before[1]) / (now_s - before[0])

    def _page_faults(self) -> int | None:
        if self._worker is None:
            return None
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The second field, the program's name, may hold spaces and parentheses: the last one ends it.
            fields = (self._proc / str(self._worker.pid) / "stat").read_text().rpartition(")")[2].split()
            return int(fields[9])  # majflt, the 12th of proc(5)
        with contextlib.suppress(psutil.Error):
            return getattr(self._worker.memory_info(), "pageins", None)  # on macOS
        return None

    def _pinned_bytes(self) -> int | None:
        """What the kernel counts as pinned or locked of the worker's memory. A CUDA driver pins past it."""
        if self._worker is None:
            return None
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = (self._proc / str(self._worker.pid) / "status").read_text().splitlines()
            kib = [int(line.split()[1]) for line in lines if line.startswith(("VmPin:", "VmLck:"))]
            return sum(kib) * _KIB if kib else None
        return None


def _process(process_id: int | None) -> psutil.Process | None:
    if process_id is None:
        return None
    try:
        process = psutil.Process(process_id)
        process.cpu_percent()
    except psutil.Error:
        return None
    return process


def _usage(process: psutil.Process | None) -> dict[str, Any]:
    """Resident bytes and percent of one core; nothing of a process that is gone."""
    if process is None:
        return {}
    try:
        with process.oneshot():
            return {"rss": process.memory_info().rss, "cpu": process.cpu_percent()}
    except psutil.Error:
        return {}
