"""The app in a real pseudo-terminal: it leaves the terminal as it found it, and no process behind."""

from __future__ import annotations

import fcntl
import os
import pty
import random
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

ROOT = Path(__file__).parent.parent


class Terminal:
    """`python -m tests.synthetic_source` on a pseudo-terminal of 120×36."""

    def __init__(self) -> None:
        self.process_id, self.fd = pty.fork()
        if not self.process_id:
            os.chdir(ROOT)
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, [sys.executable, "-m", "tests.synthetic_source"])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.before = termios.tcgetattr(self.fd)
        self.said = b""

    def read_until(self, condition: Callable[[], bool], patience_s: float = 30.0) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            assert time.monotonic() < deadline, self.said[-2000:]
            if self.fd >= 0 and select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.said += os.read(self.fd, 1 << 16)
                except OSError:  # the other end is closed
                    time.sleep(0.1)
            elif self.fd < 0:
                time.sleep(0.1)

    def shows(self, text: str) -> None:
        self.read_until(lambda: text.encode() in self.said)

    def family(self) -> list[psutil.Process]:
        me = psutil.Process(self.process_id)
        return [me, *me.children(recursive=True)]

    def code(self) -> int:
        """The exit code, once it has ended."""
        status: list[int] = []

        def ended() -> bool:
            done, code = os.waitpid(self.process_id, os.WNOHANG)
            if done:
                status.append(os.waitstatus_to_exitcode(code))
            return bool(done)

        self.read_until(ended)
        return status[0]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    for process in [p for p in [terminal.process_id] if psutil.pid_exists(p)]:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    if terminal.fd >= 0:
        os.close(terminal.fd)


def gone(family: list[psutil.Process]) -> bool:
    return not any(map(alive, family))


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


@pytest.mark.parametrize(("end", "code"), [("q", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_the_terminal_is_left_as_it_was(terminal: Terminal, end: str | signal.Signals, code: int) -> None:
    terminal.shows("tok/s")
    family = terminal.family()
    assert len(family) == 2
    if isinstance(end, str):
        os.write(terminal.fd, end.encode())
    else:
        os.kill(terminal.process_id, end)
    assert terminal.code() == code
    assert termios.tcgetattr(terminal.fd) == terminal.before
    for undone in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?2004l", b"\x1b[?1003l"):
        assert terminal.said.rfind(undone) > terminal.said.rfind(undone.translate(bytes.maketrans(b"lh", b"hl")))
    assert gone(family)


def test_a_terminal_that_is_closed_takes_everything_along(terminal: Terminal) -> None:
    terminal.shows("tok/s")
    family = terminal.family()
    os.close(terminal.fd)
    terminal.fd = -1
    terminal.code()
    assert gone(family)


def test_a_killed_worker_is_said_on_the_screen(terminal: Terminal) -> None:
    terminal.shows("tok/s")
    worker = terminal.family()[1]
    worker.kill()
    terminal.shows("killed by signal 9 (SIGKILL)")
    terminal.said = b""
    os.write(terminal.fd, b"w")
    terminal.shows("tok/s")
    os.write(terminal.fd, b"q")
    assert terminal.code() == 0


def test_a_storm_of_resizes_is_survived(terminal: Terminal) -> None:
    terminal.shows("tok/s")
    random_ = random.Random(7)
    sizes = [(5, 20), (1, 1), (200, 400), (2, 300), (60, 3)]
    sizes += [(random_.randint(1, 60), random_.randint(1, 200)) for _ in range(60)]
    for rows, columns in [*sizes, (36, 120)]:
        fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.kill(terminal.process_id, signal.SIGWINCH)
        if select.select([terminal.fd], [], [], 0.02)[0]:
            terminal.said += os.read(terminal.fd, 1 << 16)
    terminal.said = b""
    os.write(terminal.fd, b"?")
    terminal.shows("pause and resume the race")
    os.write(terminal.fd, b"\x11")
    assert terminal.code() == 0
    assert b"Traceback" not in terminal.said


def test_ctrl_z_gives_the_terminal_back_and_fg_goes_on() -> None:
    shell = pexpect.spawn("bash", ["--norc", "--noediting", "-i"], cwd=ROOT, dimensions=(36, 120), timeout=30)
    try:
        shell.sendline(f"PS1=ready: ; {sys.executable} -m tests.synthetic_source")
        shell.expect("tok/s")
        shell.send("\x1a")
        shell.expect_exact("\x1b[?1049l")
        shell.expect("Stopped")
        shell.expect("ready:")
        shell.sendline("echo $((6 * 7))")
        shell.expect("42")
        shell.sendline("fg")
        shell.expect_exact("\x1b[?1049h")
        shell.expect("Paged")
        shell.send("q")
        shell.expect("ready:")
        shell.sendline("echo code $?; stty -a")
        shell.expect("code 0")
        shell.expect(r"[^-]echo ")
    finally:
        shell.close(force=True)


def test_a_closed_stdout_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m kvtui.cli run --model nowhere >&-"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "kvtui: stdout is closed\n"
