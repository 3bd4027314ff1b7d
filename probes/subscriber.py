"""Listens to the runs that are published under a prefix: who is there, and all that one of them says."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import deque
from dataclasses import dataclass

import aiomqtt

from probes.broker import Broker
from probes.connection import Connection
from probes.topics import ALL, KINDS, PRESENCE, SNAPSHOT, parts, topic

HELD_BYTES = 64 << 20
GOODBYE_S = 1.0


@dataclass(frozen=True)
class Message:
    """As it came, from whoever may publish there: nothing of it has been checked but the shape of its topic."""

    run: str
    kind: str
    payload: bytes
    retained: bool


class Subscriber(Connection):
    """`watch` chooses the run of which everything is heard, `want_snapshot` whether its snapshots are, too: they are
    large, and whoever has joined needs none. Messages that nobody takes are dropped beyond `HELD_BYTES`; what follows
    them shows by its `seq` that some are missing."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, f"kvtuiwatch{uuid.uuid4().hex[:8]}")
        self._came: deque[Message] = deque()
        self._held_bytes = 0
        self._turn = threading.Condition()
        self._run: str | None = None
        self._snapshots = True
        self._wanted: asyncio.Event | None = None
        self.connections = 0  # made so far: with each one, something may have been missed

    def watch(self, run: str) -> None:
        with self._turn:
            self._run, self._snapshots = run, True
            self._drop_messages_of_others(run)
        self.call(self._want)

    def want_snapshot(self, wanted: bool) -> None:
        if wanted != self._snapshots:
            self._snapshots = wanted
            self.call(self._want)

    def take(self, timeout_s: float) -> list[Message]:
        """All that has come, after waiting for the first at most so long."""
        with self._turn:
            self._turn.wait_for(lambda: self._came, timeout_s)
            came, self._came = list(self._came), deque()
            self._held_bytes = 0
        return came

    def close(self) -> None:
        self.stop(GOODBYE_S)

    async def serve(self, client: aiomqtt.Client) -> None:
        self._wanted = asyncio.Event()
        self._snapshots = True
        self.connections += 1
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen(client))
                subscribing = group.create_task(self._subscribe(client, self._wanted))
                await self.closing.wait()
                listening.cancel()
                subscribing.cancel()
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None

    async def _listen(self, client: aiomqtt.Client) -> None:
        async for message in client.messages:
            payload = message.payload
            named = parts(self.broker.prefix, message.topic.value)
            if named is None or not isinstance(payload, bytes):
                continue
            run, _, kind = named
            with self._turn:
                if self._held_bytes + len(payload) <= HELD_BYTES:
                    self._held_bytes += len(payload)
                    self._came.append(Message(run, kind, payload, bool(message.retain)))
                    self._turn.notify()

    async def _subscribe(self, client: aiomqtt.Client, wanted: asyncio.Event) -> None:
        """Keeps what is subscribed to as it is wanted."""
        prefix, there = self.broker.prefix, set[str]()
        while True:
            wanted.clear()
            run, topics = self._run, [f"{prefix}/+/{ALL}/{PRESENCE}"]
            if run is not None:
                topics += [f"{prefix}/{run}/+/{kind}" for kind in KINDS]
                if self._snapshots:  # after all others: nothing that comes later than it is missed
                    topics.append(topic(prefix, run, ALL, SNAPSHOT))
            gone = [name for name in there if name not in topics]
            if gone:
                await client.unsubscribe(gone)
            new = [name for name in topics if name not in there]
            if new:
                # At most once, so that everything comes in the order of its publishing.
                await client.subscribe([(name, 0) for name in new])
            there = set(topics)
            await wanted.wait()

    def _want(self) -> None:
        if self._wanted is not None:
            self._wanted.set()

    def _drop_messages_of_others(self, run: str) -> None:
        kept = [m for m in self._came if m.run == run or m.kind == PRESENCE]
        self._came = deque(kept)
        self._held_bytes = sum(len(m.payload) for m in kept)
