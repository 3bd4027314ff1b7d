"""Signals that end the app, where its event loop does not come to them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

STUCK = """
import signal, time
from kvtui import leaving
leaving.LEAVE_S = 0.3
leaving.on_signals(lambda code: None, lambda: print("closed", flush=True))
print("stuck", flush=True)
while True: pass
"""


def test_a_process_that_is_stuck_ends_all_the_same() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        begun_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(10) == 143
        finally:
            process.kill()
        assert process.stdout.read() == "closed\n"
        assert time.monotonic() - begun_s < 5
