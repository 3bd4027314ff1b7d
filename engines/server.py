"""A server as an engine: a running vLLM, or whatever else speaks its OpenAI-compatible API, in a column of its own.

Its clock is the wall's, from the moment at which a request was sent: the server's own time and the network's, measured.
What came is taken in the order of the race; what a server does not tell (what its cache holds, what it moves) is not
told here either.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from typing import Any

from engines import events
from engines.chat import Rendered
from engines.errors import BadRequest
from engines.link import Traffic
from engines.memory import Pool
from engines.pace import Pace
from engines.server_client import SILENCE_S, Client
from engines.server_metrics import Reading
from engines.server_request import IDS, Arrived, Asked, Request, Talk
from engines.server_stream import Chunk, ServerFault

PATIENCE_S = 0.05  # of a race that has nothing else to do


class ServerEngine:
    """What a lane asks of an engine, as far as a server can be asked. `address` as by `server_address.checked_address`;
    `key` is its API key; after `silence_s` without a token a request has failed. One request at a time."""

    id = events.SERVER
    remote = True  # no memory, transfers or pictures to be asked for: ServerLoad events tell what there is
    reads_rendered = True

    def __init__(self, model: Any, address: str, *, key: str = "", silence_s: float = SILENCE_S) -> None:
        self.label = events.ENGINE_LABELS[self.id]
        self.model, self.address = model, address
        self.link_info = None  # a server does not tell of one
        self.device_pool, self.host_pool = Pool("device"), Pool("host")  # stay empty
        self.clock_s = 0.0
        self._key, self._silence_s = key, silence_s
        self._talk: Talk | None = None
        self._first_reading: Reading | None = None
        self._request: Request | None = None
        self._arrived: deque[Arrived] = deque()
        self._load = events.ServerLoad()
        self._number = -1
        self._prompt_tokens = self._new_tokens = 0
        self._sent_s, self._sent_at_s = 0.0, None  # type: float, float | None
        self._pace = Pace()
        self._content = ""

    def knobs(self) -> dict[str, str | float | int | bool | None]:
        return {"clock": "its own wall time", "address": self.address}

    @property
    def has_work(self) -> bool:
        return self._request is not None

    @property
    def next_s(self) -> float | None:
        """When, on this engine's clock, the next thing happened that is not taken yet; None while nothing has come."""
        self._gather()
        return max(self.clock_s, self._sent_s + self._arrived[0].after_s) if self._arrived else None

    def start_clock_at(self, seconds: float) -> None:
        self.clock_s = max(self.clock_s, seconds)

    def submit(
        self,
        request: int,
        token_ids: list[int],
        max_new_tokens: int,
        *,
        follow_up: bool = False,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        ignore_eos: bool = False,
        turns: Any = (),
        rendered: Rendered,
    ) -> None:
        """As `Answering.submit`. `rendered` is what `token_ids` are of: a follow-up sends the whole conversation again,
        as ids, as messages or as text. Raises BadRequest while another request is under way."""
        if self._request is not None:
            raise BadRequest("a server's column asks one thing at a time")
        if follow_up and self._talk is None:
            raise BadRequest("a follow-up needs an earlier conversation that has ended")
        if not follow_up or self._talk is None:
            template = bool(getattr(self.model.tokenizer, "chat_template", None))
            self._talk = Talk(self.model.shape.vocab, special=not template)
            self._talk.first_reading = self._first_reading
            self._load = events.ServerLoad(model=self._load.model)
        self._talk.tokens += token_ids
        self._talk.messages += rendered.messages
        self._talk.text += rendered.text
        self._number, self._prompt_tokens, self._new_tokens = request, len(self._talk.tokens), 0
        self._content = ""
        self._sent_s, self._sent_at_s, self._pace = self.clock_s, None, Pace(self.clock_s)
        sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
        asked = Asked(self.model.name, max_new_tokens, sampling, ignore_eos)
        client = Client(self.address, self._key, self._silence_s)
        self._request = Request(client, self._talk, asked)

    def advance(self, observe: bool = False) -> list[events.Event]:
        """The next thing that has come. Where nothing has, the race has nothing else to do: a short wait."""
        if self._request is None:
            return []
        self._gather(PATIENCE_S)
        if not self._arrived:
            if self._sent_at_s is not None:
                self._at(time.monotonic() - self._sent_at_s)
            return []
        arrived = self._arrived.popleft()
        self._at(arrived.after_s)
        match arrived.what:
            case None:
                self._sent_at_s = arrived.sent_at_s
                return [self._status("prefill"), self._met()]
            case Reading() as reading:
                return [self._loaded(reading)]
            case ServerFault() as fault:
                return [self._ended("error", str(fault))]
            case Chunk(reason="", tokens=tokens, content=content) | Chunk(tokens=[_, *_] as tokens, content=content):
                return self._said(tokens, content)
            case Chunk() as end:
                return [self._finished(end)]

    def cancel(self) -> list[events.Event]:
        """Closes the connection, at which a server stops working, too."""
        return [] if self._request is None else [self._ended("cancelled", "")]

    def reset(self) -> None:
        self.cancel()
        self._talk = self._first_reading = None
        self._load = events.ServerLoad()

    def _gather(self, patience_s: float = 0.0) -> None:
        """What is in the queue now; where nothing was, after a wait."""
        if self._request is None:
            return
        try:
            if patience_s and not self._arrived:
                self._arrived.append(self._request.arrived.get(timeout=patience_s))
            while True:
                self._arrived.append(self._request.arrived.get_nowait())
        except queue.Empty:
            return

    def _at(self, after_s: float) -> None:
        """The two threads that fill the queue may overtake each other by a hair."""
        self.clock_s = max(self.clock_s, self._sent_s + after_s)

    def _status(self, state: str) -> events.Status:
        return events.Status(clock_s=self.clock_s, state=state, request=self._number)

    def _met(self) -> events.ServerLoad:
        """Before the first token: which model it is, and whether its tokens can be compared."""
        talk = self._talk
        assert talk is not None
        assert talk.served is not None
        self._first_reading = talk.first_reading
        if talk.way != IDS:  # another tokenizer, whose count comes with the answer's end, or never
            self._prompt_tokens = 0
        self._load = events.ServerLoad(clock_s=self.clock_s, model=talk.served.name, compares=talk.way == IDS)
        return self._load

    def _loaded(self, now: Reading) -> events.ServerLoad:
        first, before = self._first_reading, self._load
        seen = [usage for usage in (before.kv_usage_peak, now.kv_usage) if usage is not None]
        hits, queries = _since(first, now, "prefix_hits"), _since(first, now, "prefix_queries")
        self._load = events.ServerLoad(
            clock_s=self.clock_s,
            model=before.model,
            compares=before.compares,
            kv_usage=now.kv_usage,
            kv_usage_peak=max(seen, default=None),
            running=now.running,
            waiting=now.waiting,
            preemptions=_since(first, now, "preemptions"),
            prefix_hit_share=min(1.0, hits / queries) if hits is not None and queries else None,
        )
        return self._load

    def _said(self, tokens: list[Any], content: str) -> list[events.Event]:
        assert self._talk is not None
        told: list[events.Event] = []
        for token in tokens:
            self._pace.token(self.clock_s)
            told.append(
                events.Token(
                    engine=self.id,
                    clock_s=self.clock_s,
                    request=self._number,
                    index=self._new_tokens,
                    token_id=token.token_id,
                    text=token.text,
                    logprob=token.logprob,
                )
            )
            self._new_tokens += 1
            if token.token_id != events.UNKNOWN_TOKEN:
                self._talk.tokens.append(token.token_id)
        self._content += content
        return told

    def _finished(self, end: Chunk) -> events.Outcome:
        assert self._talk is not None
        self._talk.messages.append({"role": "assistant", "content": self._content})
        self._talk.text += self._content
        if self._talk.way != IDS:
            self._prompt_tokens = end.prompt_tokens or 0
        return self._ended("ok", "")

    def _ended(self, outcome: str, detail: str) -> events.Outcome:
        if self._request is not None:
            self._request.stop()
        self._request = None
        self._arrived.clear()
        if outcome != "ok":
            self._talk = None
        return events.Outcome(
            engine=self.id,
            clock_s=self.clock_s,
            request=self._number,
            outcome=outcome,
            detail=detail,
            prompt_tokens=self._prompt_tokens,
            new_tokens=self._new_tokens,
            **self._pace.figures(self._new_tokens, Traffic()),
        )


def _since(first: Reading | None, now: Reading, name: str) -> int | None:
    """A counter's growth; None where it is not told, or where the server began anew meanwhile."""
    before, after = getattr(first, name, None), getattr(now, name)
    return None if before is None or after is None or after < before else after - before
