"""Publishes a run's events to an MQTT broker, from a thread of its own. Whoever publishes never waits."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import aiomqtt
from msgspec.structs import replace

from engines import events
from probes import snapshot
from probes.broker import Broker
from probes.connection import Connection
from probes.outbound import Outbound, is_picture
from probes.topics import ALL, LIMIT_BYTES, PRESENCE, SNAPSHOT, Presence, kind_of, pack, topic

WINDOW = 64  # messages on their way that the broker has not yet confirmed
SNAPSHOT_EVERY_S = 2.0
SNAPSHOT_SHARE = 20  # it takes at most a twentieth of the time
GOODBYE_S = 1.0


@dataclass(frozen=True)
class _Sent:
    topic: str
    payload: bytes


class Publisher(Connection):
    """`run` is its own name under the prefix. Tokens, outcomes and the like are sent until the broker confirms them, so
    that after a loss one may come twice (its `seq` tells); pictures are sent once. A snapshot is retained, and renewed
    while things change. At an orderly end what is retained is taken back."""

    def __init__(self, broker: Broker, *, json: bool = False, outbound: Outbound | None = None) -> None:
        self.run = uuid.uuid4().hex[:8]
        super().__init__(broker, f"kvtui{self.run}")
        self._json = json
        self._outbound = outbound if outbound is not None else Outbound()
        self._came: deque[Sequence[events.AnyEvent]] = deque()
        self._picture = snapshot.Picture()
        self._seq = self._snapshot_seq = 0
        self._snapshot_due_s = 0.0
        self._unconfirmed: dict[int, _Sent] = {}
        self._on_their_way: set[asyncio.Task[None]] = set()
        self._too_large = 0
        self._present = Presence(
            run=self.run,
            state="live",
            host=socket.gethostname(),
            process_id=os.getpid(),
            since=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
        self._goodbye_s = GOODBYE_S
        self._fresh: asyncio.Event | None = None
        self._news: asyncio.Event

    @property
    def waiting(self) -> int:
        """Messages that the broker does not have yet."""
        return len(self._outbound) + len(self._unconfirmed) + len(self._came)

    @property
    def lost(self) -> int:
        """Events that were to arrive and never will: there was no room for them, or they are too large."""
        return self._outbound.lost + self._too_large

    def publish(self, batch: Sequence[events.AnyEvent]) -> None:
        """May be called in any thread; never waits, never raises."""
        self._came.append(batch)
        self.call(self._wake)

    def close(self, patience_s: float = GOODBYE_S) -> int:
        """Sends what can be sent in that time. Returns how many messages did not arrive."""
        self._goodbye_s = patience_s
        self.stop(patience_s + 0.3)
        return self.waiting

    def will(self) -> aiomqtt.Will:
        gone = pack(replace(self._present, state="gone"), json=self._json)
        return aiomqtt.Will(self._topic(PRESENCE), gone, qos=1, retain=True)

    async def alongside(self) -> None:
        """Takes in what comes, also while there is no broker: only then newer pictures can replace older ones."""
        self._news = asyncio.Event()
        self._fresh = asyncio.Event()
        while True:
            await self._fresh.wait()
            self._fresh.clear()
            self._take_in()

    async def serve(self, client: aiomqtt.Client) -> None:
        for sent in list(self._unconfirmed.values()):
            await client.publish(sent.topic, sent.payload, qos=1)
        self._unconfirmed.clear()
        await self._say(client, self._present)
        await self._show(client)
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(_until_lost(client))
                await self._send(client, group)
                listening.cancel()
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None
        await self._leave(client)

    def _wake(self) -> None:
        if self._fresh is not None:
            self._fresh.set()

    def _take_in(self) -> None:
        while self._came:
            for event in self._came.popleft():
                self._outbound.offer(event)
        self._news.set()

    async def _send(self, client: aiomqtt.Client, group: asyncio.TaskGroup) -> None:
        """Everything that waits, and what comes, until it is time to go."""
        window = asyncio.Semaphore(WINDOW)
        closing = group.create_task(self.closing.wait())
        ends_s = math.inf
        while not (closing.done() and (time.monotonic() >= ends_s or not (self._outbound or self._came))):
            if closing.done():
                ends_s = min(ends_s, time.monotonic() + self._goodbye_s)
            self._take_in()
            self._news.clear()
            if (event := self._outbound.take()) is not None:
                await self._send_one(client, group, window, event)
                await asyncio.sleep(
                    0
                )  # a message on its way has begun now: nothing overtakes it, and what came is read
            changed, now_s = self._seq != self._snapshot_seq, time.monotonic()
            if changed and now_s >= self._snapshot_due_s and not closing.done():
                await self._show(client)
            elif event is None and not closing.done():
                news = group.create_task(self._news.wait())
                pause_s = max(0.0, self._snapshot_due_s - now_s) if changed else None
                await asyncio.wait({news, closing}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._goodbye_s):
                for _ in range(WINDOW):  # until all of them are confirmed
                    await window.acquire()
        for task in self._on_their_way:
            task.cancel()

    async def _send_one(
        self, client: aiomqtt.Client, group: asyncio.TaskGroup, window: asyncio.Semaphore, event: events.AnyEvent
    ) -> None:
        numbered = replace(event, seq=self._seq + 1)
        payload = pack(numbered, json=self._json)
        if len(payload) > LIMIT_BYTES:
            self._too_large += 1
            return
        self._seq += 1
        self._picture.add(event)
        name = topic(self.broker.prefix, self.run, event.engine, kind_of(event))
        if is_picture(event):
            await client.publish(name, payload, qos=0)
        else:
            self._unconfirmed[numbered.seq] = _Sent(name, payload)
            await window.acquire()
            task = group.create_task(self._confirmed(client, window, numbered.seq))
            self._on_their_way.add(task)
            task.add_done_callback(self._on_their_way.discard)
        if isinstance(event, events.RunStarted):
            self._present = replace(self._present, model=event.model, engines=[engine.id for engine in event.engines])
            await self._say(client, self._present)

    async def _confirmed(self, client: aiomqtt.Client, window: asyncio.Semaphore, seq: int) -> None:
        sent = self._unconfirmed[seq]
        await client.publish(sent.topic, sent.payload, qos=1)
        self._unconfirmed.pop(seq, None)
        window.release()

    async def _show(self, client: aiomqtt.Client) -> None:
        """The snapshot, after all that it is made of."""
        begun_s = time.monotonic()
        seq = self._seq
        packed = snapshot.pack(self._picture, seq)
        if packed is not None:
            await client.publish(self._topic(SNAPSHOT), packed, qos=1, retain=True)
        self._snapshot_seq = seq
        took_s = time.monotonic() - begun_s
        self._snapshot_due_s = time.monotonic() + max(SNAPSHOT_EVERY_S, SNAPSHOT_SHARE * took_s)

    async def _say(self, client: aiomqtt.Client, presence: Presence) -> None:
        await client.publish(self._topic(PRESENCE), pack(presence, json=self._json), qos=1, retain=True)

    async def _leave(self, client: aiomqtt.Client) -> None:
        """Whoever watches hears that it has ended; nothing of it stays with the broker."""
        await self._say(client, replace(self._present, state="ended"))
        for kind in (SNAPSHOT, PRESENCE):
            await client.publish(self._topic(kind), b"", qos=1, retain=True)

    def _topic(self, kind: str) -> str:
        return topic(self.broker.prefix, self.run, ALL, kind)


async def _until_lost(client: aiomqtt.Client) -> None:
    """Raises MqttError when the connection is lost; nothing is subscribed to, so nothing comes."""
    async for _ in client.messages:
        pass
