"""Plays a trace as if it happened now: at any speed, paused, step by step, from any moment on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from engines import commands, events
from engines.errors import BadRequest
from kvtui.snapshots import Snapshots
from kvtui.source import Restored, SourceEndedError
from kvtui.state import RunState
from kvtui.trace import TraceReader

SLOWEST, FASTEST = 1 / 8, 64.0
BATCH_S = 0.05  # decoding goes on for this long when more is due, so that a flood still comes frame by frame
# More than this between two looks at the clock was no playing but a process that was stopped: it must not skip.
GAP_S = 0.5
LONG_LOADING_S, LEAD_S = 2.0, 0.5
KEEP_EVERY_S = 1.0  # of the wall's clock, however fast it plays: keeping a state takes some 10 ms


def beginning_s(reader: TraceReader) -> float:
    """Where a recording gets interesting, in seconds: shortly before its engines are ready, if loading took long."""
    for frame in range(len(reader)):
        if any(isinstance(event, events.RunStarted) for event in reader.events(frame)):
            at_s = reader.at_s(frame)
            return at_s - LEAD_S if at_s > LONG_LOADING_S else 0.0
    return 0.0


class TraceSource:
    """A `Source` over a recording. `seek`, `set_speed` and `send` may be called in any thread and never wait; events
    are read, and states of other moments made, in the thread that receives. At the end it stays, and can be taken
    back.

    `shown` may give the state that the receiver has made of everything received so far. It is only asked when more is
    about to be received, and saves making that state again for a later seek. It begins at `from_s`, or at
    `beginning_s`, which is also where it is taken back to. Raises BadRequest, as reading events does."""

    def __init__(self, reader: TraceReader, speed: float = 1.0, from_s: float | None = None) -> None:
        self.reader, self.speed, self.paused = reader, speed, False
        self.beginning_s = beginning_s(reader)
        self.shown: Callable[[], RunState] | None = None
        self._from_s = self.beginning_s if from_s is None else from_s
        self._turn = threading.Condition()
        self._snapshots = Snapshots()
        self._begin()

    def _begin(self) -> None:
        self._closed, self._told_paused, self._news = False, False, False
        self._now_s, self._next, self._steps = 0.0, 0, 0
        self._target_s = self._from_s if self._from_s > 0 else None
        self._status = "loading"  # of the recorded race
        self._looked_s = self._kept_s = time.monotonic()

    @property
    def position_s(self) -> float:
        """Seconds from the beginning of the recording; where it will be, while that is being made ready."""
        target_s = self._target_s
        return self._now_s if target_s is None else target_s

    @property
    def duration_s(self) -> float:
        return self.reader.duration_s

    @property
    def ended(self) -> bool:
        return self._target_s is None and self._next == len(self.reader)

    def start(self) -> None:
        with self._turn:
            self._begin()

    def close(self) -> None:
        with self._turn:
            self._closed = True
            self._turn.notify()

    def send(self, command: commands.Command) -> None:
        """Pause, Resume (at the end: from the beginning), Step, Rerun (the beginning). Nobody is there to obey
        others."""
        with self._turn:
            match command:
                case commands.Pause():
                    self.paused = True
                case commands.Resume():
                    self.paused = False
                    if self.ended:
                        self._target_s = self.beginning_s
                case commands.Step():
                    self._steps += 1
                case commands.Rerun():
                    self._target_s = self.beginning_s
            self._tell()

    def seek(self, at_s: float) -> None:
        with self._turn:
            self._target_s = min(max(0.0, at_s), self.duration_s)
            self._tell()

    def set_speed(self, speed: float) -> None:
        with self._turn:
            self.speed = min(max(SLOWEST, speed), FASTEST)
            self._tell()

    def _tell(self) -> None:
        self._news = True
        self._turn.notify()

    def receive(self, timeout_s: float) -> Sequence[events.AnyEvent | Restored]:
        deadline_s = time.monotonic() + timeout_s
        self._keep_shown()
        while True:
            with self._turn:
                if self._closed:
                    raise SourceEndedError("")
                self._news = False
                self._move_clock()
                target_s, paused = self._target_s, self.paused
                step, self._steps = self._steps > 0, max(0, self._steps - 1)
            try:
                batch = self._play(target_s, step)
            except BadRequest as fault:
                raise SourceEndedError(str(fault)) from fault
            if paused != self._told_paused or (paused and batch):
                self._told_paused = paused
                batch.append(events.Status(state="paused" if paused else self._status))
            if batch:
                return batch
            with self._turn:
                wait_s = deadline_s - time.monotonic()
                if wait_s <= 0:
                    return []
                if not paused and self._next < len(self.reader):
                    wait_s = min(wait_s, max(0.001, (self.reader.at_s(self._next) - self._now_s) / self.speed))
                self._turn.wait_for(lambda: self._news or self._closed, wait_s)

    def _play(self, target_s: float | None, step: bool) -> list[events.AnyEvent | Restored]:
        if target_s is not None:
            return [self._restored(target_s)]
        return [*(self._through_next_tokens() if step else self._due())]

    def _move_clock(self) -> None:
        now_s = time.monotonic()
        passed_s, self._looked_s = min(GAP_S, now_s - self._looked_s), now_s
        if not self.paused:
            self._now_s = min(self.duration_s, self._now_s + passed_s * self.speed)

    def _due(self) -> list[events.AnyEvent]:
        """What has its time come; when that is too much for one frame of the screen, the clock waits."""
        batch: list[events.AnyEvent] = []
        until, deadline_s = self.reader.frames_until(self._now_s), time.monotonic() + BATCH_S
        while self._next < until:
            batch += self._take_frame()
            if time.monotonic() > deadline_s and self._next < until:
                self._now_s = self.reader.at_s(self._next - 1)
                break
        return batch

    def _through_next_tokens(self) -> list[events.AnyEvent]:
        batch: list[events.AnyEvent] = []
        while self._next < len(self.reader):
            self._now_s = self.reader.at_s(self._next)
            frame = self._take_frame()
            batch += frame
            if any(isinstance(event, events.Token) for event in frame):
                break
        return batch

    def _take_frame(self) -> list[events.AnyEvent]:
        batch = self.reader.events(self._next)
        self._next += 1
        for event in batch:
            if isinstance(event, events.Status) and not event.engine:
                self._status = event.state
        return batch

    def _restored(self, target_s: float) -> Restored:
        state = self._state_at(target_s)
        with self._turn:
            self._now_s, self._next, self._status = target_s, self.reader.frames_until(target_s), state.status
            self._looked_s = time.monotonic()
            if self._target_s == target_s:  # else somebody has thought of another place meanwhile
                self._target_s = None
        return Restored(state)

    def _keep_shown(self) -> None:
        now_s = time.monotonic()
        if self.shown is not None and self._next and now_s - self._kept_s > KEEP_EVERY_S:
            self._kept_s = now_s
            recorded = replace(self.shown(), status=self._status)  # while the receiver's own may be paused
            self._snapshots.offer(self._next, self.reader.at_s(self._next - 1), recorded)

    def _state_at(self, at_s: float) -> RunState:
        """The state after everything up to `at_s`, made from the nearest one before that is kept."""
        frames = self.reader.frames_until(at_s)
        done, state = self._snapshots.before(frames)
        while done < frames:
            for event in self.reader.events(done):
                try:
                    state.apply(event)
                except ValueError:  # a damaged picture: playing on shows none there either
                    continue
            done += 1
            self._snapshots.offer(done, self.reader.at_s(done - 1), state)
            if self._closed:
                raise SourceEndedError("")
        return state
