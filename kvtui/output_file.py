"""Files that a run writes: an older one stays as it is until the run has something to put in its place."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from engines.errors import BadRequest

BEGINNING_BYTES = 4096


def open_to_write(path: Path, is_ours: Callable[[bytes], bool], kind: str) -> BinaryIO:
    """A file of its own for this process, with what it held before; `empty` it before the first write. Raises
    BadRequest when there can be none, when somebody writes it already, or when it holds something that `is_ours` does
    not know by its first bytes: a slip of the hand must not cost somebody's document."""
    try:
        # Not O_TRUNC: a start that fails must not cost the last run's file. Reading is for its beginning.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY, 0o666)
    except (OSError, ValueError) as fault:
        raise BadRequest(f"cannot write {path}: {getattr(fault, 'strerror', None) or fault}") from fault
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISFIFO(mode):
            raise BadRequest(f"{path} is a pipe, where nothing can be kept")
        if stat.S_ISREG(mode) and (begin := os.pread(handle, BEGINNING_BYTES, 0)) and not is_ours(begin):
            raise BadRequest(f"{path} exists and is not {kind}; it is left as it is")
        if stat.S_ISREG(mode):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fdopen(handle, "wb")
    except BlockingIOError:
        os.close(handle)
        raise BadRequest(f"{path} is being written already; each run needs a file of its own") from None
    except OSError as fault:
        os.close(handle)
        raise BadRequest(f"cannot write {path}: {fault.strerror or fault}") from fault
    except BadRequest:
        os.close(handle)
        raise


def holds_something(file: BinaryIO) -> bool:
    return os.fstat(file.fileno()).st_size > 0


def empty(file: BinaryIO) -> None:
    """Lets go of what an older run left in it."""
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.truncate(0)
