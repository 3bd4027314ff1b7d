"""HTTP with an OpenAI-compatible server: a few questions, and one answer that is streamed. Blocking, for a thread."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import requests
import urllib3

from engines.server_address import KEY_VARIABLE
from engines.server_line import Line
from engines.server_stream import Chunk, ServerFault, chunk, error_text, messages, one_line, plausible_count, quoted

CONNECT_S = 5.0
QUESTION_S = 10.0  # for what a server knows by heart
METRICS_S = 1.0  # the first prompt and the end of an answer wait for them
SILENCE_S = 60.0
_PIECE_BYTES = 1 << 16
_LARGEST_BYTES = 1 << 26  # of an answer that is read at once
_LARGEST_METRICS_BYTES = 1 << 22
# What comes out of a connection that is no longer one, whichever layer notices.
_LOST = (
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,
    OverflowError,
)


@dataclass(frozen=True)
class Served:
    """The model that a server has. `is_vllm` as it says itself, `context_limit` in tokens where it tells."""

    name: str
    is_vllm: bool
    context_limit: int | None


class _Card(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class Client:
    """For one request at a time. `stop` may be called from another thread: what is under way ends, and its connections
    are closed. `key` goes with every request as a bearer token. All faults are ServerFaults."""

    def __init__(self, address: str, key: str = "", silence_s: float = SILENCE_S) -> None:
        self.address, self._key, self._silence_s = address, key, silence_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._lines: set[Line] = set()

    def served(self, wanted: str) -> Served:
        """The model called `wanted` if there is such a one, else the first."""
        body = self._asked("GET", "/v1/models", QUESTION_S)
        try:
            cards = msgspec.json.decode(body, type=_Models).data
        except (msgspec.DecodeError, RecursionError):
            raise ServerFault(f"{self.address}/v1/models is no list of models: {quoted(_text(body))}") from None
        if not cards:
            raise ServerFault(f"the server at {self.address} has no model")
        card = next((card for card in cards if card.id == wanted), cards[0])
        return Served(card.id, card.owned_by == "vllm", plausible_count(card.max_model_len) or None)

    def tokenized(self, model: str, text: str, *, special: bool) -> list[int] | None:
        """The text's ids in the server's vocabulary, with or without the special tokens of a beginning. None where a
        server has no such service, which is vLLM's own."""
        question = {"model": model, "prompt": text, "add_special_tokens": special}
        try:
            return msgspec.json.decode(self._asked("POST", "/tokenize", QUESTION_S, question), type=_Tokens).tokens
        except (_Refused, msgspec.DecodeError, RecursionError):
            return None

    def metrics(self) -> str | None:
        """The text of /metrics; None where there is none, or none in time."""
        try:
            body = self._asked("GET", "/metrics", METRICS_S)
        except ServerFault:
            return None
        return _text(body) if len(body) <= _LARGEST_METRICS_BYTES else None

    def stream(self, path: str, body: dict[str, Any], vocabulary: int) -> Iterator[Chunk]:
        """The answer, as it comes; ids as in `server_stream.chunk`. Only tokens end a silence. Ends early, without a
        fault, when stopped."""
        try:
            with (
                self._line(self._silence_s, f"the server sent nothing for {self._silence_s:g} s") as line,
                self._send(line, "POST", path, body) as response,
            ):
                for data in messages(self._pieces(line, response)):
                    if data == "[DONE]":
                        return
                    said = chunk(data, vocabulary)
                    if said.tokens:
                        line.go_on()
                    yield said
        except ServerFault:
            if not self._stopped.is_set():
                raise

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            for line in self._lines:
                line.cut()

    @contextmanager
    def _line(self, limit_s: float, late_text: str) -> Iterator[Line]:
        with Line(limit_s, late_text) as line:
            with self._lock:
                if self._stopped.is_set():
                    raise _Cut("nobody wants to know any more")
                self._lines.add(line)
            try:
                yield line
            finally:
                with self._lock:
                    self._lines.discard(line)

    def _pieces(self, line: Line, response: requests.Response) -> Iterator[bytes]:
        try:
            while piece := response.raw.read1(_PIECE_BYTES, decode_content=True):
                yield piece
        except _LOST as fault:
            raise self._lost(fault, line) from fault
        if line.late:  # the end was ours
            raise ServerFault(line.late_text)

    def _asked(self, method: str, path: str, limit_s: float, body: dict[str, Any] | None = None) -> bytes:
        """All of the answer, within so many seconds."""
        with (
            self._line(limit_s, f"the server has not answered {path} within {limit_s:g} s") as line,
            self._send(line, method, path, body) as response,
        ):
            return self._whole(line, response)

    def _whole(self, line: Line, response: requests.Response) -> bytes:
        pieces: list[bytes] = []
        size = 0
        for piece in self._pieces(line, response):
            pieces.append(piece)
            if (size := size + len(piece)) > _LARGEST_BYTES:
                break
        return b"".join(pieces)

    def _send(self, line: Line, method: str, path: str, body: dict[str, Any] | None) -> requests.Response:
        """The response, its body still to be read. Raises ServerFault for one that is no success."""
        if not (self._key.isascii() and self._key.isprintable()):
            raise ServerFault(f"{KEY_VARIABLE} holds what no header can")
        try:
            response = line.request(
                method,
                self.address + path,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
                auth=self._authorized,  # also without a key: requests would look for one in ~/.netrc
                timeout=(min(CONNECT_S, line.limit_s), line.limit_s),
                stream=True,
                allow_redirects=False,  # with a key, nobody is followed anywhere
            )
        except _LOST as fault:
            raise self._lost(fault, line) from fault
        if response.status_code != 200:
            with response:
                raise self._refused(line, response, path)
        return response

    def _authorized(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    def _refused(self, line: Line, response: requests.Response, path: str) -> ServerFault:
        code = response.status_code
        try:
            told = error_text(_text(self._whole(line, response)))
        except ServerFault:
            told = ""
        says = f": {told}" if told else ""
        if code in (401, 403):
            how = "the server refuses the key in" if self._key else "the server wants a key, which goes into"
            return _Refused(f"{how} {KEY_VARIABLE} ({code}){says}")
        if code == 404:
            return _Refused(f"{self.address} has no such model or no {path} (404){says}")
        if 300 <= code < 400:
            where = one_line(response.headers.get("Location") or "it does not say")
            return _Refused(f"the server is elsewhere ({code}): {where}")
        return _Refused(f"the server {'refuses this' if code < 500 else 'failed'} ({code}){says}")

    def _lost(self, fault: Exception, line: Line) -> ServerFault:
        """In the words of the layer that knows: requests wraps what urllib3 wraps."""
        if line.late:
            return ServerFault(line.late_text)
        told = _chain(fault)
        if any(isinstance(each, ConnectionRefusedError) for each in told):
            return ServerFault(f"no server at {self.address} (connection refused)")
        if any(isinstance(each, urllib3.exceptions.NameResolutionError) for each in told):
            return ServerFault(f"no server at {self.address} (the name is not known)")
        if any(isinstance(each, (requests.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError)) for each in told):
            return ServerFault(f"no connection to {self.address} within {min(CONNECT_S, line.limit_s):g} s")
        if any(
            isinstance(each, (requests.ReadTimeout, TimeoutError, urllib3.exceptions.ReadTimeoutError)) for each in told
        ):
            return ServerFault(line.late_text)
        theirs = (requests.ConnectionError, requests.exceptions.InvalidHeader)  # our own headers are valid
        if isinstance(fault, requests.RequestException) and not isinstance(fault, theirs):
            return ServerFault(f"{self.address} cannot be asked: {one_line(str(fault))}")
        return _Cut(f"the connection to {self.address} was lost")


class _Refused(ServerFault):
    """The server did answer, and not with what was asked for."""


class _Cut(ServerFault):
    """There was a connection, and there is none."""


def is_cut(fault: ServerFault) -> bool:
    return isinstance(fault, _Cut)


def _chain(fault: BaseException) -> list[BaseException]:
    """The fault, and all that it came of."""
    found: list[BaseException] = []
    waiting: list[Any] = [fault]
    while waiting and len(found) < 32:
        each = waiting.pop(0)
        if isinstance(each, BaseException) and each not in found:
            found.append(each)
            waiting += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]
    return found


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")
