"""Text that comes through a pipe: stdin, or a FIFO such as a shell makes for `<(command)`."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path
from typing import IO

import click

WRITER_WAIT_S = 3.0


def is_pipe(path: Path) -> bool:
    """Raises OSError when nothing is there."""
    return stat.S_ISFIFO(path.stat().st_mode)


def open_pipe(path: Path) -> IO[bytes]:
    """Once something comes, or its writer is there: opening a pipe to which nobody writes would wait for ever. After
    `WRITER_WAIT_S` without a writer it reads as empty. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    select.select([handle], [], [], WRITER_WAIT_S)
    os.set_blocking(handle, True)
    return open(handle, "rb")


def name_of(path: Path) -> str:
    """What it is called for a person; nothing where a shell has given it a number."""
    return "" if path.name.isdecimal() and path.parent.name == "fd" else path.name


def read_stdin(most_bytes: int, wait_s: float | None = None) -> bytes:
    """All of stdin, or what comes first of it. With `wait_s`, a pipe into which nobody writes anything for so long
    counts as empty: programs are often started with a stdin that stays open for ever."""
    if sys.stdin is None:
        return b""
    if wait_s is not None and not select.select([sys.stdin], [], [], wait_s)[0]:
        click.echo(f"kvtui: nothing came on stdin within {wait_s:g} s; going on without it", err=True)
        return b""
    return sys.stdin.buffer.read(most_bytes)
