"""Does a cache still know a fact that it was told long ago?

A conversation opens with four facts; then come turns of real prose; then each fact is asked for. The true answer is
ranked among eight by its log-probability, so that what is measured is what the cache kept and not how well a small
model talks. Nothing tells the engine where the facts are.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from importlib import resources

import torch

from engines.chat import Chat
from engines.commands import Prompt
from engines.errors import KvtuiError
from engines.hybrid import AnyEngine
from engines.model import Model

LAYOUTS = ("first", "middle", "system")
LENGTHS = ((1000, 12), (2000, 4), (4000, 2))  # tokens of context, and conversations of that length
FACTS_EACH = 4
CHOICES = 8
Z_95 = 1.96
THANKS = {"role": "assistant", "content": "Thank you, I have read it."}


@dataclass(frozen=True)
class Kind:
    """One kind of fact: how it is said, how it is asked, how the answer begins, and what it may be: words that are one
    token each to most tokenizers, so that one forward pass ranks all of them."""

    said: str
    asked: str
    begins: str
    values: tuple[str, ...]


def _kind(said: str, asked: str, begins: str, values: str) -> Kind:
    return Kind(said, asked, begins, tuple(values.split()))


KINDS = (
    _kind(
        "The secret code word is {}.",
        "What is the secret code word?",
        "The secret code word is",
        "lantern cobalt walnut falcon harbor velvet saffron pepper granite orchid thunder candle",
    ),
    _kind(
        "My dog is called {}.",
        "What is my dog called?",
        "Your dog is called",
        "Pepper Daisy Bruno Ginger Oscar Rocky Luna Max Bella Charlie Duke Prince",
    ),
    _kind(
        "The wedding will be in {}.",
        "In which month will the wedding be?",
        "The wedding will be in",
        "January February March April May June July August September October November December",
    ),
    _kind(
        "My sister works as a {}.",
        "What does my sister work as?",
        "Your sister works as a",
        "dentist lawyer nurse baker farmer pilot teacher carpenter journalist tailor chemist singer",
    ),
    _kind(
        "The boat is painted {}.",
        "What colour is the boat painted?",
        "The boat is painted",
        "green yellow purple orange black white silver turquoise brown pink golden blue",
    ),
    _kind(
        "The spare key is hidden under the {}.",
        "Where is the spare key hidden?",
        "The spare key is hidden under the",
        "bench bucket statue ladder barrel mattress staircase bridge carpet piano table stone",
    ),
    _kind(
        "I was born in {}.",
        "In which city was I born?",
        "You were born in",
        "Lisbon Oslo Vienna Dublin Prague Athens Madrid Warsaw Geneva Cairo Havana Lima",
    ),
    _kind(
        "My favourite instrument is the {}.",
        "What is my favourite instrument?",
        "Your favourite instrument is the",
        "trumpet violin flute harp guitar drum organ piano bass horn bell",
    ),
)


@dataclass(frozen=True)
class Question:
    kind: Kind
    truth: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A conversation up to the questions, and what will be asked of it."""

    messages: list[dict[str, str]]
    questions: list[Question]


