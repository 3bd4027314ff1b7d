"""Signals that end the app, where its event loop does not come to them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from engines import commands
from kvtui.app import KvtuiApp
from tests.scripted_source import ScriptedSource

ROOT = Path(__file__).parent.parent
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


async def test_a_signal_that_comes_before_the_app_runs_ends_it() -> None:
    app = KvtuiApp(commands.WorkerConfig(), ScriptedSource([]))
    app.leave_with(143)
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.return_code == 143


EARLY = """
import signal
from textual.app import App
from engines import commands
from kvtui.app import KvtuiApp
from tests.scripted_source import ScriptedSource
App.run = lambda app: signal.raise_signal(signal.SIGHUP)
app = KvtuiApp(commands.WorkerConfig(), ScriptedSource([]))
app.run()
print(app._leaving_with, signal.getsignal(signal.SIGHUP) == signal.SIG_DFL)
"""


def test_signals_are_heard_before_the_terminal_is_changed() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "129 True\n", "")
