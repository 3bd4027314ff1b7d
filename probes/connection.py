"""A thread that keeps one client connected to a broker: with an event loop of its own, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import aiomqtt
from aiomqtt.exceptions import MqttConnectError

from probes.broker import Broker

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 10.0  # connected for so long, the next pause is a first one again
PATIENCE_S = 5.0  # with a broker that does not answer
KEEPALIVE_S = 15
MESSAGES_HELD = 20_000  # that came in faster than they are taken
REFUSALS = {  # by MQTT 3.1.1's return codes, and those that paho makes of them
    1: "it does not speak MQTT 3.1.1",
    2: "it does not take our client id",
    4: "wrong user name or password",
    5: "not authorised",
    132: "it does not speak MQTT 3.1.1",
    133: "it does not take our client id",
    134: "wrong user name or password",
    135: "not authorised",
}

# Its warnings would go to the terminal, over the screen.
_log = logging.getLogger("kvtui.mqtt")
_log.addHandler(logging.NullHandler())
_log.propagate = False


@dataclass(frozen=True)
class Standing:
    """`state` is "connected", "waiting" (it will be tried again) or "off" (it will not); `detail` why, in one line."""

    state: str
    detail: str = ""


class Connection(ABC):
    """`serve` is called with each new connection and returns when `closing` is set. What it raises, as any loss, is
    followed by a pause that grows, of a random part of itself. A refused password ends it: trying it again and again
    locks accounts. `standing` may be read in any thread."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        self.broker = broker
        self.standing = Standing("waiting")
        self._client_id = client_id
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self.closing: asyncio.Event

    @abstractmethod
    async def serve(self, client: aiomqtt.Client) -> None: ...

    def will(self) -> aiomqtt.Will | None:
        return None

    async def alongside(self) -> None:
        """Runs from the beginning to the end, connected or not."""
        return

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="kvtui-mqtt", daemon=True)
        self._thread.start()
        self._ready.wait()

    def stop(self, patience_s: float) -> None:
        """Waits for the end at most so long."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.call(lambda: self.closing.set())
            thread.join(patience_s)

    def call(self, what: Callable[[], object]) -> None:
        """In the connection's thread, soon."""
        with contextlib.suppress(RuntimeError, AttributeError):  # it has ended
            self._loop.call_soon_threadsafe(what)  # type: ignore[union-attr]

    def _work(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as fault:  # a thread that ends silently would look connected for ever
            self.standing = Standing("off", f"{type(fault).__name__}: {fault}")
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(_Daemons())
        self._loop.set_exception_handler(_drop_losses)
        self.closing = asyncio.Event()
        beside = asyncio.create_task(self.alongside())
        self._ready.set()
        try:
            await self._stay_connected()
            await self.closing.wait()
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

    async def _stay_connected(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self.closing.is_set():
            begun_s = time.monotonic()
            attempt = asyncio.create_task(self._connected())
            given_up = asyncio.create_task(self.closing.wait())
            # While connected, closing is `serve`'s business; nobody waits for a connection that is still to come.
            await asyncio.wait({attempt, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if not attempt.done() and self.standing.state != "connected":
                attempt.cancel()
            (fault,) = await asyncio.gather(attempt, return_exceptions=True)
            given_up.cancel()
            if self.closing.is_set():
                return
            self.standing = _standing_after(fault)
            if self.standing.state == "off":
                return
            if time.monotonic() - begun_s > STEADY_S:
                pause_s = FIRST_PAUSE_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.closing.wait(), pause_s * random.uniform(0.5, 1.0))
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def _connected(self) -> None:
        broker = self.broker
        async with aiomqtt.Client(
            broker.host,
            broker.port,
            username=broker.user,
            password=broker.password,
            identifier=self._client_id,
            tls_context=broker.tls,
            will=self.will(),
            logger=_log,
            timeout=PATIENCE_S,
            keepalive=KEEPALIVE_S,
            max_inflight_messages=MESSAGES_HELD,
            max_queued_incoming_messages=MESSAGES_HELD,
        ) as client:
            client.pending_calls_threshold = MESSAGES_HELD
            self.standing = Standing("connected")
            await self.serve(client)


def _drop_losses(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A connection that was given up has futures that nobody asks for any more. Why it was lost has been said."""
    if not isinstance(context.get("exception"), (aiomqtt.MqttError, OSError)):
        loop.default_exception_handler(context)


def _standing_after(fault: BaseException | None) -> Standing:
    if isinstance(fault, MqttConnectError):
        code = fault.rc if isinstance(fault.rc, int) else getattr(fault.rc, "value", 0)
        refusal = REFUSALS.get(code)
        if refusal is not None:
            return Standing("off", refusal)
    cause = fault.__context__ if fault is not None else None  # aiomqtt makes text of it
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Standing("off", f"the broker's certificate is not trusted ({cause.verify_message})")
    if isinstance(cause, OSError) and cause.strerror:
        return Standing("waiting", cause.strerror)
    words = re.sub(r"^\[code:\d+\] ", "", str(fault)) if fault is not None else ""
    if words == "Operation timed out":  # aiomqtt's, also when the other side has closed at once
        words = "it does not answer as an MQTT broker does"
    return Standing("waiting", words)


class _Daemons(ThreadPoolExecutor):
    """The pool's own threads are waited for when the process ends, and a name server can take half a minute."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*arguments, **options))
            except BaseException as fault:
                future.set_exception(fault)

        threading.Thread(target=work, name="kvtui-mqtt-connect", daemon=True).start()
        return future
