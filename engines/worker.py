"""The background process: `python -m engines.worker`.

On stdin come frames: a `WorkerConfig` (without engines: fetch the model and end), then commands. On stdout go frames of
events. Faults before the engines are ready are one `Notice` of level "error" and exit code 2; anything unforeseen
leaves a traceback on stderr and exit code 1. When stdin closes, the process ends.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from typing import BinaryIO

from engines import events, frames
from engines.commands import AnyCommand, Shutdown, WorkerConfig, decode, decode_config
from engines.errors import KvtuiError

_NICENESS = 5  # the screen shares these cores, and a person notices its delays first
_GRACE_S = 2.0
# Turns that an OpenMP thread spins at a barrier before it sleeps. With libgomp's default of milliseconds, a thread that
# the screen's process has pushed aside makes the others burn the very core it waits for: measured ten times slower on
# two busy cores. A thousand turns are some fifty microseconds, longer than the gap between two kernels.
_SPIN_TURNS = "1000"


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole foreground group; the face decides
    commands_in, events_out = sys.stdin.buffer, _claim_stdout()
    os.nice(_NICENESS)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_TURNS)  # before torch loads its OpenMP
    worker = Worker(events_out)
    try:
        head = frames.read_frame(commands_in)
        if head is None:
            return 0
        config = decode_config(head)
        threading.Thread(target=worker.listen, args=(commands_in,), daemon=True).start()
        worker.serve(config)
        return 0
    except BrokenPipeError:  # nobody reads any more
        return 0
    except KvtuiError as fault:
        worker.notify(str(fault))
        return 2
    except Exception as fault:
        traceback.print_exc(file=sys.stderr)
        worker.notify(f"the worker stopped: {type(fault).__name__}: {fault}".splitlines()[0])
        return 1


class Worker:
    """Holds the race and its two pipes. Only `listen` runs in a thread of its own."""

    def __init__(self, events_out: BinaryIO) -> None:
        self._out = events_out
        self._commands: queue.SimpleQueue[AnyCommand] = queue.SimpleQueue()
        self._batch: list[events.Event] = []
        self._started = time.monotonic()
        self._done = threading.Event()

    def listen(self, commands_in: BinaryIO) -> None:
        """Queues commands until stdin closes. A slice may be long, and loading longer: when the race has not ended by
        itself a little later, the process ends here, as nobody is left to hear of it."""
        try:
            while (payload := frames.read_frame(commands_in)) is not None:
                self._commands.put(decode(payload))
        finally:  # also after a damaged frame: what follows it cannot be read either
            self._commands.put(Shutdown())
            if not self._done.wait(_GRACE_S):
                os._exit(0)

    def serve(self, config: WorkerConfig) -> None:
        """Loads, then races until told to stop. A configuration without engines only has its model fetched."""
        if not config.engines:
            from engines import checkpoint

            found = checkpoint.resolve(config.model, progress=self._load_stage)
            self._batch.append(events.Notice(level="info", text=f"{found.name} is ready in {found.path}"))
            self._flush()
            self._done.set()
            return
        self._load_stage("starting torch")
        gc.disable()  # imports make many objects and no garbage: collecting them costs a quarter of a second
        from engines import create_racer, load_model
        from engines.race import Race

        model = load_model(
            config.model,
            device=config.device,
            dtype=config.dtype,
            weights=config.weights,
            random_weights=config.random_weights,
            progress=self._load_stage,
        )
        race = Race(model, config, self._batch.append, build=create_racer)
        self._load_stage("building the engines")
        race.start()
        gc.enable()
        while True:
            busy = race.advance()
            self._flush()
            while (command := self._next_command(wait=not busy)) is not None:
                busy = True
                if isinstance(command, Shutdown):
                    self._done.set()
                    return
                race.handle(command)
                self._flush()

    def notify(self, text: str) -> None:
        """A last line for the person."""
        text = text.encode("utf-8", "backslashreplace").decode()  # a fault may quote what no pipe carries
        self._batch.append(events.Notice(level="error", text=text))
        try:
            self._flush()
        except BrokenPipeError:
            return

    def _next_command(self, *, wait: bool) -> AnyCommand | None:
        try:
            return self._commands.get(block=wait)
        except queue.Empty:
            return None

    def _load_stage(self, stage: str, fraction: float | None = None) -> None:
        wall_s = time.monotonic() - self._started
        self._batch.append(events.Loading(stage=stage, fraction=fraction, wall_s=wall_s))
        self._flush()

    def _flush(self) -> None:
        if self._batch:
            batch = self._batch.copy()
            self._batch.clear()  # first: what cannot be encoded must not be in the way of the last line
            frames.write_frame(self._out, events.encode(batch))


def _claim_stdout() -> BinaryIO:
    """The real stdout as a private stream; whatever any library prints goes to stderr instead."""
    private = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return os.fdopen(private, "wb")


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    sys.stderr.flush()
    # Nothing is left to clean up, torch's threads take their time to end, and the one that still reads stdin would make
    # an ordinary end an abort.
    os._exit(code)
