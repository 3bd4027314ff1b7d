"""Hybrid: paged, H2O and InfiniGen behind one door, over one device pool, one host pool, one link and one clock.

The controller looks at each request and at the memory that is free, and gives the request to one of them. A
conversation stays where it began, as its cache is there; a follow-up that no longer fits, or an engine that runs out of
memory after all, moves it: the new engine computes it again from its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from torch import Tensor

from engines import events
from engines.answering import Answering
from engines.caches.base import Cache, CacheView, HeadsView
from engines.classify import classify
from engines.controller import CAUTION, Choice, decide, name
from engines.engine import Engine
from engines.errors import BadRequest
from engines.memory import Pool
from engines.pace import Pace


@dataclass
class _Request:
    """The request under way. `tried` are the engines that have run out of memory with it, `said` how many tokens of the
    answer are from those before the present one."""

    request: int
    tasks: dict[str, float]
    prompt_tokens: int
    max_new_tokens: int
    options: dict[str, Any]
    pace: Pace
    tried: list[str] = field(default_factory=list)
    new_tokens: int = 0
    said: int = 0


class HybridEngine(Answering):
    """Has the interface of an `Engine`, for one request at a time. `engines` share their surroundings. With
    `reads_text`, `submit` is also told the user's own words."""

    reads_text = True

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = {engine.id: engine for engine in engines}
        self._first = engines[0]
        around = self._first.cache.around
        assert all(engine.cache.around is around for engine in engines), "they share one pool, or the cap means nothing"
        super().__init__("hybrid", around)
        self._at: Engine | None = None  # where the conversation is
        self._tokens: list[int] = []
        self._turns: list[tuple[str, int]] = []
        self._request: _Request | None = None

    @property
    def has_work(self) -> bool:
        return self._request is not None

    @property
    def cache(self) -> Cache:
        """The one that has the conversation."""
        return (self._at or self._first).cache

    def knobs(self) -> dict[str, str | float | int | bool | None]:
        return {"chooses": " ".join(self.engines), "caution": CAUTION}

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
        turns: Iterable[tuple[str, int]] = (),
        text: str | None = None,
    ) -> None:
        """As `Engine.submit`. `text` is what the user wrote; without it, the tokens are read. Raises BadRequest also
        while another request is under way."""
        if self.has_work:
            raise BadRequest("the hybrid engine answers one request at a time")
        if follow_up and self._at is None:
            raise BadRequest("a follow-up needs an earlier conversation that has ended")
        before = len(self._tokens) if follow_up else 0
        sampling: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "seed": seed}
        tokens = self.checked_request(token_ids, max_new_tokens, before, **sampling)
        turns = list(turns)
        pace = Pace.from_now(self.clock_s, self.link.traffic)
        with self.clock.running():
            tasks = classify(self._text(tokens, turns) if text is None else text)
        options = {**sampling, "ignore_eos": ignore_eos}
        whole = before + len(tokens)
        new_tokens = min(max_new_tokens, self.model.context_limit - whole)
        if not follow_up:
            self._forget()
        self._request = _Request(request, tasks, whole, new_tokens, options, pace)
        self._turns += [(role, before + start) for role, start in turns]
        self._tokens += tokens
        if self._at is None:
            self._begin()
        elif self._stays(self._at):
            self._decided(Choice(self._at.id, f"the conversation stays with {name(self._at.id)}"))
            self._at.submit(request, tokens, new_tokens, follow_up=True, turns=turns, **options)
        else:
            left = name(self._at.id)
            self._leave()
            self._begin(f"no room left with {left}, computed again: ")

    def advance(self, observe: bool = False) -> list[events.Event]:
        """As `Engine.advance`; out of memory moves the request to the next engine that fits."""
        if self._request is None or self._at is None:
            return self._drain()
        try:
            happened = self._at.advance(observe)
        except Exception:  # the engine has let go of everything
            self._forget()
            raise
        for event in happened:
            self._take(event)
        return self._drain()

    def cancel(self) -> list[events.Event]:
        if self._at is not None and self._request is not None:
            for event in self._at.cancel():
                self._take(event)
        return self._drain()

    def reset(self) -> None:
        for engine in self.engines.values():
            engine.reset()
        self._forget()
        self._out.clear()
        self._transfers.begin()

    def continue_logits(self, token_ids: Iterable[int], rows: int = 1) -> Tensor:
        return self._latest().continue_logits(token_ids, rows)

    def kept_positions(self, layer: int) -> Tensor:
        return self._latest().kept_positions(layer)

    def view(self, request: int) -> CacheView | None:
        return self._at.view(request) if self._at is not None else None

    def heads(self, request: int, layer: int) -> HeadsView | None:
        return self._at.heads(request, layer) if self._at is not None else None

    def memory(self) -> events.Memory:
        return msgspec.structs.replace((self._at or self._first).memory(), engine=self.id)

    def _text(self, tokens: list[int], turns: list[tuple[str, int]]) -> str:
        """What the user said last, as far as the tokens tell."""
        start = max((start for role, start in turns if role == "user"), default=0)
        return self.model.tokenizer.decode(tokens[start:], skip_special_tokens=True)

    def _stays(self, engine: Engine) -> bool:
        """Whether the whole conversation, with the request under way, fits where it is."""
        need = engine.cache.need(*self._lengths())
        held = engine.memory() if engine.cache.grows_in_place else None
        device, host = _free(self.device_pool, engine), _free(self.host_pool)
        if held is not None and device is not None:
            device += sum(held.device_bytes.get(kind, 0) for kind in engine.cache.kv_kinds())
        return (device is None or need.device_bytes <= device) and (host is None or need.host_bytes <= host)

    def _lengths(self) -> tuple[int, int]:
        """Tokens so far, and those that the answer may still take."""
        assert self._request is not None
        return len(self._tokens), self._request.max_new_tokens - self._request.new_tokens

    def _begin(self, why: str = "") -> None:
        """Gives all tokens so far to the engine that the controller chooses among those not yet tried."""
        request = self._request
        assert request is not None
        left = {id: engine for id, engine in self.engines.items() if id not in request.tried}
        with self.clock.running():
            tokens, new_tokens = self._lengths()
            needs = {id: engine.cache.need(tokens, new_tokens) for id, engine in left.items()}
            free = _free(self.device_pool, self._first)
            choice = decide(request.tasks, tokens, needs, free, _free(self.host_pool))
        self._decided(replace(choice, reason=why + choice.reason))
        self._at = left[choice.engine]
        request.said = request.new_tokens
        options = {**request.options, "seed": (request.options["seed"] + request.said) % (1 << 63)}
        self._at.submit(request.request, list(self._tokens), new_tokens, turns=self._turns, **options)

    def _decided(self, choice: Choice) -> None:
        assert self._request is not None
        self._out.append(
            events.Decision(
                engine=self.id,
                clock_s=self.clock_s,
                request=self._request.request,
                choice=choice.engine,
                reason=choice.reason,
            )
        )

    def _take(self, event: events.Event) -> None:
        """Passes an inner engine's event on as this one's own."""
        request = self._request
        assert request is not None
        event = msgspec.structs.replace(event, engine=self.id)
        match event:
            case events.Token():
                request.pace.token(event.clock_s)
                request.new_tokens += 1
                self._tokens.append(event.token_id)
                event = msgspec.structs.replace(event, index=request.said + event.index)
            case events.Outcome(outcome="device_oom" | "error"):
                self._ran_out(event)
                return
            case events.Outcome():
                self._end(event)
                return
        self._out.append(event)

    def _ran_out(self, event: events.Outcome) -> None:
        """The engine had to give up: the next one goes on, where there is one."""
        request, engine = self._request, self._at
        assert request is not None
        assert engine is not None
        self._leave()
        request.tried.append(engine.id)
        if len(request.tried) < len(self.engines):
            self._begin(f"{name(engine.id)} ran out of memory after all: ")
        else:
            self._end(event)

    def _end(self, event: events.Outcome) -> None:
        request = self._request
        assert request is not None
        self._request = None
        self._out.append(
            msgspec.structs.replace(
                event,
                prompt_tokens=request.prompt_tokens,
                new_tokens=request.new_tokens,
                **request.pace.figures(request.new_tokens, self.link.traffic),
            )
        )
        if event.outcome != "ok":
            self._forget()

    def _latest(self) -> Engine:
        if self._at is None or self._request is not None:
            raise BadRequest("the cache holds no conversation: call generate first")
        return self._at

    def _leave(self) -> None:
        """The conversation's tokens stay, its cache goes."""
        if self._at is not None:
            self._at.forget_conversation()
        self._at = None

    def _forget(self) -> None:
        self._leave()
        self._request, self._tokens, self._turns = None, [], []


AnyEngine = Engine | HybridEngine


def _free(pool: Pool, engine: Engine | None = None) -> int | None:
    """Bytes left under the cap. Without one, an engine's device memory for KV is its arena; None: no limit known."""
    if pool.cap_bytes is not None:
        return pool.cap_bytes - pool.used_bytes
    blocks = getattr(engine.cache, "blocks", None) if engine is not None else None
    return None if blocks is None else blocks.free_blocks * blocks.block_bytes
