"""Events in, one `RunState` out. No terminal, no torch, no clock of its own: the same events give the same state,
whether they come from the worker's pipe, a trace or another machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engines import events
from kvtui.history import History
from kvtui.machine import Machine
from kvtui.traffic import Traffic

if TYPE_CHECKING:
    from kvtui.cache_state import CacheState

PAGED = "vllm"  # the engine that forgets nothing: the others are compared with it
SMOOTHING_S = 0.5
SHORTEST_S = 1e-5  # between two tokens; what is shorter is no speed of an engine
# Kinds of device memory that are not the cache: what comes with the model, and what lives for one layer's prefill.
NOT_CACHE = frozenset({"weights", "partial weights", "skew matrices", "scores", "score tiles", "layer KV"})
NOTICES_KEPT = 50
MOST_ENGINES = 32


@dataclass
class RequestState:
    """One request in one engine."""

    request: int
    title: str = ""
    follow_up: bool = False
    prompt_tokens: int = 0  # by the local tokenizer
    asked: str = ""  # what the model reads: token i ends at `offsets[i]`, the first one is at `first_position`
    offsets: list[int] = field(default_factory=list)
    first_position: int = 0
    submitted_clock_s: float = 0.0
    status: str = "queued"
    prefill: events.Prefill | None = None
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    first_token_clock_s: float | None = None
    last_token_clock_s: float | None = None
    interval_s: float | None = None  # between tokens, smoothed over SMOOTHING_S of the engine's clock
    outcome: events.Outcome | None = None
    differs: list[bool] = field(default_factory=list)  # token by token, against the paged engine's
    first_difference: int | None = None
    traffic: Traffic = field(default_factory=Traffic)
    decision: events.Decision | None = None  # of an engine that chooses among others
    text_only: bool = False  # of a server that was sent the conversation as text, and has a tokenizer of its own

    @property
    def counted_tokens(self) -> int | None:
        """How many tokens were asked; where only text was sent, of the whole conversation as the server counted it:
        None while it has not."""
        if not self.text_only:
            return self.prompt_tokens
        return self.outcome.prompt_tokens or None if self.outcome is not None else None

    @property
    def ttft_s(self) -> float | None:
        if self.outcome is not None and self.outcome.ttft_s is not None:
            return self.outcome.ttft_s
        if self.first_token_clock_s is None:
            return None
        return max(0.0, self.first_token_clock_s - self.submitted_clock_s)

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first."""
        if self.outcome is not None and self.outcome.tpot_s is not None:
            return self.outcome.tpot_s
        if len(self.tokens) < 2 or self.first_token_clock_s is None or self.last_token_clock_s is None:
            return None
        return (self.last_token_clock_s - self.first_token_clock_s) / (len(self.tokens) - 1)

    @property
    def tokens_per_s(self) -> float | None:
        """While decoding, smoothed; the mean once the request is done."""
        if self.outcome is not None and self.outcome.decode_tok_s is not None:
            return self.outcome.decode_tok_s
        if self.outcome is not None:
            return _per_second(self.tpot_s)
        return _per_second(self.interval_s)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add_token(self, event: events.Token) -> None:
        self.text_only = self.text_only or event.token_id == events.UNKNOWN_TOKEN
        self.tokens.append(event.token_id)
        self.texts.append(event.text)
        if self.last_token_clock_s is None:
            self.first_token_clock_s = event.clock_s
        else:
            gap_s = max(0.0, event.clock_s - self.last_token_clock_s)
            weight = 1 - math.exp(-gap_s / SMOOTHING_S)
            self.interval_s = gap_s if self.interval_s is None else self.interval_s + weight * (gap_s - self.interval_s)
        self.last_token_clock_s = max(event.clock_s, self.last_token_clock_s or 0.0)  # another's clock may go back

    def compare(self, reference: RequestState) -> None:
        """Goes on comparing where it stopped."""
        for index in range(len(self.differs), min(len(self.tokens), len(reference.tokens))):
            if events.UNKNOWN_TOKEN in (self.tokens[index], reference.tokens[index]):
                return  # what is not told is neither the same nor another
            differs = self.tokens[index] != reference.tokens[index]
            self.differs.append(differs)
            if differs and self.first_difference is None:
                self.first_difference = index

    def uncompare(self, index: int) -> None:
        """What was found from token `index` on counts no more: one of the two engines says it again."""
        del self.differs[index:]
        if self.first_difference is not None and self.first_difference >= index:
            self.first_difference = None


