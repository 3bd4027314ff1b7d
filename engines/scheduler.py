"""Requests in, steps out: continuous batching, chunked prefill, preemption by recompute.

After vLLM (Kwon et al., SOSP 2023, 4.5; chunked prefill as in Sarathi-Serve, OSDI 2024): every running sequence has
pending tokens, one while it decodes, more while it prefills. A step takes from each in order of arrival, up to
`chunk_tokens`; then it admits those who wait. Who finds no room preempts the newest, which starts again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from engines.caches.base import Cache
from engines.errors import OutOfMemory
from engines.sequence import Sequence, Step

CHUNK_TOKENS = 2048
MAX_RUNNING = 64


class Scheduler:
    """`failed` is called with a sequence that can never fit, and the reason; `reclaim` frees what only waits for a
    follow-up, and says whether there was any."""

    def __init__(
        self,
        cache: Cache,
        failed: Callable[[Sequence, OutOfMemory], None],
        reclaim: Callable[[], bool],
        chunk_tokens: int = CHUNK_TOKENS,
        max_running: int = MAX_RUNNING,
    ) -> None:
        self.cache, self.failed, self.reclaim = cache, failed, reclaim
        self.chunk_tokens, self.max_running = chunk_tokens, max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._together = max_running  # fewer after a step that did not fit

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence) -> None:
        """A new request; a follow-up keeps what its cache holds and joins the running at once."""
        if sequence.held is not None:
            self.running.append(sequence)
        else:
            self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Ended or cancelled: it takes no further steps. What the cache holds stays until it is released."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._together = min(self.max_running, self._together + 1) if self.has_work else self.max_running

    def fewer(self) -> bool:
        """What runs does not fit together: half as many may, and one more with each that ends. False for one alone."""
        self._together = max(1, len(self.running) // 2)
        return len(self.running) > 1

    def again(self, step: Step) -> None:
        """Those of a step that did not fit wait, in the order in which they came."""
        for span in reversed(list(step)):
            self._preempt(span.sequence)

    def next_step(self, observe: bool = False) -> Step | None:
        """The next step's work, with room reserved for it; None when there is none."""
        work = (self.cache.one_shot and self._one_prompt()) or self._chosen()
        return Step(work, observe=observe) if work else None

    def _one_prompt(self) -> list[tuple[Sequence, list[int]]]:
        """A whole prompt alone in its step, for policies that need all of it at once."""
        for sequence in list(self.running):
            if sequence.pending > 1 and self._reserve(sequence, sequence.pending):
                return [(sequence, sequence.tokens[sequence.computed :])]
        while self.waiting and len(self.running) < self._together:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            self.cache.reuse(sequence)
            if self._reserve(sequence, sequence.pending, newcomer=True):
                return [(sequence, sequence.tokens[sequence.computed :])]
            if sequence in self.waiting:
                break
        return []

    def _chosen(self) -> list[tuple[Sequence, list[int]]]:
        work: list[tuple[Sequence, list[int]]] = []
        left = self.chunk_tokens
        for sequence in list(self.running):
            if sequence not in self.running or left == 0:  # preempted by an older one of this very step
                continue
            count = min(sequence.pending, left, self.cache.piece(sequence))
            if self._reserve(sequence, count):
                work.append((sequence, sequence.tokens[sequence.computed : sequence.computed + count]))
                left -= count
        while not self.cache.one_shot and left and self.waiting and len(self.running) < self._together:
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            self.cache.reuse(sequence)
            count = min(sequence.pending, left, self.cache.piece(sequence))
            if not self._reserve(sequence, count, newcomer=True):
                if sequence in self.waiting:
                    break
                continue
            work.append((sequence, sequence.tokens[sequence.computed : sequence.computed + count]))
            left -= count
        return [(sequence, tokens) for sequence, tokens in work if sequence in self.running]

    def _reserve(self, sequence: Sequence, count: int, newcomer: bool = False) -> bool:
        """Room for the sequence's next tokens, at the cost of the newest if need be; a newcomer preempts nobody."""
        while True:
            try:
                self.cache.reserve(sequence, count)
                return True
            except OutOfMemory as fault:
                if self.reclaim():
                    continue
                if len(self.running) == 1:
                    self.finish(sequence)
                    self.cache.release(sequence)
                    self.failed(sequence, fault)
                    return False
                if newcomer:
                    self._wait(sequence)
                    return False
                victim = self.running[-1]
                self._preempt(victim)
                if victim is sequence:
                    return False

    def _preempt(self, sequence: Sequence) -> None:
        """Its tokens so far are its prompt next time."""
        self._wait(sequence)
        self.preemptions += 1

    def _wait(self, sequence: Sequence) -> None:
        """Gives its memory back and waits in front of the queue."""
        self.running.remove(sequence)
        self.cache.release(sequence)
        self.waiting.appendleft(sequence)
