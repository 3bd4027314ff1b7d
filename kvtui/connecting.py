"""How a race's events come in: from a worker, and past whatever else wants to hear of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engines.commands import WorkerConfig
from kvtui.client import WorkerClient
from kvtui.instruments import Instruments
from kvtui.source import Source

if TYPE_CHECKING:
    from kvtui.trace import TraceWriter
    from probes.publisher import Publisher

Connect = Callable[[WorkerConfig], Source]


def connecting(trace: TraceWriter | None = None, publisher: Publisher | None = None) -> Connect:
    """What makes the source of a race, for the first one and for each that comes after it."""

    def connect(config: WorkerConfig) -> Source:
        source: Source = Instruments(WorkerClient(config))
        if trace is not None:
            from kvtui.trace import TracingSource

            source = TracingSource(source, trace)
        if publisher is not None:
            from kvtui.publishing import PublishingSource

            source = PublishingSource(source, publisher)
        return source

    return connect
