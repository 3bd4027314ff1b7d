"""What a run has come to so far, as events: for whoever joins in the middle.

A `Picture` keeps, of all that was published, what a reducer needs to arrive at the same state: prompts, tokens and
outcomes of the run, the cache as a whole picture, the newest of everything else, and the graphs' past in fewer points.
Packed, it is retained by the broker; `seq` tells which messages are in it already.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec
from msgspec.structs import replace

from engines import events
from probes.outbound import merged_transfers, phase_of
from probes.topics import LIMIT_BYTES

POINTS = 256  # of a graph, for each engine
NOTICES = 20
UNPACKED_LIMIT_BYTES = 64 << 20

Key = tuple[Hashable, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`said` is what all messages up to `seq` came to."""

    seq: int
    said: list[events.AnyEvent]


class Picture:
    """`add` takes every event in the order of publishing. Damaged cache pictures are left out."""

    def __init__(self) -> None:
        self._kept: dict[Key, events.AnyEvent] = {}  # in the order in which a reducer has to hear of them
        self._cells: dict[str, bytes] = {}
        self._points: dict[tuple[type, str], list[Key]] = {}  # of the graphs, by engine
        self._phases: dict[str, Hashable] = {}
        self._run = ""
        self._count = 0

    def add(self, event: events.AnyEvent) -> None:
        if event.run and event.run != self._run:
            self._run = event.run
            self._forget_run()
        self._count += 1
        if (phase := phase_of(event)) is not None:
            self._phases[event.engine] = phase
        match event:
            case events.RunStarted() | events.Submitted():
                self._kept[type(event), self._count] = event
                if isinstance(event, events.Submitted) and not event.follow_up:
                    self._fold_graphs(event.engine)
            case events.Token(engine=engine, request=request, index=index):
                while self._kept.pop((events.Token, engine, request, index), None) is not None:  # it is said again
                    index += 1
                self._kept[events.Token, engine, request, event.index] = event
            case events.Cache():
                self._add_cache(event)
            case events.Memory(engine=engine):
                self._add_point(event, (events.Memory, engine, self._count))
            case events.Transfer(engine=engine):
                self._add_point(event, (events.Transfer, engine, self._phases.get(engine), self._count))
            case events.Notice():
                self._kept[events.Notice, self._count] = event
                for key in [key for key in self._kept if key[0] is events.Notice][:-NOTICES]:
                    del self._kept[key]
            case events.Status(engine="", stream=list()):
                self._put((events.Status, "", "stream"), event)
            case events.Heads(engine=engine, layer=layer):
                self._put((events.Heads, engine, layer), event)
            case events.Prefill() | events.Decision() | events.Outcome():
                self._put((type(event), event.engine, event.request), event)
            case events.TooLong():
                pass  # a question to the person who asked
            case _:
                self._put((type(event), event.engine), event)

    def said(self) -> Iterator[events.AnyEvent]:
        """In an order in which they can be applied."""
        for event in self._kept.values():
            if isinstance(event, events.Cache):
                yield replace(event, whole=True, states=events.deflate(self._cells[event.engine]))
            else:
                yield event

    def shed(self) -> bool:
        """Leaves out the oldest answer that is not the newest, where all of it would be too large. False when there is
        none."""
        answers = sorted({key[2] for key in self._kept if key[0] is events.Token})  # type: ignore[type-var]
        if len(answers) < 2:
            return False
        for key in [key for key in self._kept if key[0] is events.Token and key[2] == answers[0]]:
            del self._kept[key]
        return True

    def _put(self, key: Key, event: events.AnyEvent) -> None:
        """In place of an older one, which is no longer where it was."""
        self._kept.pop(key, None)
        self._kept[key] = event

    def _forget_run(self) -> None:
        """As the reducer does: the announcement and what is no run's own stay, until there are others."""
        last = next((key for key in reversed(self._kept) if key[0] is events.RunStarted), None)
        stay = (events.Sample, events.Notice, events.Loading)
        status = (events.Status, "")
        self._kept = {k: e for k, e in self._kept.items() if k[0] in stay or k in (status, last)}
        for of_the_run in (self._cells, self._points, self._phases):
            of_the_run.clear()

    def _add_cache(self, event: events.Cache) -> None:
        key = (events.Cache, event.engine)
        before = self._kept.get(key)
        known = isinstance(before, events.Cache) and before.layers == event.layers
        try:
            if event.whole:
                self._cells[event.engine] = events.apply_cells(b"", 0, event)
            elif known:
                assert isinstance(before, events.Cache)
                self._cells[event.engine] = events.apply_cells(self._cells[event.engine], before.tokens, event)
            else:
                return
        except ValueError:
            self._kept.pop(key, None)
            return
        if isinstance(before, events.Cache) and before.request != event.request:
            del self._kept[key]
        self._kept[key] = event  # where the request's first one was: its layers, head by head, come after it

    def _add_point(self, event: events.AnyEvent, key: Key) -> None:
        self._kept[key] = event
        points = self._points.setdefault((type(event), event.engine), [])
        points.append(key)
        if len(points) > POINTS:
            self._points[type(event), event.engine] = [*self._joined(points[:-1], 2), key]

    def _fold_graphs(self, engine: str) -> None:
        """A new conversation's graphs begin anew; what the link did for each request stays."""
        for (kind, of), points in self._points.items():
            if engine in ("", of) and points:
                self._points[kind, of] = self._joined(points, len(points))

    def _joined(self, points: list[Key], many: int) -> list[Key]:
        """Makes one, the last, of each `many` that follow each other and are of one phase. Returns those that stay."""
        stay, group = [], 1
        for key, after in zip(points, [*points[1:], None], strict=True):
            if after is None or group == many or key[:-1] != after[:-1]:
                stay.append(key)
                group = 1
                continue
            group += 1
            before, event = self._kept.pop(key), self._kept[after]
            if isinstance(before, events.Transfer) and isinstance(event, events.Transfer):
                self._kept[after] = merged_transfers(before, event)
        return stay


def pack(picture: Picture, seq: int) -> bytes | None:
    """Deflated msgpack of a `Snapshot`, at most `LIMIT_BYTES`; older answers are left out for that. None where even the
    newest is too large."""
    while True:
        packed = events.deflate(msgspec.msgpack.encode(Snapshot(seq=seq, said=list(picture.said()))))
        if len(packed) <= LIMIT_BYTES:
            return packed
        if not picture.shed():
            return None


def unpack(packed: bytes) -> Snapshot:
    """From outside. Raises ValueError, in one line."""
    if len(packed) > LIMIT_BYTES:
        raise ValueError(f"a snapshot of {len(packed):,} bytes")
    try:
        return msgspec.msgpack.decode(events.inflate(packed, UNPACKED_LIMIT_BYTES), type=Snapshot)
    except (msgspec.DecodeError, ValueError, RecursionError) as fault:
        raise ValueError(str(fault)) from None
