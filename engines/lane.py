"""One engine's lane in the race: its request, its clock within the run, and its events made complete."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from engines.cells import CellsEncoder, encode_heads
from engines.chat import Rendered
from engines.detokenize import Detokenizer
from engines.errors import BadRequest, DeviceOutOfMemory, KvtuiError
from engines.events import UNKNOWN_TOKEN, Event, Outcome, Prefill, Status, Submitted, Token
from engines.sizes import counted

_PICTURE_INTERVAL_S = 0.1
_HEADS_INTERVAL_S = 0.25

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Turn:
    """What every lane is asked at the same moment. A follow-up's `rendered` begins by closing the model's last turn.
    `sampling` holds the remaining keywords of `Engine.submit`. `text` is the user's own, for engines that read it."""

    request: int
    title: str
    rendered: Rendered
    follow_up: bool
    max_new_tokens: int
    prompts_total: int
    sampling: dict[str, Any]
    ticket: str = ""
    text: str = ""


class Lane:
    """Drives one engine. `emit` takes events that lack only `run` and `wall_s`; `wall` counts seconds.

    The run's clock starts at 0 whatever the engine's own clock says, so an engine that has raced before and one that
    was just built start alike. `engine` is None when it could not be built: `fault` says why, and every request ends
    with it.
    """

    def __init__(
        self,
        engine_id: str,
        engine: Any,
        model: Any,
        emit: Emit,
        wall: Callable[[], float],
        *,
        observe: bool,
        fault: KvtuiError | None = None,
    ) -> None:
        self.id = engine_id
        self.engine = engine
        self.running = False
        self._fault = fault
        self._model = model
        self._send = emit
        self._wall = wall
        self._observe = observe
        self._base_s = 0.0 if engine is None else engine.clock_s
        self._state = "idle"
        self._cells = CellsEncoder()
        self._shown_at = self._heads_at = float("-inf")
        self._turns = 0  # of the layers that are seen head by head
        self.focus: int | None = None  # the layer that a person looks at
        self._request = -1
        self._detokenizer = Detokenizer(model.tokenizer)
        self._context_tokens = 0
        self._prompt_end = 0
        self._last_token: int | None = None
        self._ended = "ok"

    @property
    def clock_s(self) -> float:
        """Seconds of this engine's own time since the run began."""
        return 0.0 if self.engine is None else self.engine.clock_s - self._base_s

    @property
    def next_s(self) -> float | None:
        """When its next slice begins: now, on its clock. What a server sent has its own time (None: nothing came)."""
        if not getattr(self.engine, "remote", False):
            return self.clock_s
        at_s = self.engine.next_s
        return None if at_s is None else at_s - self._base_s

    @property
    def conversation_tokens(self) -> int:
        """Of the conversation that a follow-up would continue here; 0 where there is none."""
        return 0 if self.engine is None or self._ended != "ok" else self._context_tokens

    def start_clock_at(self, seconds: float) -> None:
        if self.engine is not None:
            self.engine.start_clock_at(self._base_s + seconds)

    @property
    def link(self) -> Any:
        """The engine's `Link`; None where there is no engine, and for a server, whose link nobody knows."""
        return getattr(self.engine, "link", None)

    def start_run(self) -> None:
        """Back to an empty cache and a clock of 0."""
        self._reset_engine()
        self.running = False
        self._state = "idle"
        if self.engine is not None:
            self._base_s = self.engine.clock_s

    def submit(self, turn: Turn) -> None:
        """Gives the engine its next request. What it refuses ends the request in this lane at once."""
        self._request = turn.request
        self._detokenizer = Detokenizer(self._model.tokenizer, turn.rendered.token_ids)
        self._shown_at = float("-inf")
        if turn.follow_up:
            token_ids = self._follow(turn)
        else:
            token_ids = turn.rendered.token_ids
            self._context_tokens, self._last_token, self._ended = 0, None, "ok"
        if self._ended != "ok":
            self._finish(self._ended, "the conversation that this prompt follows has ended early in this engine")
            return
        if self.engine is None:
            self._fail(self._fault or RuntimeError("this engine could not be built"))
            return
        self.running = True
        self._set_state("queued")
        try:
            # The last generated token is never fed back, hence the one more.
            room = self._model.context_limit - self._context_tokens - len(token_ids) + 1
            if room < 1:
                raise BadRequest(
                    f"with this prompt the conversation is {counted(1 - room, 'token')} longer than the context of "
                    f"{self._model.context_limit:,}; --truncate cuts such prompts"
                )
            limit = min(turn.max_new_tokens, room)
            skipped = len(turn.rendered.token_ids) - len(token_ids)
            turns = [(role, start - skipped) for role, start in turn.rendered.turns]
            options = {**turn.sampling, "turns": turns}
            if getattr(self.engine, "reads_text", False):
                options["text"] = turn.text
            if getattr(self.engine, "reads_rendered", False):
                options["rendered"] = turn.rendered
            self.engine.submit(turn.request, token_ids, limit, follow_up=turn.follow_up, **options)
            if not turn.follow_up:  # the last conversation has been let go: peaks count from here
                self.engine.device_pool.reset_peaks()
                self.engine.host_pool.reset_peaks()
        except Exception as fault:
            if turn.follow_up and isinstance(fault, BadRequest):
                # Refused before anything was touched: the conversation stays, and can be asked something shorter.
                self._finish("error", str(fault))
                self._ended = "ok"
            else:
                self._fail(fault)
            return
        self._context_tokens += len(token_ids)
        self._prompt_end = self._context_tokens

    def advance(self, *, watched: bool = False) -> bool:
        """One slice of the engine's work; True if anything came of it. Whatever goes wrong in it ends this lane's
        request and nothing else. Observing is not free, so decode steps are observed where a picture follows:
        ten times a second, and always when `watched` step by step."""
        due = self._wall() - self._shown_at >= _PICTURE_INTERVAL_S
        try:
            events = self.engine.advance(observe=self._observe and (watched or due or self._state != "decode"))
            if not events and not self.engine.has_work:
                raise RuntimeError("the engine stopped without saying how the request ended")
        except Exception as fault:
            self._fail(fault)
            return True
        for event in events:
            self._take(event)
        if self.running and due:
            self.show()
        return bool(events)

    def cancel(self) -> None:
        """Ends the running request as "cancelled"."""
        if not self.running:
            return
        try:
            for event in self.engine.cancel():
                self._take(event)
        except Exception as fault:
            self._fail(fault)
        if self.running:
            self._finish("cancelled", "")

    def show(self, *, whole: bool = False) -> None:
        """Emits memory, transfers and the cache's picture as they are now; now and then one layer head by head, and
        if `whole` every one: what stands still is looked at closely. A server tells of itself when it likes."""
        if self.engine is None or getattr(self.engine, "remote", False):
            return
        self._shown_at = self._wall()
        try:
            self._emit(self.engine.memory())
            self._emit(self.engine.transfer())
            if self._observe and (view := self.engine.view(self._request)) is not None:
                self._emit(self._cells.encode(self._request, view))
                self._show_heads(range(view.layers) if whole else self._due_layers(view.layers))
        except Exception:  # after a fault an engine may not know its own state; what counts is the outcome
            traceback.print_exc(file=sys.stderr)

    def _due_layers(self, layers: int) -> list[int]:
        """The next layer in turn; while one is in focus, that one every other time."""
        if self._shown_at - self._heads_at < _HEADS_INTERVAL_S:
            return []
        self._heads_at = self._shown_at
        self._turns += 1
        if self.focus is not None and self.focus < layers and self._turns % 2:
            return [self.focus]
        return [(self._turns if self.focus is None else self._turns // 2) % layers]

    def _show_heads(self, layers: Iterable[int]) -> None:
        for layer in layers:
            if (heads := self.engine.heads(self._request, layer)) is not None:
                self._emit(encode_heads(self._request, layer, heads))

    def _follow(self, turn: Turn) -> list[int]:
        """The tokens of a follow-up in this lane. Where the model has closed its turn itself, the tail's own closing
        tokens are left out. Announced lane by lane, as answers differ in length."""
        tail = turn.rendered
        skip = 0
        if self._last_token in self._model.eos_ids and self._last_token in tail.token_ids[:4]:
            skip = tail.token_ids.index(self._last_token) + 1
        cut = tail.offsets[skip - 1] if skip else 0
        token_ids = tail.token_ids[skip:]
        self._emit(
            Submitted(
                request=turn.request,
                title=turn.title,
                text=tail.text[cut:],
                offsets=[end - cut for end in tail.offsets[skip:]],
                prompt_tokens=len(token_ids),
                first_position=self._context_tokens,
                follow_up=True,
                prompts_total=turn.prompts_total,
                ticket=turn.ticket,
            )
        )
        return token_ids

    def _take(self, event: Event) -> None:
        """Passes an engine's event on, completed, with the changes of state that it implies."""
        event = msgspec.structs.replace(event, engine=self.id, clock_s=event.clock_s - self._base_s)
        match event:
            case Status(state=state):
                self._set_state(state)
                return
            case Outcome():
                self._end(event)
                return
            case Prefill():
                self._set_state("prefill")
            case Token(token_id=token_id, index=index):
                self._set_state("decode")
                self._context_tokens = self._prompt_end + index + 1
                self._last_token = token_id
                if token_id != UNKNOWN_TOKEN:
                    event = msgspec.structs.replace(event, text=self._detokenizer.add(token_id))
        self._send(event)

    def _end(self, outcome: Outcome) -> None:
        self.show(whole=True)
        self._send(outcome)
        self.running = False
        self._ended = outcome.outcome
        self._set_state("failed" if outcome.outcome in ("device_oom", "error") else "idle")

    def _finish(self, outcome: str, detail: str) -> None:
        self._end(Outcome(engine=self.id, clock_s=self.clock_s, request=self._request, outcome=outcome, detail=detail))

    def _fail(self, fault: Exception) -> None:
        """Ends the request with what was raised. A full device is a result; anything unforeseen leaves its traceback
        in the worker's log. Either way the engine is emptied."""
        if isinstance(fault, KvtuiError):
            detail = str(fault)
        else:
            traceback.print_exception(fault, file=sys.stderr)
            detail = f"{type(fault).__name__}: {fault}".splitlines()[0]
        self._finish("device_oom" if isinstance(fault, DeviceOutOfMemory) else "error", detail)
        self._reset_engine()

    def _reset_engine(self) -> None:
        if self.engine is None:
            return
        try:
            self.engine.reset()
        except Exception:  # its next submit will say what is wrong, where a person sees it
            traceback.print_exc(file=sys.stderr)

    def _set_state(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._emit(Status(state=state, request=self._request))

    def _emit(self, event: Event) -> None:
        self._send(msgspec.structs.replace(event, engine=self.id, clock_s=self.clock_s))