@dataclass(frozen=True)
class Retention:
    """`right` of `asked` answers ranked first, in `cases` conversations. `tokens` are their contexts' together,
    `device_kv_bytes` what the cache held on the device when it was asked, together, `peak_share` the most that one of
    them ever held, of what a full cache holds at its end."""

    asked: int
    right: int
    tokens: int
    device_kv_bytes: int
    peak_share: float
    cases: int = 1

    @property
    def share(self) -> float:
        return self.right / self.asked if self.asked else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the share."""
        n, p, z = self.asked, self.share, Z_95
        middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)


def passages() -> list[str]:
    text = resources.files("probes").joinpath("data/prose.txt").read_text("utf-8")
    return [passage.strip() for passage in text.split("\n\n") if passage.strip()]


def make_case(model: Model, layout: str, tokens: int, seed: int) -> Case:
    """A conversation of about `tokens` tokens. `layout` says where the facts stand: "first" (they are the first turn),
    "middle" (within prose, in the second of the early turns), "system" (in the system prompt, after instructions)."""
    rng = random.Random(f"{layout} {tokens} {seed}")
    kinds = rng.sample(KINDS, FACTS_EACH)
    questions = []
    for kind in kinds:
        choices = rng.sample(kind.values, CHOICES)
        questions.append(Question(kind, rng.choice(choices), tuple(choices)))
    facts = " ".join(question.kind.said.format(question.truth) for question in questions)
    prose = passages()
    rng.shuffle(prose)
    messages: list[dict[str, str]] = []
    if layout == "system":
        rules = "You are a helpful assistant. Answer briefly. Stay friendly, and say so when you do not know something."
        messages.append({"role": "system", "content": f"{rules} About the user: {facts} Do not make things up."})
    elif layout == "first":
        messages.append({"role": "user", "content": f"Please remember this. {facts}"})
        messages.append({"role": "assistant", "content": "I will remember that."})
    else:
        messages += [{"role": "user", "content": "Hello! I am going to tell you a little and read you a lot."}, THANKS]
        half = prose.pop().split(". ")
        first, second = ". ".join(half[: len(half) // 3]), ". ".join(half[len(half) // 3 : 2 * len(half) // 3])
        messages += [{"role": "user", "content": f"{first}. {facts} {second}."}, THANKS]
    chat = Chat(model.tokenizer, model.context_limit)
    read: list[str] = []
    while len(chat.render(Prompt(messages=_asked([*messages, *_readings(read)], ""))).token_ids) < tokens:
        read.append(prose.pop() if prose else rng.choice(passages()))
    messages += _readings(read)
    return Case(messages, questions)


def _readings(passages: list[str]) -> list[dict[str, str]]:
    """Two later turns of prose, however long: over many, a small model forgets with its full cache too, and then there
    is nothing to compare with."""
    half = (len(passages) + 1) // 2
    turns = [passages[:half], passages[half:]]
    return [
        message
        for texts in turns
        if texts
        for message in ({"role": "user", "content": "Here is something to read. " + "\n\n".join(texts)}, THANKS)
    ]


def ask(engine: AnyEngine, case: Case) -> tuple[int, int]:
    """Feeds the conversation and asks its questions: how many answers were right, and the context's tokens. Raises
    KvtuiError when the engine could not take it."""
    model = engine.model
    chat = Chat(model.tokenizer, model.context_limit)
    whole = chat.render(Prompt(messages=_asked(case.messages, case.questions[0].kind.asked)))
    # What all the questions have in common is the context; the rest is looked at without being kept.
    ends = [chat.render(Prompt(messages=_asked(case.messages, q.kind.asked))).token_ids for q in case.questions]
    common = next(i for i, ids in enumerate(zip(*ends, strict=False)) if len(set(ids)) > 1)
    turns = [turn for turn in whole.turns if turn[1] < common]
    result = engine.generate(whole.token_ids[:common], 0, turns=turns)
    if result.outcome != "ok":
        raise KvtuiError(result.detail)
    right = 0
    for question, ids in zip(case.questions, ends, strict=True):
        begun = ids[common:] + model.tokenizer.encode(question.kind.begins, add_special_tokens=False)
        right += best_choice(engine, begun, question.choices) == question.truth
    return right, common


def measure(engine: AnyEngine, layout: str, tokens: int, cases: int, seed: int = 0) -> Retention:
    """`cases` conversations of about `tokens` tokens, four questions each."""
    asked = right = 0
    lengths, sizes, peaks = [], [], []
    for number in range(cases):
        engine.reset()
        case = make_case(engine.model, layout, tokens, seed + number)
        found, length = ask(engine, case)
        memory = engine.memory()
        asked, right = asked + len(case.questions), right + found
        lengths.append(length)
        sizes.append(sum(memory.device_bytes.get(kind, 0) for kind in engine.cache.kv_kinds()))
        peaks.append(memory.device_kv_peak_bytes / length / engine.model.kv_bytes_per_token)
    return Retention(asked, right, sum(lengths), sum(sizes), max(peaks), cases)


def together(found: list[Retention]) -> Retention:
    """All of them as one."""
    return Retention(
        sum(one.asked for one in found),
        sum(one.right for one in found),
        sum(one.tokens for one in found),
        sum(one.device_kv_bytes for one in found),
        max(one.peak_share for one in found),
        sum(one.cases for one in found),
    )


def _asked(messages: list[dict[str, str]], question: str) -> list[dict[str, str]]:
    return [*messages, {"role": "user", "content": question or "?"}]


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
