"""What can be asked of anything that answers requests: one engine, or several behind one door."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from engines import events
from engines.accounts import Transfers
from engines.caches.base import CacheView, HeadsView, Surroundings
from engines.errors import BadRequest
from engines.sequence import Forced
from engines.sizes import counted


@dataclass
class Result:
    """What `generate` gives back. `outcome` is "ok", "device_oom", "error" or "cancelled"; bytes are peaks and totals
    since the engine was made or reset; times are on the engine's own clock, seconds (None where nothing came)."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ttft_s: float | None = None
    tpot_s: float | None = None
    decode_tok_s: float | None = None
    device_kv_peak_bytes: int = 0
    device_peak_bytes: int = 0
    host_kv_peak_bytes: int = 0
    h2d_bytes: int = 0
    d2h_bytes: int = 0
    outcome: str = "ok"
    detail: str = ""


class Answering(ABC):
    """`submit`, then `advance` until `has_work` is False; or `generate`, which does both. `id` is one of
    `events.ENGINE_LABELS`; the pools, the link and the clock are those of its surroundings."""

    def __init__(self, id: str, around: Surroundings) -> None:
        self.id, self.label = id, events.ENGINE_LABELS[id]
        self.model, self.clock, self.link = around.model, around.clock, around.link
        self.device_pool, self.host_pool = around.device, around.host
        self._transfers = Transfers(around)
        self._out: list[events.Event] = []
        self._generated = 0

    @property
    def clock_s(self) -> float:
        return self.clock.now_s

    @property
    def link_info(self) -> events.LinkInfo:
        return self.link.info

    def start_clock_at(self, seconds: float) -> None:
        """Moves the clock forward, never back: all engines begin a round at one time."""
        self.clock.wait_until(seconds)

    def transfer(self) -> events.Transfer:
        """What the link did since the last call."""
        return self._transfers.take(self.id)

    def _drain(self) -> list[events.Event]:
        out, self._out = self._out, []
        return out

    @abstractmethod
    def knobs(self) -> dict[str, str | float | int | bool | None]:
        """The settings by name; infinities as "inf"."""

    @property
    @abstractmethod
    def has_work(self) -> bool: ...

    @abstractmethod
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
        forced: Forced | None = None,
    ) -> None:
        """Queues a request. Raises BadRequest for what cannot be served."""

    @abstractmethod
    def advance(self, observe: bool = False) -> list[events.Event]:
        """Runs one slice of the work, and returns what happened."""

    @abstractmethod
    def cancel(self) -> list[events.Event]:
        """Ends all requests, running and waiting, with outcome "cancelled", and frees what they hold."""

    @abstractmethod
    def reset(self) -> None:
        """Cancels, frees everything and forgets: peaks, prefix blocks, preemptions."""

    @abstractmethod
    def memory(self) -> events.Memory:
        """What is in use now, and the peaks."""

    @abstractmethod
    def continue_logits(self, token_ids: Iterable[int], rows: int = 1) -> Tensor:
        """Logits of the token after `token_ids`, fed after what the cache now holds: float32 [vocab]; with `rows` > 1,
        after each of the last so many of them: float32 [rows, vocab]. The cache stays as it was, so that many questions
        can be asked of one context. Raises BadRequest when there is no context."""

    @abstractmethod
    def kept_positions(self, layer: int) -> Tensor:
        """int64 [kv_heads, kept]: true positions whose KV the latest conversation still has in `layer`. Raises
        BadRequest for a layer that the model does not have, or when there is no conversation."""

    @abstractmethod
    def view(self, request: int) -> CacheView | None:
        """The picture of a request's cache, or None when it holds nothing (yet, or any more)."""

    @abstractmethod
    def heads(self, request: int, layer: int) -> HeadsView | None:
        """One layer of that picture, head by head, or None as for `view`."""

    def generate(
        self,
        token_ids: Iterable[int],
        max_new_tokens: int,
        *,
        follow_up: bool = False,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        ignore_eos: bool = False,
        turns: Iterable[tuple[str, int]] = (),
        forced: Forced | None = None,
    ) -> Result:
        """Runs one request to its end. `follow_up` continues the conversation that the cache holds; otherwise a fresh
        one begins. `forced` is the answer, where it is known: then the log-probabilities are those of its tokens, as
        generation would have given them. Raises BadRequest as `submit` does."""
        if self.has_work:
            raise BadRequest("the engine is busy with submitted requests")
        self._generated += 1
        self.submit(
            self._generated,
            list(token_ids),
            max_new_tokens,
            follow_up=follow_up,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            ignore_eos=ignore_eos,
            turns=turns,
            forced=forced,
        )
        result = Result()
        while self.has_work:
            for event in self.advance():
                if isinstance(event, events.Token):
                    assert event.logprob is not None, "only servers keep that to themselves"
                    result.tokens.append(event.token_id)
                    result.logprobs.append(event.logprob)
                elif isinstance(event, events.Outcome):
                    result.outcome, result.detail = event.outcome, event.detail
                    result.ttft_s, result.tpot_s = event.ttft_s, event.tpot_s
                    result.decode_tok_s = event.decode_tok_s
                    result.h2d_bytes, result.d2h_bytes = event.h2d_bytes, event.d2h_bytes
        memory = self.memory()
        result.device_kv_peak_bytes, result.device_peak_bytes = memory.device_kv_peak_bytes, memory.device_peak_bytes
        result.host_kv_peak_bytes = memory.host_kv_peak_bytes
        return result

    def checked_tokens(self, token_ids: Iterable[int], empty: str = "the prompt is empty") -> list[int]:
        """The ids as a list; raises BadRequest when there are none or the vocabulary has no such id."""
        tokens = [int(token) for token in token_ids]
        if not tokens:
            raise BadRequest(empty)
        if min(tokens) < 0 or max(tokens) >= self.model.shape.vocab:
            raise BadRequest(f"token ids must lie in 0 .. {self.model.shape.vocab - 1}")
        return tokens

    def new_tokens(self, wanted: int, before: int, forced: Forced | None) -> int:
        """How many tokens are to come after `before`: as many as wanted, while the context lasts. Of a forced answer
        all of them, wanted or not; its last one is never fed, so it may be the first beyond the context. Raises
        BadRequest when it is empty, too long, or not of this vocabulary."""
        room = self.model.context_limit - before
        if forced is None:
            return min(wanted, room)
        answer = len(self.checked_tokens(forced.to_come, "the forced answer is empty"))
        if answer > room + 1:
            raise BadRequest(f"the forced answer has {counted(answer, 'token')}, and the context has room for {room:,}")
        return answer

    def checked_request(
        self,
        token_ids: Iterable[int],
        max_new_tokens: int,
        before: int,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[int]:
        """The prompt's ids, after `before` tokens of the conversation. Raises BadRequest for an empty prompt, one that
        is longer than the context, token ids outside the vocabulary, and sampling out of range."""
        tokens = self.checked_tokens(token_ids)
        if not isinstance(max_new_tokens, int) or max_new_tokens < 0:
            raise BadRequest(f"max_new_tokens is a whole number, 0 or more, not {max_new_tokens!r}")
        if temperature != 0 and not 1e-3 <= temperature <= 1e3:
            raise BadRequest(f"temperature is 0 (greedy) or within 0.001 .. 1000, not {temperature!r}")
        if not 0 < top_p <= 1:
            raise BadRequest(f"top_p is a share above 0 and at most 1, not {top_p!r}")
        if not isinstance(seed, int) or not 0 <= seed < 1 << 63:
            raise BadRequest(f"seed is a whole number in 0 .. 2^63 - 1, not {seed!r}")
        limit = self.model.context_limit
        if before + len(tokens) > limit:
            over = before + len(tokens) - limit
            beside = f" after {before:,} of the conversation" if before else ""
            raise BadRequest(
                f"the prompt has {len(tokens):,} tokens{beside}: {over:,} more than the context of {limit:,}"
            )
        return tokens
