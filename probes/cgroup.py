"""The memory limit of the container that this process is in: control groups, versions 1 and 2."""

from __future__ import annotations

import contextlib
from pathlib import Path

_NONE_FROM = 1 << 60  # version 1 writes "no limit" as a number near 2**63


class MemoryLimit:
    """The tightest limit of this process's group and those above it, found once. `root` and `own` are for tests."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> None:
        found = [(limit, *names) for names in _groups(root, own) if (limit := _number(names[0])) is not None]
        tightest = min(found, default=None, key=lambda group: group[0])
        self._files = None if tightest is None else tightest[1:]

    def kills(self, vmstat: Path = Path("/proc/vmstat")) -> int:
        """How often the kernel has killed a process for want of memory: in the group with the limit, or else anywhere
        on this machine. 0 where it does not tell."""
        if self._files is None:
            return _entry(vmstat, "oom_kill")
        folder = self._files[0].parent
        return max(_entry(folder / name, "oom_kill") for name in ("memory.events", "memory.oom_control"))

    def read(self) -> tuple[int, int] | None:
        """Bytes: the limit, and what counts against it without the file cache that the kernel would give back first.
        None where there is no limit."""
        if self._files is None:
            return None
        limit_file, used_file, statistics, cache = self._files
        limit, used = _number(limit_file), _number(used_file)
        if limit is None or used is None:
            return None
        return limit, max(0, used - _entry(statistics, cache))


def _groups(root: Path, own: Path) -> list[tuple[Path, Path, Path, str]]:
    """Of each group: the files of limit, use and statistics, and what the idle file cache is called in the last."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        number, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "", "")
        if number == "0" and not controllers:
            files, cache = ("memory.max", "memory.current", "memory.stat"), "inactive_file"
            tops = [root, root / "unified"]
        elif "memory" in controllers.split(","):
            files, cache = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"), "total_inactive_file"
            tops = [root / "memory"]
        else:
            continue
        for top in tops:
            # Inside a container the path may be that on the machine: then its own group is mounted at the top.
            inner = top / path.lstrip("/")
            folders = [folder for folder in (inner, *inner.parents) if folder == top or top in folder.parents]
            groups += [(f / files[0], f / files[1], f / files[2], cache) for f in folders]
    return groups


def _number(file: Path) -> int | None:
    """None for what is not there, "max", and numbers that mean it."""
    with contextlib.suppress(OSError, ValueError):
        value = int(file.read_text())
        return value if value < _NONE_FROM else None
    return None


def _entry(file: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
