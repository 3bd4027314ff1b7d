"""One request's connection to a server, which can be cut from another thread and is cut when it takes too long."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any

import requests
from requests.adapters import HTTPAdapter


class Line(requests.Session):
    """For one request, in a `with`. After `limit_s` seconds the connection is cut and `late` is True, whatever came
    meanwhile: a timeout of single reads waits for ever for who sends a byte a second. `late_text` is what to say then.
    """

    def __init__(self, limit_s: float, late_text: str) -> None:
        super().__init__()
        self.limit_s, self.late_text, self.late = limit_s, late_text, False
        self._until_s = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._is_cut = False
        self._ended = threading.Event()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _Adapter(self))
        threading.Thread(target=self._watch, daemon=True, name="server deadline").start()

    def go_on(self) -> None:
        """The time begins anew: what came was worth waiting for."""
        self._until_s = time.monotonic() + self.limit_s

    def cut(self) -> None:
        """From any thread, at any moment: whoever reads or writes stops, and so does a connection still to be made."""
        with self._lock:
            self._is_cut = True
            for each in self._sockets:
                _shut(each)

    def opened(self, made: socket.socket) -> None:
        """A duplicate is what can be shut down: http.client lets go of its socket early, and TLS takes it away."""
        with self._lock:
            self._sockets.append(made.dup())
            if self._is_cut:
                _shut(made)

    def get_redirect_target(self, response: Any) -> None:
        """None: requests would read, parse and resolve where it leads to, even where nobody is to follow."""
        return

    def close(self) -> None:
        self._ended.set()
        super().close()
        with self._lock:
            for each in self._sockets:
                each.close()
            self._sockets.clear()

    def _watch(self) -> None:
        while (left_s := self._until_s - time.monotonic()) > 0:
            if self._ended.wait(left_s):
                return
        self.late = True
        self.cut()


class _Adapter(HTTPAdapter):
    """Tells its line of the sockets that are made."""

    def __init__(self, line: Line) -> None:
        self._line = line
        super().__init__()

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        make = pool.ConnectionCls

        def connection(*arguments: Any, **options: Any) -> Any:
            made = make(*arguments, **options)
            connect = made._new_conn  # the bare socket, before any TLS

            def connected() -> socket.socket:
                bare: socket.socket = connect()
                self._line.opened(bare)
                return bare

            made._new_conn = connected
            return made

        pool.ConnectionCls = connection
        return pool


def _shut(each: socket.socket) -> None:
    with suppress(OSError):  # it may be at its end already
        each.shutdown(socket.SHUT_RDWR)
