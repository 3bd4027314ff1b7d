"""Runs on other machines, as a `Source`: the same events, out of a broker. Everything that comes is untrusted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from engines import commands, events
from kvtui.joining import Joining
from kvtui.literal import brief, one_line
from kvtui.plausible import check
from kvtui.source import Restored, SourceEndedError
from kvtui.state import RunState
from probes import snapshot, topics
from probes.connection import Standing
from probes.subscriber import Message, Subscriber

MOST_RUNS = 100
BATCH_CELLS = 1 << 24  # of cache pictures: unpacking them takes the screen's time, and its keys wait for a batch's end


@dataclass(frozen=True)
class Run:
    """`state` is "live", "ended" or "gone"; `name` tells a person which one it is. `since` is as its publisher says."""

    id: str
    state: str
    name: str
    model: str
    since: str

    @property
    def since_s(self) -> float:
        """For comparing: seconds since 1970, 0 where it is no date."""
        try:
            return datetime.fromisoformat(self.since).timestamp()
        except (ValueError, OverflowError, OSError):
            return 0.0


class WatchSource:
    """One run at a time, the first that is there until `choose` says another. A run that has ended or is gone stays as
    it was seen last; one that was gone before anybody looked gives way to a live one, and with `live_only` is not shown
    unless it is chosen. Of more than `MOST_RUNS` runs the live ones and the newest are kept. Commands are not obeyed.
    `runs`, `watched`, `crowded`, `standing` and `refused` may be read in any thread."""

    def __init__(self, subscriber: Subscriber, *, live_only: bool = False) -> None:
        self._subscriber = subscriber
        self._live_only = live_only
        self._wanted: str | None = None
        self._left_over = False  # what is watched was gone before, and nobody chose it
        self._joining = Joining()
        self._connections = 0
        self._came: deque[Message] = deque()  # and not yet said
        self._closed = False
        self.runs: tuple[Run, ...] = ()
        self.watched: str | None = None
        self._turned_away = False
        self.refused = 0  # messages that were not of this language

    @property
    def standing(self) -> Standing:
        return self._subscriber.standing

    @property
    def place(self) -> str:
        """The broker's host and port."""
        return self._subscriber.broker.place

    @property
    def run(self) -> Run | None:
        """The one that is watched."""
        return next((run for run in self.runs if run.id == self.watched), None)

    @property
    def crowded(self) -> bool:
        """Whether there are live runs that are not kept, as all that are kept are live, too."""
        return self._turned_away and len(self.runs) >= MOST_RUNS

    def choose(self, run: str) -> bool:
        """False, and nothing changes, for one that is not there."""
        if all(run != kept.id for kept in self.runs):
            return False
        self._wanted, self._left_over = run, False
        return True

    def start(self) -> None:
        self._closed = False
        self._subscriber.start()

    def send(self, command: commands.Command) -> None:
        pass

    def close(self) -> None:
        self._closed = True
        self._subscriber.close()

    def receive(self, timeout_s: float) -> Sequence[events.AnyEvent | Restored]:
        """Raises SourceEndedError when the broker will not have us."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            batch = self._switched()
            if not batch and not self._came:
                self._came.extend(self._subscriber.take(min(0.1, timeout_s)))
            if self._connections != self._subscriber.connections:
                self._connections = self._subscriber.connections
                self._joining.missed()
            cells = sum(map(_cells, batch))
            while self._came and cells < BATCH_CELLS:
                heard = self._heard(self._came.popleft())
                cells += sum(map(_cells, heard))
                batch += heard
            self._subscriber.want_snapshot(self._joining.wants_snapshot)
            if self._closed:
                raise SourceEndedError("")
            if not batch and self.standing.state == "off":
                raise SourceEndedError(f"the broker {self.place}: {self.standing.detail}")
            if batch or time.monotonic() >= deadline_s:
                return batch

    def _switched(self) -> list[events.AnyEvent | Restored]:
        """An empty screen for a run that was just chosen; what it is comes from its snapshot, if one was kept."""
        wanted, self._wanted = self._wanted, None
        if wanted is None or wanted == self.watched or all(run.id != wanted for run in self.runs):
            return []
        self.watched, self._joining = wanted, Joining()
        self._subscriber.watch(wanted)
        return [Restored(RunState()), *self._ended()]

    def _heard(self, message: Message) -> list[events.AnyEvent | Restored]:
        try:
            if message.kind == topics.PRESENCE:
                return self._seen(message)
            if message.run != self.watched:
                return []
            if message.kind == topics.SNAPSHOT:
                return self._snapshot(message)
            event = topics.unpack(message.payload)
            check(event)
            return [*self._joining.event(event, len(message.payload))]
        except ValueError:
            self.refused += 1
            return []

    def _snapshot(self, message: Message) -> list[events.AnyEvent | Restored]:
        if not message.payload:  # taken back: the run has ended
            return []
        unpacked = snapshot.unpack(message.payload)
        for event in unpacked.said:
            check(event)
        following = self._joining.snapshot(unpacked, retained=message.retained)
        return [*following, *self._ended()] if following else []

    def _ended(self) -> list[events.Status]:
        """What the columns say of a run that is no longer there."""
        run = self.run
        return [events.Status(state=run.state)] if run is not None and run.state != "live" else []

    def _seen(self, message: Message) -> list[events.AnyEvent | Restored]:
        """Raises ValueError."""
        before = next((run for run in self.runs if run.id == message.run), None)
        if not message.payload:  # taken back: whoever it was about said before how it ended
            self.runs = tuple(run for run in self.runs if run.id in (self.watched, self._wanted) or run != before)
            return []
        presence = topics.unpack_presence(message.payload)
        if presence.run != message.run:
            raise ValueError("a presence under another run's topic")
        now = Run(
            id=presence.run,
            state=presence.state,
            name=one_line(f"{presence.host or 'somewhere'}:{presence.run[:4]}"),
            model=one_line(presence.model) or (before.model if before else ""),
            since=one_line(presence.since),
        )
        if before is not None:
            self.runs = tuple(now if run.id == now.id else run for run in self.runs)
        elif self._has_room(now):
            self.runs = (*self.runs, now)
        else:
            self._turned_away = self._turned_away or now.state == "live"
            return []
        live, nothing = now.state == "live", self.watched is None and self._wanted is None
        if (live and (nothing or self._left_over)) or (nothing and not self._live_only):
            self.choose(now.id)
            self._left_over = not live
        if now.id == self.watched and (before is None or before.state != now.state):
            if now.state == "live":  # the columns say otherwise, and only a snapshot takes that back
                self._joining = Joining()
            return [_told(now), *self._ended()] if now.state != "live" or before is not None else []
        return []

    def _has_room(self, now: Run) -> bool:
        """Room is made, if need be, by the oldest of those that are not live, which may be `now` itself, and that
        nobody watches."""
        if len(self.runs) < MOST_RUNS:
            return True
        over = [run for run in self.runs if run.state != "live" and run.id not in (self.watched, self._wanted)]
        if now.state != "live":
            over.append(now)
        oldest = min(over, key=lambda run: run.since_s, default=now)
        self.runs = tuple(run for run in self.runs if run is not oldest)
        return oldest is not now


def whose(name: str, end: str) -> str:
    """Why a worker ended, with the name of the run whose worker it was."""
    said, worker = end.strip(), "the worker "
    return f"the worker of {name} {said.removeprefix(worker)}" if said.startswith(worker) else f"{name}: {said}"


def _cells(event: events.AnyEvent | Restored) -> int:
    if isinstance(event, Restored):
        return BATCH_CELLS
    return event.layers * event.tokens if isinstance(event, events.Cache) else 0


def _told(run: Run) -> events.Notice:
    what = {
        "live": "is back",
        "ended": "has ended; what is shown was its last state",
        "gone": "is gone: its connection broke off; what is shown was its last state",
    }
    return events.Notice(
        level="warning" if run.state == "gone" else "info", text=brief(f"{run.name} {what[run.state]}")
    )
