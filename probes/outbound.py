"""What waits to be published, in order. Pictures of the present give way to newer ones; what was said once stays.

Of samples, memory, cache and the like only the newest of each engine waits: where two meet, differences are joined, so
that whoever applies what is sent arrives where the engine is. Tokens, outcomes, prompts and notices all wait.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec.structs import replace

from engines import events
from probes.spool import Spool

_PICTURES = (
    events.Loading,
    events.Prefill,
    events.Cache,
    events.Heads,
    events.Memory,
    events.Transfer,
    events.ServerLoad,
    events.Sample,
)


class Outbound:
    """No thread-safety of its own: it belongs to one thread. `replaced` counts pictures that gave way."""

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool if spool is not None else Spool()
        self._pictures: dict[Hashable, tuple[int, events.AnyEvent]] = {}  # in the order of their numbers
        self._phases: dict[str, Hashable] = {}
        self._number = 0
        self.replaced = 0

    def __len__(self) -> int:
        return len(self._spool) + len(self._pictures)

    @property
    def lost(self) -> int:
        """Events that were to stay, but for which neither memory nor disk had room."""
        return self._spool.lost

    def offer(self, event: events.AnyEvent) -> None:
        self._number += 1
        if (phase := phase_of(event)) is not None:
            self._phases[event.engine] = phase
        if not is_picture(event):
            self._spool.push(self._number, event)
            return
        key = self._key(event)
        before = self._pictures.pop(key, None)
        if before is not None:
            self.replaced += 1
            event = merged(before[1], event)
        self._pictures[key] = (self._number, event)

    def take(self) -> events.AnyEvent | None:
        """The next event, in the order in which they came; a picture in the place of its newest part."""
        key = next(iter(self._pictures), None)
        first = self._spool.first
        if key is not None and (first is None or self._pictures[key][0] < first):
            return self._pictures.pop(key)[1]
        return None if first is None else self._spool.pop()

    def _key(self, event: events.AnyEvent) -> Hashable:
        match event:
            case events.Heads():
                return (events.Heads, event.engine, event.layer)
            case events.Cache():  # no difference reaches into another run
                return (events.Cache, event.engine, event.run)
            case events.Transfer():
                return (events.Transfer, event.engine, event.run, self._phases.get(event.engine))
        return (type(event), event.engine)


def phase_of(event: events.AnyEvent) -> tuple[int, bool] | None:
    """The request, and whether the engine is answering it: what moves over the link is counted by them. None for events
    that change nothing about it."""
    if isinstance(event, (events.Prefill, events.Token)):
        return event.request, isinstance(event, events.Token)
    return None


def is_picture(event: events.AnyEvent) -> bool:
    """Whether a newer one of its kind says all that this one says."""
    return isinstance(event, _PICTURES)


def merged(before: events.AnyEvent, after: events.AnyEvent) -> events.AnyEvent:
    """One event in place of two of a kind that follow each other."""
    if isinstance(before, events.Transfer) and isinstance(after, events.Transfer):
        return merged_transfers(before, after)
    if isinstance(before, events.Cache) and isinstance(after, events.Cache):
        return _merged_caches(before, after)
    return after


def merged_transfers(before: events.Transfer, after: events.Transfer) -> events.Transfer:
    hit_bytes = looked_bytes = 0.0
    for transfer in (before, after):
        if transfer.hit_rate is not None:
            wanted = transfer.h2d_bytes + transfer.saved_bytes
            hit_bytes += transfer.hit_rate * wanted
            looked_bytes += wanted
    return replace(
        after,
        h2d_bytes=before.h2d_bytes + after.h2d_bytes,
        d2h_bytes=before.d2h_bytes + after.d2h_bytes,
        span_s=max(0.0, after.clock_s - before.clock_s + before.span_s),
        busy_s=before.busy_s + after.busy_s,
        hidden_s=before.hidden_s + after.hidden_s,
        saved_bytes=before.saved_bytes + after.saved_bytes,
        hit_rate=hit_bytes / looked_bytes if looked_bytes else after.hit_rate,
    )


def _merged_caches(before: events.Cache, after: events.Cache) -> events.Cache:
    """Differences are XORed, so their XOR is the difference of both, and that of a whole picture is whole."""
    if after.whole or before.layers != after.layers:
        return after
    try:
        whole = events.inflate(before.states, before.layers * before.tokens)
        cells = events.apply_cells(whole, before.tokens, after)
    except ValueError:  # damaged: whoever applies it finds out
        return after
    return replace(after, whole=before.whole, states=events.deflate(cells))
