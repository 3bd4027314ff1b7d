"""A request's tokens and how far the cache has come with them; and the step that feeds some of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engines.pace import Pace


@dataclass
class Sampling:
    """Greedy at temperature 0; otherwise from the smallest set of tokens that holds `top_p` of the probability."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(eq=False)
class Forced:
    """An answer that is given instead of generated: its `tokens` come one at a time, each in a step of its own,
    whatever the model would have said. What that was is noted: `greedy`, the likeliest token at the place of each that
    has come, and `last`, float32 [vocab], the logits at the newest one's. With `of_prompt` also `prompt`: the
    log-probabilities of the prompt's tokens from its second on, as it was read."""

    tokens: list[int]
    of_prompt: bool = False
    greedy: list[int] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    last: Tensor | None = None

    @property
    def to_come(self) -> list[int]:
        return self.tokens[len(self.greedy) :]


@dataclass(eq=False)
class Sequence:
    """A conversation in one engine. The count of tokens the cache has seen (`computed`) is the next true position; how
    many of them it still keeps is the cache's own affair, and another number. `turns` are the roles ("system", "user",
    "assistant") of the conversation and the positions at which they begin, where that is known."""

    request: int
    tokens: list[int]
    prompt_tokens: int
    max_new_tokens: int
    sampling: Sampling
    ignore_eos: bool = False
    forced: Forced | None = None
    turns: list[tuple[str, int]] = field(default_factory=list)
    computed: int = 0
    table: list[int] = field(default_factory=list)
    held: Any = None
    generator: torch.Generator | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def reads_all(self) -> bool:
        """Whether every token of the prompt is to go through the model, also those whose KV is there already."""
        return self.forced is not None and self.forced.of_prompt

    @property
    def pending(self) -> int:
        """Tokens that the cache has not seen yet: the rest of the prompt, or the one just sampled."""
        return len(self.tokens) - self.computed

    def follow(self, earlier: Sequence) -> None:
        """Goes on with a conversation that has ended: its tokens come first, and what it has in the cache is this
        one's."""
        before = len(earlier.tokens)
        self.turns = earlier.turns + [(role, before + start) for role, start in self.turns]
        self.tokens = earlier.tokens + self.tokens
        self.prompt_tokens = len(self.tokens)
        self.computed, self.table, self.held = earlier.computed, earlier.table, earlier.held


@dataclass(eq=False)
class Span:
    """Rows `row .. row + count` of a step: that many tokens of one sequence from true position `position` on."""

    sequence: Sequence
    row: int
    count: int
    position: int

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + self.count)


class Step:
    """What one forward pass feeds. `keep` is False for tokens that only look (continue_logits): nothing is stored.
    `observe` asks the cache to note attention mass for the picture, outside the clock."""

    def __init__(self, work: list[tuple[Sequence, list[int]]], *, keep: bool = True, observe: bool = False) -> None:
        self.keep, self.observe = keep, observe
        self.spans: list[Span] = []
        self.ids: list[int] = []
        for sequence, tokens in work:
            self.spans.append(Span(sequence, len(self.ids), len(tokens), sequence.computed))
            self.ids += tokens

    @property
    def positions(self) -> list[int]:
        return [p for span in self.spans for p in range(span.position, span.position + span.count)]

    @property
    def decodes(self) -> bool:
        """One row a sequence: the shape that the decode kernels are for."""
        return all(span.count == 1 for span in self.spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.spans)
