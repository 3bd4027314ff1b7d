"""Recordings of the terminal: asciicast v2, as `asciinema play` and its web player take it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kvtui.output_file import empty, open_to_write

# What asks the terminal something, takes its mouse, keys or clipboard, or names its window: the terminal of whoever
# watches a recording must not answer, and keep its settings.
_STEERING = re.compile(
    r"\x1b\[\?(?:9|100[0-7]|101[56]|2004|2031|2048)[hl]"  # mouse, focus, pasting, sizes in the input
    r"|\x1b\[\??[0-9;]*\$p|\x1b\[[>=?]?[0-9;]*[cn]"  # questions
    r"|\x1b\[[<>=?][0-9;]*u"  # keyboard protocol
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window, clipboard, links
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:<=>?$]*|\][^\x07\x1b]*\x1b?)?$")
_UNFINISHED_CHARACTERS = 1 << 16  # beyond this it is no sequence


class CastWriter:
    """Writes until the disk takes no more. With `frames_per_s`, each frame lasts as long as any other; else they come
    when they came. Raises BadRequest when the file cannot be opened, or holds something else than a recording."""

    def __init__(
        self, path: Path, frames_per_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._frames_per_s, self._clock = path, frames_per_s, clock
        self._began_s: float | None = None
        self._frames = 0
        self._size = (0, 0)
        self._pending = ""
        self._file: BinaryIO | None = open_to_write(path, _is_recording, "a recording")

    def add(self, text: str) -> None:
        """Something that the terminal is given, as part of the next frame."""
        if self._file is not None:
            self._pending += text

    def end_frame(self, size: tuple[int, int]) -> str:
        """Writes what was added since the last frame, as one event, to a terminal of `size` columns and lines. Returns
        why the recording ends here if it just did, in one line, and else nothing."""
        if self._file is None or not self._pending:
            return ""
        shown, self._pending = _split(self._pending)
        shown = _STEERING.sub("", shown)
        if not shown:
            return ""
        try:
            self._write_frame(self._file, shown, size)
        except OSError as fault:
            self.close()
            return f"the recording {self._path.name} ends here: {fault.strerror or fault}"
        return ""

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _write_frame(self, file: BinaryIO, shown: str, size: tuple[int, int]) -> None:
        if self._began_s is None:
            self._began_s, self._size = self._clock(), size
            empty(file)
            header = {
                "version": 2,
                "width": size[0],
                "height": size[1],
                "timestamp": int(time.time()),
                "title": "kvtui",
                "env": {"TERM": os.environ.get("TERM", "xterm-256color")},
            }
            _write_line(file, header)
        at_s = self._clock() - self._began_s
        if self._frames_per_s is not None:
            at_s = self._frames / self._frames_per_s
        self._frames += 1
        at_s = round(at_s, 6)
        if size != self._size:
            self._size = size
            _write_line(file, [at_s, "r", f"{size[0]}x{size[1]}"])
        _write_line(file, [at_s, "o", shown])
        file.flush()


def _is_recording(begin: bytes) -> bool:
    """Whether the first line is the header of an asciicast v2."""
    try:
        header = json.loads(begin.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("version") == 2 and "width" in header


def _split(text: str) -> tuple[str, str]:
    """What is whole, and the beginning of a control sequence that is still to come."""
    tail = _UNFINISHED.search(text, max(0, len(text) - _UNFINISHED_CHARACTERS))
    return (text[: tail.start()], text[tail.start() :]) if tail is not None else (text, "")


def _write_line(file: BinaryIO, item: object) -> None:
    # Half a surrogate pair has no UTF-8: it becomes a question mark, as it would on the terminal.
    line = json.dumps(item, ensure_ascii=False, separators=(", ", ": "))
    file.write(line.encode("utf-8", "replace") + b"\n")
