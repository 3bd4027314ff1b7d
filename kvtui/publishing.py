"""A run's events on their way to a broker, past the screen that shows them."""

from __future__ import annotations

from collections.abc import Sequence

from engines import events
from kvtui.source import PassingSource, Restored, Source
from probes.publisher import Publisher


class PublishingSource(PassingSource):
    """A `Source` that publishes what another one says. The publisher goes on after `close`: another source may follow.
    When the broker refuses, a notice says so, once."""

    def __init__(self, source: Source, publisher: Publisher) -> None:
        super().__init__(source)
        self._publisher = publisher
        self._told = False

    def receive(self, timeout_s: float) -> Sequence[events.AnyEvent | Restored]:
        batch = self._source.receive(timeout_s)
        said = [event for event in batch if not isinstance(event, Restored)]
        if said:
            self._publisher.publish(said)
        standing = self._publisher.standing
        if standing.state == "off" and not self._told:
            self._told = True
            place = self._publisher.broker.place
            text = f"nothing is published to {place}: {standing.detail}; the run goes on"
            return [*batch, events.Notice(level="warning", text=text)]
        return batch


def worded(publisher: Publisher) -> str:
    """For the status bar: how it stands with the broker, and how much waits."""
    state, waiting = publisher.standing.state, publisher.waiting
    return f"mqtt {state}" + (f" {waiting:,}" if waiting and state != "connected" else "")
