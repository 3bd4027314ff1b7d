"""One remote run, put together: a snapshot first, and then what follows it, without a hole.

Messages are numbered. One that is in the snapshot already is left out; one that comes too early waits, as something
before it was lost: then the next snapshot, which has what was lost, goes on from there.
"""

from __future__ import annotations

from msgspec.structs import replace

from engines import events
from kvtui.source import Restored
from kvtui.state import RunState
from probes.snapshot import Snapshot

HELD, HELD_BYTES = 20_000, 64 << 20  # messages that came too early


class Joining:
    def __init__(self) -> None:
        self._last: int | None = None  # of the messages without a hole before them
        self._early: dict[int, tuple[events.AnyEvent, int]] = {}  # with their messages' sizes
        self._early_bytes = 0
        self._missed = True

    @property
    def wants_snapshot(self) -> bool:
        return self._last is None or self._missed

    def missed(self) -> None:
        """Something may be missing, for another reason than a hole in the numbers: the connection was lost."""
        self._missed = True

    def event(self, event: events.AnyEvent, size_bytes: int) -> list[events.AnyEvent]:
        """What can be applied now. `size_bytes` is the message's."""
        if self._last is not None and event.seq <= self._last:
            return []
        if event.seq - 1 == self._last or (len(self._early) < HELD and self._early_bytes + size_bytes <= HELD_BYTES):
            self._early_bytes += size_bytes - self._early.get(event.seq, (event, 0))[1]
            self._early[event.seq] = (replace(event, seq=0), size_bytes)
        ready = self._in_order()
        if ready or self._early:
            self._missed = bool(self._early)
        return ready

    def snapshot(self, snapshot: Snapshot, *, retained: bool) -> list[events.AnyEvent | Restored]:
        """`retained`: it is the last one from before, and may be older than what has come since. One that comes live is
        as new as can be: what is said to be later than it is not of this run."""
        if self._last is not None and (not self._missed or (retained and snapshot.seq < self._last)):
            return []
        restored = self._last != snapshot.seq
        self._last = snapshot.seq
        self._early = {} if not retained else {seq: e for seq, e in self._early.items() if seq > snapshot.seq}
        self._early_bytes = sum(size_bytes for _, size_bytes in self._early.values())
        following = self._in_order()
        # Whether something came between a retained one and now, only the next message tells, or the next snapshot.
        self._missed = bool(self._early) or (retained and not following)
        return [*([Restored(_state_of(snapshot))] if restored else []), *following]

    def _in_order(self) -> list[events.AnyEvent]:
        ready: list[events.AnyEvent] = []
        while self._last is not None and (early := self._early.pop(self._last + 1, None)) is not None:
            self._last += 1
            self._early_bytes -= early[1]
            ready.append(early[0])
        return ready


def _state_of(snapshot: Snapshot) -> RunState:
    state = RunState()
    for event in snapshot.said:
        try:
            state.apply(event)
        except ValueError:  # a damaged picture: nothing is shown in its place
            continue
    return state