@dataclass
class EngineState:
    """One engine's column."""

    id: str
    label: str
    knobs: dict[str, str | float | int | bool | None] = field(default_factory=dict)
    clock_s: float = 0.0
    started_clock_s: float = 0.0  # when the current conversation began
    requests: dict[int, RequestState] = field(default_factory=dict)
    conversation: list[int] = field(default_factory=list)
    memory: events.Memory | None = None
    memory_history: History = field(default_factory=History)  # (cache bytes on device, bytes on host)
    transfer: events.Transfer | None = None
    transfer_history: History = field(default_factory=History)  # (bytes so far, both directions)
    cache: CacheState | None = None
    load: events.ServerLoad | None = None
    load_history: History = field(default_factory=History)  # (share of a server's KV cache in use)

    @property
    def remote(self) -> bool:
        """Whether it is a server: what is not known of its memory and its transfers is not 0."""
        return self.id == events.SERVER

    @property
    def current(self) -> RequestState | None:
        return self.requests[self.conversation[-1]] if self.conversation else None

    @property
    def cache_bytes(self) -> int | None:
        """What the cache holds on the device, its helpers (partial keys, staging) included."""
        return None if self.memory is None else cache_bytes(self.memory.device_bytes)

    @property
    def host_bytes(self) -> int | None:
        return None if self.memory is None else sum(self.memory.host_bytes.values())

    @property
    def disk_bytes(self) -> int:
        return 0 if self.memory is None else sum(self.memory.disk_bytes.values())


@dataclass
class PromptState:
    request: int
    title: str
    text: str
    offsets: list[int]
    prompt_tokens: int
    first_position: int
    follow_up: bool


