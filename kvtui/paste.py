"""Pastes, taken out of what the terminal sends before it is looked at character by character.

Textual's parser costs two microseconds a character: a megabyte of bracketed paste took it two seconds beside a running
race. Here the bytes between the two marks are only searched for the second one. It also forgives invalid UTF-8, which
would end Textual's own input thread, and a paste whose end never comes.
"""

from __future__ import annotations

import os
import select
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator

from textual import events, messages
from textual._xterm_parser import XTermParser
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

START, END = b"\x1b[200~", b"\x1b[201~"
# A mark may be split over two reads. What could be the beginning of one waits so long for its rest, and no longer: it
# may as well be the Escape key.
HOLD_S = 0.02
# A paste is over, with or without its end, when in so long a time fewer bytes came than a person's keys would be.
PATIENCE_S, PATIENCE_BYTES = 2.0, 64
READ_BYTES = 1 << 16
LEAVES = "ctrl+q"
TICK_S = 0.1


class PasteFilter:
    """Splits the bytes of a terminal into keys (bytes, as they came) and pastes (str). Times are seconds of a
    monotonic clock."""

    def __init__(self) -> None:
        self._held = b""  # outside of a paste: the beginning of what may be a mark
        self._pasted: bytearray | None = None  # inside: all that came so far
        self._since_s = 0.0  # when `_held` came, or when the paste was last seen to be alive
        self._lately_bytes = 0

    @property
    def wait_s(self) -> float:
        """How long to wait at most before `feed` is called again, with nothing if there is nothing."""
        return HOLD_S if self._held else TICK_S

    def feed(self, data: bytes, now_s: float) -> Iterator[bytes | str]:
        """`data` is what came now; without any, what has waited too long is given up."""
        if self._pasted is None:
            yield from self._keys(data, now_s)
        else:
            yield from self._paste(data, now_s)

    def _keys(self, data: bytes, now_s: float) -> Iterator[bytes | str]:
        if not data:
            if self._held and now_s - self._since_s >= HOLD_S:
                held, self._held = self._held, b""
                yield held
            return
        data = self._held + data
        keys, mark, pasted = data.partition(START)
        self._held = b"" if mark else _beginning_of_mark(keys)
        if self._held:
            self._since_s = now_s
            keys = keys[: -len(self._held)]
        if keys:
            yield keys
        if mark:
            self._pasted, self._since_s, self._lately_bytes = bytearray(), now_s, 0
            yield from self._paste(pasted, now_s)

    def _paste(self, data: bytes, now_s: float) -> Iterator[bytes | str]:
        pasted = self._pasted
        assert pasted is not None
        seen = len(pasted)
        pasted += data
        at = pasted.find(END, max(0, seen - len(END) + 1))
        if at >= 0:
            keys = bytes(pasted[at + len(END) :])
            self._pasted = None
            yield _text(pasted[:at])
            if keys:
                yield from self._keys(keys, now_s)
            return
        self._lately_bytes += len(data)
        if self._lately_bytes >= PATIENCE_BYTES:
            self._since_s, self._lately_bytes = now_s, 0
        elif now_s - self._since_s >= PATIENCE_S:
            self._pasted = None
            yield _text(pasted)


class PasteDriver(LinuxDriver):
    """Textual's terminal driver with a `PasteFilter` before its parser, and with a way out past keys that wait."""

    def process_message(self, message: Message) -> None:
        leave = getattr(self._app, "leave", None)
        if leave is not None and isinstance(message, events.Key) and message.key == LEAVES:
            self._loop.call_soon_threadsafe(leave)
        else:
            super().process_message(message)

    def run_input_thread(self) -> None:
        pastes, parser = PasteFilter(), XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        while not self.exit_event.is_set():
            data = b""
            if select.select([self.fileno], [], [], pastes.wait_s)[0]:
                data = os.read(self.fileno, READ_BYTES)
                if not data:  # the terminal is gone
                    self.process_message(messages.ExitApp())
                    return
            for part in pastes.feed(data, time.monotonic()):
                if isinstance(part, str):
                    self.process_message(events.Paste(part))
                elif keys := decode(part):  # nothing while a character is unfinished, and nothing means the end
                    for message in parser.feed(keys):
                        self.process_message(message)
            for message in parser.tick():
                self.process_message(message)


def with_quick_pastes(driver: type[Driver]) -> type[Driver]:
    """The same driver; for Textual's own on a terminal, the one above."""
    return PasteDriver if driver is LinuxDriver else driver


def _beginning_of_mark(data: bytes) -> bytes:
    """The end of `data` that the start of a paste may begin with."""
    return next((START[:n] for n in range(len(START) - 1, 0, -1) if data.endswith(START[:n])), b"")


def _text(raw: bytes | bytearray) -> str:
    """As Textual does it, without NUL characters."""
    return raw.decode("utf-8", "replace").replace("\0", "")
