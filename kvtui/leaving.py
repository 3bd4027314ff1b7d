"""Signals that end the app: as usual if it can, and all the same where it cannot."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

LEAVE_S, CLOSE_S = 4.0, 10.0  # the worker is given time of its own to end
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def on_signals(leave: Callable[[int], object], close: Callable[[], object]) -> Callable[[], None]:
    """From now on, a signal to end calls `leave` with the exit code, in the main thread; when the process is still
    there `LEAVE_S` later, another thread calls `close` and ends it. Returns what restores the handlers before. Has no
    effect in other threads than the main one."""

    def end(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=insist, args=(128 + number,), daemon=True).start()
        leave(128 + number)

    def insist(code: int) -> None:
        time.sleep(LEAVE_S)
        closing = threading.Thread(target=close, daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        os._exit(code)

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in SIGNALS:
            # Not the event loop's own: a loop that is stuck would never come to it.
            before[number] = signal.signal(number, end)

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore
