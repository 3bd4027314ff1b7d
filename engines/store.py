"""The cache folder on disk: made aside, then renamed, so that whatever is there is whole."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_dir

from engines.errors import ModelUnavailable
from engines.sizes import size

Progress = Callable[[str, float | None], None]
"""Told what is being done, and how far (0..1, None when unknown); perhaps from another thread."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


def root() -> Path:
    """`$KVTUI_CACHE`, or the platform's cache folder for this user. Not made here."""
    return Path(os.environ.get("KVTUI_CACHE") or user_cache_dir("kvtui")).expanduser().absolute()


def build(target: Path, make: Callable[[Path], None], *, waiting: Callable[[], None] = lambda: None) -> Path:
    """Returns `target`, a folder in the cache, after `make(folder)` has filled it if it was not there.

    `make` works in a hidden folder beside `target` that is synced and renamed at the end, so an interruption at any
    point leaves no half of it; the leftovers of a killed run are removed by the next. A second process waits
    (`waiting` is called before it does) and finds the first one's result. Raises ModelUnavailable when the disk is full
    or the cache cannot be written.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock", waiting) as alone:
            if alone:
                _remove_leftovers(target)
            if not target.is_dir():
                _make_aside(target, make)
    except OSError as fault:
        raise write_fault(fault) from fault
    return target


def require_space(folder: Path, needed_bytes: int, purpose: str) -> None:
    """Raises ModelUnavailable when the disk under `folder` (which may not exist yet) has less than that free."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed_bytes:
        shown = root() if folder.is_relative_to(root()) else folder
        raise ModelUnavailable(
            f"disk full: {purpose} needs {size(needed_bytes)} in {shown}, where {size(free)} are free; "
            "make room, or set KVTUI_CACHE to a folder on another disk"
        )


def write_fault(fault: OSError, what: str = "", variable: str = "KVTUI_CACHE") -> ModelUnavailable:
    """The one line for a write that failed in a cache (ours, unless named), which `variable` can move elsewhere."""
    what = what or f"the cache folder {root()}"
    if fault.errno in _FULL:
        return ModelUnavailable(
            f"disk full while writing to {what}; make room, or set {variable} to a folder on another disk"
        )
    return ModelUnavailable(
        f"cannot write {what} ({fault.strerror or fault}); set {variable} to a folder that you can write"
    )


@contextmanager
def watched(folder: Path, total_bytes: int, report: Callable[[float], None]) -> Iterator[None]:
    """Reports the growth of `folder` as a share of `total_bytes`, from a thread of its own, until the block ends."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.25):
            report(min(1.0, size_bytes(folder) / max(total_bytes, 1)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def size_bytes(folder: Path) -> int:
    """What the files take on disk: some downloaders make a file at its full size and fill it."""
    total = 0
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except OSError:  # renamed meanwhile
            continue
        total += min(status.st_size, status.st_blocks * 512)
    return total


def _make_aside(target: Path, make: Callable[[Path], None]) -> None:
    aside = target.parent / f".{target.name}.{uuid.uuid4().hex}.part"
    try:
        aside.mkdir()
        make(aside)
        for path in (*aside.rglob("*"), aside):
            _sync(path)
        try:
            aside.rename(target)
        except OSError:
            if not target.is_dir():  # else another process, on a disk without locks, was first: its result is as good
                raise
        _sync(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    for path in target.parent.glob(f".{target.name}.*.part"):
        shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Holds an advisory lock, which the kernel drops if this process dies. Yields False where the disk has no locks."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as fault:
            if fault.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            yield False
            return
        yield True
