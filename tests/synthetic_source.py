"""A `Source` that plays synthetic races at the pace of their clocks, and obeys commands.

`python -m tests.synthetic_source` opens the app on it, with the worker's part played in a process of its own.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from engines import commands, events
from kvtui.app import KvtuiApp
from kvtui.client import WorkerClient
from kvtui.looks import detect
from kvtui.source import SourceEndedError
from tests.synthetic import TITLES, Race, started


class SyntheticSource:
    """Plays the built-in stream at `speed` times the pace of the engines' clocks, then what is submitted."""

    log_path = None

    def __init__(
        self,
        config: commands.WorkerConfig | None = None,
        speed: float = 1.0,
        load_s: float = 1.5,
        oom: str = "",
        new_tokens: int = 96,
    ) -> None:
        self.config = config or commands.WorkerConfig()
        self.speed, self.load_s, self.oom, self.new_tokens = speed, load_s, oom, new_tokens
        self.sent: list[commands.Command] = []
        self._lock = threading.Condition()
        self._closed = False
        self._budget = self.config.budget
        self._engines = tuple(self.config.engines)

    def start(self) -> None:
        self._closed, self._paused, self._steps = False, False, 0
        self._stream = [
            Race(i, t, new_tokens=self.new_tokens, oom=self.oom, total=len(TITLES)) for i, t in enumerate(TITLES)
        ]
        self._next_request = len(TITLES)
        self._play = self._script()
        self._waiting: tuple[float, events.AnyEvent] | None = None
        self._notes: list[events.AnyEvent] = []
        self._now_s, self._wall_s = 0.0, time.monotonic()

    def _script(self) -> Iterator[tuple[float, events.AnyEvent] | None]:
        """Events and when they are due; None while there is nothing to do."""
        now_s = 0.0
        for stage in ("importing torch", "reading the weights", "calibrating InfiniGen"):
            for part in range(11):
                yield now_s, events.Loading(stage=stage, fraction=part / 10)
                now_s += self.load_s / 33
        yield now_s, started(self._engines, self._budget)
        offset_s, start_s = now_s, 0.0
        while True:
            yield now_s, events.Status(run="synthetic", state="racing")
            while self._stream:
                race = self._stream.pop(0)
                race.start_s, race.budget = start_s, self._budget
                yield offset_s + start_s, race.submitted()
                for event in race.merged(self._engines):
                    yield offset_s + event.clock_s, event
                    start_s = max(start_s, event.clock_s)
            yield now_s, events.Status(run="synthetic", state="idle")
            while not self._stream:
                yield None
            offset_s = self._now_s - start_s

    def receive(self, timeout_s: float) -> list[events.AnyEvent]:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not self._closed:
                wall_s = time.monotonic()
                if not self._paused:
                    self._now_s += (wall_s - self._wall_s) * self.speed
                self._wall_s = wall_s
                batch, self._notes = self._notes, []
                while (event := self._due()) is not None:
                    batch.append(event)
                if batch or wall_s >= deadline:
                    return batch
                self._lock.wait(0.005)
        raise SourceEndedError("")

    def _due(self) -> events.AnyEvent | None:
        """The next event if its time has come; a step makes the next token's time come."""
        if self._waiting is None:
            self._waiting = next(self._play)
        if self._waiting is None:
            return None
        at_s, event = self._waiting
        if self._paused and self._steps and isinstance(event, events.Token):
            self._steps -= 1
            self._now_s = max(self._now_s, at_s)
        if at_s > self._now_s:
            return None
        self._waiting = None
        return event

    def send(self, command: commands.Command) -> None:
        with self._lock:
            self.sent.append(command)
            if isinstance(command, (commands.Pause, commands.Resume)):
                self._paused = isinstance(command, commands.Pause)
                self._notes = [events.Status(run="synthetic", state="paused" if self._paused else "racing")]
            elif isinstance(command, commands.Step):
                self._steps += 3
            elif isinstance(command, commands.SetBudget):
                self._budget = command.budget
            elif isinstance(command, commands.SetEngines):
                self._engines = tuple(command.engines)
            elif isinstance(command, commands.Rerun):
                load_s, self.load_s = self.load_s, 0.0
                self.start()
                self.load_s = load_s
            elif isinstance(command, commands.Submit):
                for prompt in command.prompts:
                    request, self._next_request = self._next_request, self._next_request + 1
                    self._stream.append(
                        Race(
                            request,
                            prompt.title,
                            64,
                            64,
                            follow_up=prompt.follow_up,
                            text=prompt.text,
                            total=request + 1,
                        )
                    )
            self._lock.notify()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()


def main() -> None:
    config = commands.WorkerConfig(prompts=[commands.Prompt(title=title) for title in TITLES])
    argv = [sys.executable, "-m", "tests.synthetic_worker"]
    client = WorkerClient(config, argv, Path(tempfile.gettempdir()) / "kvtui-synthetic.log")
    app = KvtuiApp(config, client, look=detect())
    app.run()
    sys.exit(app.return_code)


if __name__ == "__main__":
    main()
