"""Does a cache still know a fact that it was told long ago?

A conversation opens with four facts; then come turns of real prose; then each fact is asked for. The true answer is
ranked among eight by its log-probability, so that what is measured is what the cache kept and not how well a small
model talks. Nothing tells the engine where the facts are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engines.chat import Chat
from engines.commands import Prompt
from engines.errors import KvtuiError
from engines.hybrid import AnyEngine
from probes.conversations import Case, asked, make_case
from probes.proportions import wilson

LENGTHS = ((1000, 12), (2000, 4), (4000, 2))  # tokens of context, and conversations of that length


@dataclass(frozen=True)
class Answers:
    """Which of a conversation's questions were answered rightly. `tokens` are its context's, `device_kv_bytes` what the
    cache held on the device when it was asked, `peak_share` the most that it ever held, of what a full cache holds at
    the end. `lost` says that the conversation did not fit on the device; then no answer is right."""

    right: tuple[bool, ...]
    tokens: int
    device_kv_bytes: int
    peak_share: float
    lost: bool = False


@dataclass(frozen=True)
class Retention:
    """`right` of `asked` answers ranked first."""

    asked: int
    right: int

    @property
    def share(self) -> float:
        return self.right / self.asked if self.asked else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        return wilson(self.right, self.asked)


def ask(engine: AnyEngine, case: Case) -> Answers:
    """Feeds the conversation and asks its questions. Raises KvtuiError when the engine failed."""
    engine.reset()
    model = engine.model
    chat = Chat(model.tokenizer, model.context_limit)
    whole = chat.render(Prompt(messages=asked(case.messages, case.questions[0].kind.asked)))
    # What all the questions have in common is the context; the rest is looked at without being kept.
    ends = [chat.render(Prompt(messages=asked(case.messages, q.kind.asked))).token_ids for q in case.questions]
    common = next(i for i, ids in enumerate(zip(*ends, strict=False)) if len(set(ids)) > 1)
    turns = [turn for turn in whole.turns if turn[1] < common]
    result = engine.generate(whole.token_ids[:common], 0, turns=turns)
    full_bytes = common * model.kv_bytes_per_token
    if result.outcome == "device_oom":
        return Answers((False,) * len(ends), common, 0, result.device_kv_peak_bytes / full_bytes, lost=True)
    if result.outcome != "ok":
        raise KvtuiError(result.detail)
    right = []
    for question, ids in zip(case.questions, ends, strict=True):
        begun = ids[common:] + model.tokenizer.encode(question.kind.begins, add_special_tokens=False)
        right.append(best_choice(engine, begun, question.choices) == question.truth)
    memory = engine.memory()
    held_bytes = sum(memory.device_bytes.get(kind, 0) for kind in engine.cache.kv_kinds())
    return Answers(tuple(right), common, held_bytes, memory.device_kv_peak_bytes / full_bytes)


def measure(engine: AnyEngine, layout: str, tokens: int, cases: int, seed: int = 0) -> Retention:
    """`cases` conversations of about `tokens` tokens, four questions each."""
    found = [ask(engine, make_case(engine.model, layout, tokens, seed + number)) for number in range(cases)]
    return Retention(sum(len(one.right) for one in found), sum(sum(one.right) for one in found))


def best_choice(engine: AnyEngine, begun: list[int], choices: tuple[str, ...]) -> str:
    """The choice with the largest log-probability after `begun`."""
    first = engine.continue_logits(begun).log_softmax(-1)
    scores = {}
    for choice in choices:
        ids = engine.model.tokenizer.encode(" " + choice, add_special_tokens=False)
        score = float(first[ids[0]])
        if len(ids) > 1:
            rows = engine.continue_logits(begun + ids[:-1], rows=len(ids))[1:].log_softmax(-1)
            score += float(rows.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).sum())
        scores[choice] = score
    return max(scores, key=scores.__getitem__)
