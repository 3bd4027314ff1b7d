"""`Engine`: a model, one cache policy, a scheduler, pools, a link, and a clock of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterable

import torch
from torch import Tensor

from engines import events
from engines.accounts import memory
from engines.answering import Answering
from engines.caches.base import Cache, CacheView, HeadsView
from engines.caches.infinigen import InfiniGenCache
from engines.errors import BadRequest, OutOfMemory
from engines.forward import at_once, forward, surprisal, threads
from engines.graphs import Graphs
from engines.pace import Pace
from engines.sampling import sample
from engines.scheduler import CHUNK_TOKENS, Scheduler
from engines.sequence import Sampling, Sequence, Span, Step
from engines.sizes import counted, size
from engines.upload import upload


class Engine(Answering):
    """Submit requests, call `advance` until `has_work` is False; or let `generate` do so. The sequence that
    ended last stays in the cache, until a new request comes or its memory is needed, so that a follow-up can continue
    it and a person can look at it."""

    def __init__(self, id: str, cache: Cache, chunk_tokens: int = CHUNK_TOKENS, graphs: Graphs | None = None) -> None:
        super().__init__(id, cache.around)
        self.cache, self.graphs = cache, graphs
        self.scheduler = Scheduler(cache, self._failed, self.forget_conversation, chunk_tokens)
        self._ended: Sequence | None = None
        self._work: Generator[bool, None, None] | None = None
        self._step: Step | None = None

    @property
    def has_work(self) -> bool:
        return self._work is not None or self.scheduler.has_work

    def knobs(self) -> dict[str, str | float | int | bool | None]:
        values = dataclasses.asdict(getattr(self.cache, "knobs"))  # noqa: B009 - each policy has its own dataclass
        return {k: "inf" if isinstance(v, float) and math.isinf(v) else v for k, v in values.items()}

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
        """Queues a request; a follow-up's tokens come after the latest conversation, with its last answer. `turns`
        says who speaks from which of `token_ids` on.

        Raises BadRequest for an empty prompt, one that leaves no room for a new token in the model's context, token
        ids outside the vocabulary, negative counts, or a follow-up to nothing.
        """
        earlier = self._ended if follow_up else None
        if follow_up and (earlier is None or self.scheduler.has_work):
            raise BadRequest("a follow-up needs an earlier conversation that has ended")
        before = len(earlier.tokens) if earlier else 0
        tokens = self.checked_request(
            token_ids, max_new_tokens, before, temperature=temperature, top_p=top_p, seed=seed
        )
        sampling = Sampling(temperature, top_p, seed)
        room = self.model.context_limit - before - len(tokens)
        sequence = Sequence(request, tokens, len(tokens), min(max_new_tokens, room), sampling, ignore_eos)
        sequence.turns = list(turns)
        sequence.generator = torch.Generator().manual_seed(seed)
        sequence.pace = Pace.from_now(self.clock_s, self.link.traffic)
        if earlier is not None:
            self._ended = None
            sequence.follow(earlier)
        elif not self.scheduler.has_work:
            self.forget_conversation()
        self.scheduler.add(sequence)

    def adopt(self, token_ids: list[int], blocks: Iterable[list[tuple[Tensor, Tensor]]], room: int = 0) -> None:
        """Makes `token_ids` the conversation that a follow-up continues, with KV that was computed elsewhere (see
        InfiniGenCache.adopt) and room for so many tokens more. Raises BadRequest for engines that cannot."""
        if not isinstance(self.cache, InfiniGenCache):
            raise BadRequest(f"engine {self.id} takes no KV from elsewhere")
        self.reset()
        sequence = Sequence(0, token_ids, len(token_ids), room, Sampling())
        with torch.inference_mode():
            try:
                self.cache.adopt(sequence, blocks)
            except OutOfMemory:
                self.cache.release(sequence)
                raise
        self._ended = sequence

    def advance(self, observe: bool = False) -> list[events.Event]:
        """Runs one slice on the engine's clock: a decode step, or one layer of a prefill step. Returns what happened.
        Out of memory is an Outcome, not an exception."""
        with torch.inference_mode():
            if self._work is None:
                step = self.scheduler.next_step(observe)
                if step is None:
                    return self._drain()
                self._work, self._step = self._run(step), step
            try:
                with threads(self.model, self._step), self.clock.running():
                    ended = next(self._work)
            except OutOfMemory as fault:
                self._abort(fault)
                return self._drain()
            except Exception:  # a fault of ours: nothing half-done stays behind
                self._work = None
                self.cancel()
                raise
            self.link.settle()
            if ended:
                self._work = None
            return self._drain()

    def cancel(self) -> list[events.Event]:
        if self._work is not None:
            self._work.close()
            self._work = None
            if self._step is not None:
                self.cache.abort(self._step)
        for sequence in [*self.scheduler.running, *self.scheduler.waiting]:
            self.scheduler.finish(sequence)
            self.cache.release(sequence)
            self._outcome(sequence, "cancelled", "")
        return self._drain()

    def reset(self) -> None:
        self.cancel()
        self.forget_conversation()
        self.cache.forget()
        if self.graphs is not None:
            self.graphs.clear()
        self.scheduler.preemptions = 0
        self.device_pool.reset_peaks()
        self.host_pool.reset_peaks()
        self._transfers.begin()

    def forget_conversation(self) -> bool:
        """Frees the conversation that has ended; says whether there was one."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self.cache.release(ended)
        return ended is not None

    def continue_logits(self, token_ids: Iterable[int], rows: int = 1) -> Tensor:
        sequence = self._latest()
        tokens = self.checked_tokens(token_ids, "continue_logits needs at least one token")
        if not 1 <= rows <= len(tokens):
            raise BadRequest(f"rows is within 1 .. {len(tokens)}, the number of tokens, not {rows!r}")
        if sequence.computed + len(tokens) > self.model.context_limit:
            raise BadRequest(f"{counted(len(tokens), 'more token')} exceed the context of {self.model.context_limit:,}")
        step = Step([(sequence, tokens)], keep=False)
        with torch.inference_mode():
            hidden = at_once(self.cache, step)
            logits = self.model.decoder.logits(hidden[-rows:]).clone()
            return logits[0] if rows == 1 else logits

    def kept_positions(self, layer: int) -> Tensor:
        if not isinstance(layer, int) or not 0 <= layer < self.model.layers:
            raise BadRequest(f"layer is a whole number in 0 .. {self.model.layers - 1}, not {layer!r}")
        return self.cache.kept_positions(self._latest(), layer)

    def view(self, request: int) -> CacheView | None:
        sequence = self._shown(request)
        return self.cache.view(sequence) if sequence is not None else None

    def heads(self, request: int, layer: int) -> HeadsView | None:
        sequence = self._shown(request)
        return self.cache.heads(sequence, layer) if sequence is not None else None

    def _shown(self, request: int) -> Sequence | None:
        for sequence in self._sequences():
            if sequence.request == request and sequence.held is not None and sequence.computed:
                return sequence
        return None

    def memory(self) -> events.Memory:
        return memory(self.id, self.cache, self._sequences(), self.scheduler.preemptions)

    def _run(self, step: Step) -> Generator[bool, None, None]:
        """One step: forward, then a token for every sequence whose pending tokens are all in. Yields False after each
        layer while there is prefill in it, and True at its end."""
        prefills = [span for span in step if span.count > 1 or span.sequence.new_tokens == 0]
        self.cache.begin(step)
        hidden = None if self.graphs is None or prefills else self.graphs.decode(self.cache, step)
        if hidden is None:
            hidden = yield from self._layers(step, prefills)
        if self.cache.learns:
            for span in prefills:
                self.cache.learn(span, surprisal(self.model, span, hidden))
        self.cache.end(step)
        self._step = None
        ready = [span for span in step if span.sequence.pending == 0]
        wanting = [span for span in ready if span.sequence.max_new_tokens > 0]
        if wanting:
            rows = upload([span.row + span.count - 1 for span in wanting], torch.int64, hidden.device)
            logits = self.model.decoder.logits(hidden.index_select(0, rows))
            for span, (token, logprob) in zip(
                wanting, sample(logits, [span.sequence for span in wanting]), strict=True
            ):
                self._took(span.sequence, token, logprob)
        for span in ready:
            if span.sequence.max_new_tokens == 0:
                self._end(span.sequence)
        yield True

    def _layers(self, step: Step, prefills: list[Span]) -> Generator[bool, None, Tensor]:
        layers = forward(self.cache, step)
        while True:
            try:
                layer = next(layers)
            except StopIteration as ended:
                return ended.value
            if prefills:
                for span in prefills:
                    self._prefill_event(span, layer + 1)
                yield False

    def _took(self, sequence: Sequence, token: int, logprob: float) -> None:
        """A token was sampled. Its time is the clock's, which is running: the step's work lies behind it."""
        now_s = self.clock_s
        sequence.tokens.append(token)
        sequence.pace.token(now_s)
        self._out.append(
            events.Token(
                engine=self.id,
                clock_s=now_s,
                request=sequence.request,
                index=sequence.new_tokens - 1,
                token_id=token,
                text="",
                logprob=logprob,
            )
        )
        stopped = token in self.model.eos_ids and not sequence.ignore_eos
        if stopped or sequence.new_tokens >= sequence.max_new_tokens:
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self.forget_conversation()
        self._ended = sequence
        self._outcome(sequence, "ok", "")

    def _outcome(self, sequence: Sequence, outcome: str, detail: str) -> None:
        self._out.append(
            events.Outcome(
                engine=self.id,
                clock_s=self.clock_s,
                request=sequence.request,
                outcome=outcome,
                detail=detail,
                prompt_tokens=sequence.prompt_tokens,
                new_tokens=sequence.new_tokens,
                **sequence.pace.figures(sequence.new_tokens, self.link.traffic),
            )
        )

    def _prefill_event(self, span: Span, layers_done: int) -> None:
        last = layers_done == self.model.layers
        self._out.append(
            events.Prefill(
                engine=self.id,
                clock_s=self.clock_s,
                request=span.sequence.request,
                tokens_done=span.position + (span.count if last else 0),
                tokens_total=len(span.sequence.tokens),
                layers_done=layers_done,
                layers_total=self.model.layers,
                step_tokens=0 if last else span.count,
            )
        )

    def _failed(self, sequence: Sequence, fault: OutOfMemory) -> None:
        reached = max(sequence.computed, len(sequence.tokens))
        detail = (
            f"out of {fault.what} at {counted(reached, 'token')}: needs {size(fault.needed_bytes)} for {fault.kind} "
            f"beside {size(fault.used_bytes)} in use, cap {size(fault.cap_bytes)}"
        )
        self._outcome(sequence, "device_oom" if fault.tier == "device" else "error", detail)

    def _abort(self, fault: OutOfMemory) -> None:
        """The step under way does not fit: its sequences wait for others to end, or for what only a follow-up would
        need to go. One that is alone can never fit, and ends."""
        self._work, step, self._step = None, self._step, None
        if step is None:
            return
        self.cache.abort(step)
        if self.forget_conversation() or self.scheduler.fewer():
            self.scheduler.again(step)
            return
        for span in step:
            self._failed(span.sequence, fault)
            self.scheduler.finish(span.sequence)
            self.cache.release(span.sequence)

    def _latest(self) -> Sequence:
        if self._ended is None:
            raise BadRequest("the cache holds no conversation: call generate first")
        return self._ended

    def _sequences(self) -> list[Sequence]:
        """All that hold memory: the running, and the one that has ended."""
        return self.scheduler.running + ([self._ended] if self._ended is not None else [])
