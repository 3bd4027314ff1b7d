"""A server that replays what a real vLLM 0.32 sent (tests/recorded_server), or misbehaves as it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded_server"


def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def events_of(name: str) -> list[str]:
    """A recorded stream, event by event."""
    return [f"{event}\n\n" for event in recorded(name).split("\n\n") if event.strip()]


class FakeServer(ThreadingHTTPServer):
    """`answers` are bodies by path, or (status, body); a list is streamed piece by piece, where an Event is waited for
    and an exception cuts the connection; an iterator is written as it is, head and all. `asked` are the requests that
    came: path, headers and JSON."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.answers: dict[str, Any] = {
            "/v1/models": recorded("models.json"),
            "/tokenize": recorded("tokenize.json"),
            "/metrics": recorded("metrics.txt"),
            "/v1/completions": events_of("completions.sse"),
            "/v1/chat/completions": events_of("chat.sse"),
        }
        self.asked: list[tuple[str, Any, Any]] = []
        self.left = threading.Event()  # somebody went away before the end

    def bodies(self, path: str) -> list[Any]:
        return [body for asked, _, body in self.asked if asked == path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.path, self.headers, body))
        answer = self.server.answers.get(self.path, (404, '{"detail":"Not Found"}'))
        if isinstance(answer, Iterator):
            self._drip(answer)
            return
        if isinstance(answer, list):
            self._stream(answer)
            return
        status, text = answer if isinstance(answer, tuple) else (200, answer)
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", text)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _drip(self, pieces: Iterator[bytes]) -> None:
        self.close_connection = True
        try:
            for piece in pieces:
                self.wfile.write(piece)
        except OSError:
            self.server.left.set()

    def _stream(self, pieces: list[Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in pieces:
                if isinstance(piece, threading.Event):
                    piece.wait(20)
                elif isinstance(piece, Exception):
                    self.close_connection = True
                    return
                else:
                    data = piece if isinstance(piece, bytes) else piece.encode()
                    self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.left.set()
            raise


@contextmanager
def serving() -> Iterator[FakeServer]:
    server = FakeServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