@dataclass
class RunState:
    """All that the screen shows."""

    run: str = ""
    loading: events.Loading | None = None
    stages: list[str] = field(default_factory=list)
    started: events.RunStarted | None = None
    status: str = "loading"
    end: str = ""  # why the worker ended, until another one begins
    prompts: list[PromptState] = field(default_factory=list)
    prompts_total: int = 0
    titles: list[str] = field(default_factory=list)  # of the whole stream, where the worker has told
    engines: dict[str, EngineState] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    notices: list[events.Notice] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def clock_s(self) -> float:
        """The race's time: the furthest of the fair clocks."""
        return max((engine.clock_s for engine in self.engines.values()), default=0.0)

    @property
    def busy(self) -> bool:
        return any(r.outcome is None for engine in self.engines.values() for r in engine.requests.values())

    @property
    def over(self) -> bool:
        """Whether nothing more comes: the worker has ended, or whoever told of it has."""
        return self.status in ("ended", "gone")

    @property
    def prompt(self) -> PromptState | None:
        """The prompt that is furthest along in any engine."""
        current = [engine.conversation[-1] for engine in self.engines.values() if engine.conversation]
        latest = max(current, default=None)
        return next((p for p in self.prompts if p.request == latest), None)

    def engine_for(self, event: events.Event) -> EngineState:
        if event.engine not in self.engines:
            if len(self.engines) >= MOST_ENGINES:
                raise ValueError("too many engines")
            label = events.ENGINE_LABELS.get(event.engine, event.engine)
            self.engines[event.engine] = EngineState(event.engine, label)
        return self.engines[event.engine]

    def apply_all(self, batch: Iterable[events.Event]) -> None:
        for event in batch:
            self.apply(event)

    def apply(self, event: events.Event) -> None:
        """Takes one event in. Raises ValueError when a cache picture fits neither the run nor the one before, and
        for more engines than there can be."""
        if event.run and event.run != self.run:
            self.run = event.run
            self._forget()
        self.wall_s = max(self.wall_s, event.wall_s)
        self.machine.hear(event)
        if event.engine:
            engine = self.engine_for(event)
            engine.clock_s = max(engine.clock_s, event.clock_s)
        handler = _HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def _forget(self) -> None:
        self.prompts.clear()
        self.titles.clear()
        self.prompts_total = 0
        for engine in self.engines.values():
            self.engines[engine.id] = EngineState(engine.id, engine.label, engine.knobs)

    def _begin_again(self) -> None:
        """Another worker after one that ended: nothing of that one's is there any more."""
        self.loading = self.started = None
        self.status, self.end = "loading", ""
        self.stages.clear()
        self._forget()
        self.engines = {}

    def _request(self, engine: EngineState, request: int) -> RequestState:
        """The request, made the engine's current one."""
        state = engine.requests.get(request)
        if state is None:
            state = engine.requests[request] = RequestState(request, submitted_clock_s=engine.clock_s)
        if request not in engine.conversation:
            if not state.follow_up:
                engine.conversation.clear()
                engine.started_clock_s = state.submitted_clock_s
                engine.memory_history.clear()
                engine.transfer_history.clear()
                engine.load_history.clear()
                engine.cache = None
            engine.conversation.append(request)
        return state

    def _on_loading(self, event: events.Loading) -> None:
        if self.end:
            self._begin_again()
        if self.loading is None or self.loading.stage != event.stage:
            self.stages.append(event.stage)
        self.loading = event

    def _on_run_started(self, event: events.RunStarted) -> None:
        """Also said within a run, when knobs or engines change between two prompts: then the prompts stay."""
        if self.end:
            self._begin_again()
        self.started = event
        self.loading = None
        self.stages.clear()
        self.status = "idle" if self.status == "loading" else self.status
        before, self.engines = self.engines, {}
        for info in event.engines:
            engine = before.get(info.id) or EngineState(info.id, info.label)
            engine.label, engine.knobs = info.label, dict(info.knobs)
            self.engines[info.id] = engine

    def _on_submitted(self, event: events.Submitted) -> None:
        if all(p.request != event.request for p in self.prompts):
            self.prompts.append(
                PromptState(
                    event.request,
                    event.title,
                    event.text,
                    event.offsets,
                    event.prompt_tokens,
                    event.first_position,
                    event.follow_up,
                )
            )
        self.prompts_total = max(event.prompts_total, len(self.prompts))
        for engine in [self.engine_for(event)] if event.engine else list(self.engines.values()):
            engine.clock_s = max(engine.clock_s, event.clock_s)
            if event.request in engine.conversation:  # run again
                engine.conversation.clear()
            engine.requests[event.request] = RequestState(
                event.request,
                event.title,
                event.follow_up,
                event.prompt_tokens,
                event.text,
                event.offsets,
                event.first_position,
                engine.clock_s,
            )
            if engine.current is None or engine.current.outcome is not None:
                self._request(engine, event.request)

    def _on_prefill(self, event: events.Prefill) -> None:
        request = self._request(self.engine_for(event), event.request)
        request.prefill = event
        request.status = "prefill"
        request.prompt_tokens = request.prompt_tokens or event.tokens_total

    def _on_token(self, event: events.Token) -> None:
        engine = self.engine_for(event)
        request = self._request(engine, event.request)
        request.status = "decode"
        if event.index < len(request.tokens):  # preempted and recomputed: the engine says again what it said
            del request.tokens[event.index :], request.texts[event.index :]
            for other in self.engines.values() if engine.id == PAGED else [engine]:
                if event.request in other.requests:
                    other.requests[event.request].uncompare(event.index)
        request.add_token(event)
        paged = self.engines.get(PAGED)
        reference = paged.requests.get(event.request) if paged is not None else None
        if reference is None:
            return
        for other in self.engines.values():
            compared = other.requests.get(event.request)
            if compared is not None and other is not paged and (other is engine or engine is paged):
                compared.compare(reference)

    def _on_cache(self, event: events.Cache) -> None:
        from kvtui import cache_state  # numpy: with the first picture, not with the first frame

        cache_state.check_room(self.started, event)
        engine = self.engine_for(event)
        cache_state.check_total([other.cache for other in self.engines.values() if other is not engine], event)
        self._request(engine, event.request)
        engine.cache = cache_state.seen(engine.cache, event) or engine.cache

    def _on_heads(self, event: events.Heads) -> None:
        from kvtui import cache_state

        cache_state.check_room(self.started, event)
        engine = self.engine_for(event)
        if engine.cache is not None and event.request in engine.conversation:
            caches = [other.cache for other in self.engines.values() if other.cache is not None]
            cache_state.keep_heads(caches, engine.cache, event)

    def _on_memory(self, event: events.Memory) -> None:
        engine = self.engine_for(event)
        engine.memory = event
        engine.memory_history.add(event.clock_s, cache_bytes(event.device_bytes), float(sum(event.host_bytes.values())))

    def _on_transfer(self, event: events.Transfer) -> None:
        engine = self.engine_for(event)
        engine.transfer = event
        self.machine.add_transfer(event)
        if engine.current is not None and engine.current.tokens:
            engine.current.traffic.add(event)
        history = engine.transfer_history
        total = event.h2d_total_bytes + event.d2h_total_bytes
        before = total - event.h2d_bytes - event.d2h_bytes
        start_s = event.clock_s - event.span_s
        if not history.clock_s or history.clock_s[-1] < start_s:
            history.add(start_s, float(before))
        history.add(event.clock_s, float(total))

    def _on_server_load(self, event: events.ServerLoad) -> None:
        engine = self.engine_for(event)
        engine.load = event
        if event.compares is False and engine.current is not None and engine.current.outcome is None:
            engine.current.text_only = True
        if event.kv_usage is not None:
            engine.load_history.add(event.clock_s, event.kv_usage)

    def _on_decision(self, event: events.Decision) -> None:
        self._request(self.engine_for(event), event.request).decision = event

    def _on_outcome(self, event: events.Outcome) -> None:
        request = self._request(self.engine_for(event), event.request)
        request.outcome = event
        request.status = event.outcome

    def _on_sample(self, event: events.Sample) -> None:
        self.machine.add_sample(event)

    def _on_status(self, event: events.Status) -> None:
        if not event.engine:
            if event.state == "ended" and event.detail:
                self.end = event.detail
            if not self.end or event.state in ("ended", "gone"):  # a recording's pause brings no worker back
                self.status = event.state
            if event.stream is not None:
                self.titles = list(event.stream)
                self.prompts_total = max(len(self.titles), len(self.prompts))
        elif event.request >= 0:
            engine = self.engine_for(event)
            request = engine.requests.get(event.request)
            if request is not None and request.outcome is None:
                request.status = event.state
                if event.state in ("prefill", "decode"):
                    self._request(engine, event.request)

    def _on_notice(self, event: events.Notice) -> None:
        self.notices.append(event)
        del self.notices[:-NOTICES_KEPT]


_HANDLERS: dict[type[events.Event], Any] = {
    events.Loading: RunState._on_loading,
    events.RunStarted: RunState._on_run_started,
    events.Submitted: RunState._on_submitted,
    events.Prefill: RunState._on_prefill,
    events.Token: RunState._on_token,
    events.Cache: RunState._on_cache,
    events.Heads: RunState._on_heads,
    events.Memory: RunState._on_memory,
    events.Transfer: RunState._on_transfer,
    events.ServerLoad: RunState._on_server_load,
    events.Decision: RunState._on_decision,
    events.Outcome: RunState._on_outcome,
    events.Sample: RunState._on_sample,
    events.Status: RunState._on_status,
    events.Notice: RunState._on_notice,
}


def _per_second(interval_s: float | None) -> float | None:
    return 1 / interval_s if interval_s is not None and interval_s >= SHORTEST_S else None


def cache_bytes(device_bytes: dict[str, int]) -> int:
    return sum(size for kind, size in device_bytes.items() if kind not in NOT_CACHE)
