"""One request to a server, in a thread of its own: what comes is queued with the moment at which it came."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from engines import server_metrics
from engines.server_client import Client, Served, is_cut
from engines.server_metrics import Reading
from engines.server_stream import Chunk, ServerFault
from engines.sizes import counted

FIRST_LOOK_S, LOOK_S = 0.1, 0.5
IDS, CHAT, TEXT = "ids", "chat", "text"


@dataclass
class Talk:
    """A conversation: as ids of our tokenizer, as messages, as text. `way` is which of the three the server reads, and
    `special` whether its tokenizer is to put its own marks before the text; `first_reading` is how busy it was before.
    """

    vocabulary: int
    special: bool
    way: str = ""
    served: Served | None = None
    tokens: list[int] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)
    text: str = ""
    first_reading: Reading | None = None


@dataclass(frozen=True)
class Asked:
    """`tokens` is the longest answer that is wanted."""

    wanted: str
    tokens: int
    sampling: dict[str, Any]
    ignore_eos: bool


@dataclass(frozen=True)
class Arrived:
    """`what` came `after_s` seconds after the request had been sent; `sent_at_s` is when that was, by `time.monotonic`.
    None is the request's own sending, a ServerFault or the last Chunk (with a `reason`) its end."""

    after_s: float
    sent_at_s: float
    what: Chunk | Reading | ServerFault | None


class Request:
    """`arrived` is read by the engine, without ever waiting for the network. `talk` is the request's until it ends."""

    def __init__(self, client: Client, talk: Talk, asked: Asked) -> None:
        self.client, self.talk, self._asked = client, talk, asked
        self.arrived: queue.SimpleQueue[Arrived] = queue.SimpleQueue()
        self._sent_at_s = time.monotonic()
        self._ended = threading.Event()
        self._watched = False  # the metrics are there, and come in time
        threading.Thread(target=self._run, daemon=True, name="server request").start()

    def stop(self) -> None:
        """Nothing that comes after this counts."""
        self._ended.set()
        self.client.stop()

    def _put(self, what: Chunk | Reading | ServerFault | None) -> None:
        self.arrived.put(Arrived(time.monotonic() - self._sent_at_s, self._sent_at_s, what))

    def _run(self) -> None:
        last: Chunk | ServerFault
        try:
            self._prepare()
            last = self._answer()
        except ServerFault as fault:
            last = fault
        except Exception as fault:  # ours: it must not leave a column that waits for ever
            traceback.print_exc(file=sys.stderr)
            last = ServerFault(f"{type(fault).__name__}: {fault}".splitlines()[0])
        end = Arrived(time.monotonic() - self._sent_at_s, self._sent_at_s, last)
        self._ended.set()
        if isinstance(last, Chunk) and self._watched and (reading := self._reading()) is not None:
            self.arrived.put(Arrived(end.after_s, end.sent_at_s, reading))
        self.arrived.put(end)

    def _prepare(self) -> None:
        """What has to be known of a server before the first prompt of a conversation; on nobody's clock."""
        talk = self.talk
        if talk.served is None:
            talk.served = self.client.served(self._asked.wanted)
            talk.first_reading = self._reading()
        if not talk.way:
            theirs = self.client.tokenized(talk.served.name, talk.text, special=talk.special)
            talk.way = IDS if theirs == talk.tokens else TEXT if talk.special else CHAT
        self._sent_at_s = time.monotonic()
        self._put(None)
        if talk.first_reading is not None:
            self._watched = True
            threading.Thread(target=self._watch, daemon=True, name="server metrics").start()

    def _answer(self) -> Chunk:
        """Queues the tokens; returns the end, with the server's count of the prompt's."""
        path, body = self._question()
        count, reason, prompt_tokens = 0, "", None
        try:
            for said in self.client.stream(path, body, self.talk.vocabulary if self.talk.way == IDS else 0):
                count += len(said.tokens)
                if count > self._asked.tokens:
                    raise ServerFault(
                        f"the server said more than the {counted(self._asked.tokens, 'token')} that were asked for"
                    )
                reason = said.reason or reason
                prompt_tokens = prompt_tokens if said.prompt_tokens is None else said.prompt_tokens
                if said.tokens:
                    self._put(said)
        except ServerFault as fault:
            if is_cut(fault):
                raise _cut_after(count) from fault
            raise
        if reason in ("abort", "error"):
            raise ServerFault(f"the server gave up after {counted(count, 'token')}")
        if not reason:
            raise _cut_after(count)
        return Chunk(reason=reason, prompt_tokens=prompt_tokens)

    def _question(self) -> tuple[str, dict[str, Any]]:
        talk, asked = self.talk, self._asked
        assert talk.served is not None
        body: dict[str, Any] = {
            "model": talk.served.name,
            "max_tokens": asked.tokens,
            **asked.sampling,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if asked.ignore_eos:
            body["ignore_eos"] = True
        if talk.way == IDS or talk.served.is_vllm:
            # A vLLM takes what is not said from the model's folder; engines here know no such habits.
            body |= {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        if talk.way == IDS:
            limit = talk.served.context_limit
            if limit is not None:  # as in the engines here, an answer is as long as the context has room for
                body["max_tokens"] = max(1, min(asked.tokens, limit - len(talk.tokens)))
            body |= {"logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
            return "/v1/completions", body | {"prompt": talk.tokens}
        if talk.way == TEXT:
            return "/v1/completions", body | {"prompt": talk.text}
        if talk.served.is_vllm:
            body["logprobs"] = True  # tells how many tokens a message is
        return "/v1/chat/completions", body | {"messages": talk.messages}

    def _watch(self) -> None:
        """Looks at the metrics until the answer has ended, or until they are gone."""
        wait_s = FIRST_LOOK_S
        while not self._ended.wait(wait_s):
            wait_s = LOOK_S
            if (reading := self._reading()) is None:
                self._watched = False
                return
            self._put(reading)

    def _reading(self) -> Reading | None:
        text = self.client.metrics()
        try:
            return None if text is None else server_metrics.read(text)
        except ValueError:
            return None


def _cut_after(tokens: int) -> ServerFault:
    return ServerFault(f"the server cut the stream after {counted(tokens, 'token')}")
