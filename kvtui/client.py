"""The worker process, seen from outside: started, spoken to, listened to, and seen to its end, which is an event too:
whoever hears the others hears of it.

Commands go down its standard input and events come up its standard output, as length-prefixed frames. What it writes to
standard error goes to a log file.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, cast

import msgspec
from platformdirs import user_log_path

from engines import commands, events, frames
from engines.sizes import size
from kvtui.source import SourceEndedError
from probes.cgroup import MemoryLimit

# Reading goes on for this long when there is always more, so that a flood still reaches the screen frame by frame.
BATCH_S = 0.05
GRACE_S = (3.0, 1.5, 5.0)  # to leave by itself, to heed SIGTERM, to be gone after SIGKILL
LOG_TAIL_BYTES = 4096
LOG_KEPT_S = 86_400.0


class WorkerClient:
    """A `Source` over a child process. `argv` is for tests; the child reads `config` as its first frame."""

    def __init__(
        self, config: commands.WorkerConfig, argv: Sequence[str] | None = None, log_path: Path | None = None
    ) -> None:
        self.config = config
        self.log_path = log_path or user_log_path("kvtui", ensure_exists=False) / f"worker-{os.getpid()}.log"
        self._memory = MemoryLimit()
        self._kills = 0
        self._argv = list(argv) if argv is not None else [sys.executable, "-m", "engines.worker"]
        self._process: subprocess.Popen[bytes] | None = None
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()
        self._end, self._said_end = "", False  # why it ended, and whether the event that says so has been given out
        self._turns = threading.Lock()  # start and close, one at a time

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """A process that cannot be started has ended: `receive` says so."""
        first_frame = commands.encode(self.config)
        with self._turns:
            self._stop()
            self._closing.clear()
            self._end, self._said_end = "", False
            try:
                self.log_path.parent.mkdir(parents=True, exist_ok=True)
                _drop_old_logs(self.log_path.parent)
                log: BinaryIO | int = self.log_path.open("wb")
            except OSError:  # no place for a log is no reason not to work
                log = subprocess.DEVNULL
            self._kills = self._memory.kills()
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C in the terminal is the interface's business
                )
            except OSError as fault:
                self._end = f"the worker did not start: {fault}"
                return
            finally:
                if not isinstance(log, int):
                    log.close()
            self._outbox = queue.SimpleQueue()
            self._outbox.put(first_frame)
            # A paste of a megabyte is more than a pipe takes at once: writing waits here, not in the interface.
            self._writer = threading.Thread(
                target=_write_all, args=(self._process.stdin, self._outbox), name="kvtui-commands", daemon=True
            )
            self._writer.start()

    def send(self, command: commands.Command) -> None:
        self._outbox.put(commands.encode(command))

    def receive(self, timeout_s: float) -> list[events.AnyEvent]:
        process = self._process
        if process is None or self._end:
            return self._last_event()
        pipe = cast(BinaryIO, process.stdout)
        batch: list[events.AnyEvent] = []
        deadline = time.monotonic() + BATCH_S
        try:
            while select.select([pipe], [], [], 0 if batch else timeout_s)[0]:
                payload = frames.read_frame(pipe)
                if payload is None:
                    if batch:
                        return batch  # the end is still there to be found next time
                    self._end = self._how_it_ended(process)
                    return self._last_event()
                batch += events.decode(payload)
                if time.monotonic() > deadline:
                    break
        except (ValueError, msgspec.DecodeError) as fault:
            if self._closing.is_set():
                raise SourceEndedError("") from None
            process.kill()
            process.wait()
            self._end = f"the worker sent something that is not an event: {fault}"
            return [*batch, *self._last_event()]
        return batch

    def _last_event(self) -> list[events.AnyEvent]:
        """Why it ended, as an event: once, and then as a SourceEndedError. An end that was asked for has no event."""
        if self._closing.is_set() or not self._end:
            raise SourceEndedError("")
        if self._said_end:
            raise SourceEndedError(self._end)
        self._said_end = True
        return [events.Status(state="ended", detail=self._end)]

    def close(self) -> None:
        with self._turns:
            self._stop()

    def _stop(self) -> None:
        """Asks, then insists; afterwards there is no process and no thread."""
        self._closing.set()
        process, self._process = self._process, None
        if process is None:
            return
        self._outbox.put(commands.encode(commands.Shutdown()))
        self._outbox.put(None)
        for patience_s, insist in zip(GRACE_S, (process.terminate, process.kill, lambda: None), strict=True):
            try:
                _drain_until_exit(process, patience_s)
                break
            except subprocess.TimeoutExpired:
                insist()
        if self._writer is not None:
            self._writer.join(1.0)  # its pipe has no reader any more, so it cannot be stuck
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _how_it_ended(self, process: subprocess.Popen[bytes]) -> str:
        if self._closing.is_set():
            return ""
        try:
            code = process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return "the worker closed its pipe"
        if code < 0:
            try:
                name = signal.Signals(-code).name
            except ValueError:
                name = "unknown"
            return f"the worker was killed by signal {-code} ({name}){self._for_memory(-code)}"
        last = self._last_words()
        return f"the worker ended with exit code {code}" + (f": {last}" if last else "")

    def _for_memory(self, number: int) -> str:
        """The kernel, when there is no memory left, kills with SIGKILL and says nothing."""
        if number != signal.SIGKILL or self._memory.kills() <= self._kills:
            return ""
        limit = self._memory.read()
        return ", probably for want of memory" + (
            "" if limit is None else f": the container's limit is {size(limit[0])}"
        )

    def _last_words(self) -> str:
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - LOG_TAIL_BYTES))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _drop_old_logs(folder: Path) -> None:
    """Those that nothing was written to for a day."""
    for path in folder.glob("worker-*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - LOG_KEPT_S:
                path.unlink()


def _write_all(pipe: BinaryIO, outbox: queue.SimpleQueue[bytes | None]) -> None:
    """Until told to stop, or until nobody reads any more."""
    while (payload := outbox.get()) is not None:
        try:
            frames.write_frame(pipe, payload)
        except (OSError, ValueError):
            break
    with contextlib.suppress(OSError):
        pipe.close()


def _drain_until_exit(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Waits for the exit. Raises subprocess.TimeoutExpired. What the process still writes is read and dropped: one that
    waits for a reader cannot leave."""
    pipe, deadline = cast(BinaryIO, process.stdout), time.monotonic() + patience_s
    while process.poll() is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise subprocess.TimeoutExpired(process.args, patience_s)
        try:
            if select.select([pipe], [], [], min(0.05, left_s))[0] and not pipe.read(1 << 16):
                process.wait(left_s)
        except (OSError, ValueError):
            process.wait(left_s)
