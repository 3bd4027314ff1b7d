"""What can be asked of anything that answers requests: one engine, or several behind one door."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from engines import events
from engines.errors import BadRequest
from engines.model import Model


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
    """`submit`, then `advance` until `has_work` is False; or `generate`, which does both."""

    model: Model
    _generated = 0

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
    ) -> None:
        """Queues a request. Raises BadRequest for what cannot be served."""

    @abstractmethod
    def advance(self, observe: bool = False) -> list[events.Event]:
        """Runs one slice of the work, and returns what happened."""

    @abstractmethod
    def memory(self) -> events.Memory:
        """What is in use now, and the peaks."""

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
    ) -> Result:
        """Runs one request to its end. `follow_up` continues the conversation that the cache holds; otherwise a fresh
        one begins. Raises BadRequest as `submit` does."""
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
        )
        result = Result()
        while self.has_work:
            for event in self.advance():
                if isinstance(event, events.Token):
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
