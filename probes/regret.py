"""Does the hybrid engine choose well? One stream of mixed requests under a device cap that paged cannot always meet.

Half of the stream asks for a fact in real prose, the rest are things to write, to chat about, to program and to sum up,
short and long. Every engine gets the stream, under a cap of its own; they take turns, request by request, so that what
slows the machine down slows all of them. What counts: requests that ran out of memory, facts answered rightly (the true
answer ranked first among eight), and tokens a second of the engine's own clock. Regret is how far the hybrid stays
behind the fixed engine that would have been best, known only in hindsight.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import engines
from engines import events
from engines.chat import Chat
from engines.classify import parts
from engines.commands import Prompt
from engines.hybrid import AnyEngine
from engines.model import Model
from probes.facts import CHOICES, KINDS, Question
from probes.prose import Supply, passages
from probes.retention import best_choice
from probes.train_classifier import requests as labelled

FIXED = ("vllm", "h2o", "h2o+", "infinigen", "infinigen+")
REFERENCE = "paged without a cap"
ACCURACY_SHARE = 0.95  # of the reference's, to count as accurate


@dataclass(frozen=True)
class Asked:
    """A request of the stream; with a `question`, its answer is judged."""

    task: str
    text: str
    question: Question | None = None


@dataclass
class Tally:
    """What an engine made of the stream. `seconds` are its own clock's."""

    engine: str
    requests: int = 0
    lost: int = 0
    facts: int = 0
    right: int = 0
    wrong: int = 0
    new_tokens: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    choices: Counter[str] = field(default_factory=Counter)

    @property
    def accuracy(self) -> float:
        """Of all fact questions; one that got no answer is not right."""
        return self.right / self.facts if self.facts else 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def served(self) -> float:
        """Share of requests that were answered, and rightly where that can be judged."""
        return (self.requests - self.lost - self.wrong) / max(1, self.requests)


def make_stream(model: Model, requests: int, shortest: int, longest: int, seed: int = 0) -> list[Asked]:
    """`requests` of them, in random order. Half ask for a fact and a fifth for a summary, with prose that makes them
    `shortest` to `longest` tokens long; the others are short. The wordings that are not about facts are those that the
    classifier has never seen."""
    rng = random.Random(f"stream {requests} {seed}")
    unseen: dict[str, list[str]] = {}
    for task, text in labelled(held_out=True):
        unseen.setdefault(task, []).append(text)
    for texts in unseen.values():
        rng.shuffle(texts)
    facts, summaries = requests // 2, requests // 5
    long = facts + summaries
    lengths = [shortest + (longest - shortest) * place // max(1, long - 1) for place in range(long)]
    rng.shuffle(lengths)
    stream = [_fact(rng, model, length) for length in lengths[:facts]]
    for number, length in enumerate(lengths[facts:]):
        asked = parts(unseen["summary"][number % len(unseen["summary"])]).asked
        stream.append(Asked("summary", _with_prose(rng, model, length, [], asked)))
    for number in range(requests - long):
        task = ("writing", "chat", "code")[number % 3]
        stream.append(Asked(task, unseen[task][number // 3 % len(unseen[task])]))
    rng.shuffle(stream)
    return stream


def measure(
    model: Model,
    *,
    requests: int = 60,
    shortest: int = 300,
    longest: int = 1000,
    new_tokens: int = 16,
    budget: float = 0.3,
    cap_share: float = 0.6,
    link: str | None = None,
    seed: int = 0,
    fixed: tuple[str, ...] = FIXED,
    said: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """A row an engine, paged without a cap first and the hybrid last. The cap leaves room for `cap_share` of what paged
    needs for the longest request. The last row says how far it stays behind the best of the `fixed` in hindsight: in
    requests served, and in tokens a second behind the fastest that lost none and is accurate (None: there is none)."""
    stream = make_stream(model, requests, shortest, longest, seed)
    cap_bytes = model.weights_bytes + int(cap_share * (longest + new_tokens) * model.kv_bytes_per_token)
    knobs: dict[str, Any] = {"budget": budget, "link": link}
    reference = Tally(REFERENCE)
    racers = [(reference, engines.create_engine("vllm", model, **knobs))]
    for engine_id in (*fixed, "hybrid"):
        engine = engines.create_engine(engine_id, model, device_memory_bytes=cap_bytes, **knobs)
        racers.append((Tally(engine_id), engine))
    for number, asked in enumerate(stream):
        for tally, engine in racers:
            _answer(engine, tally, number, asked, new_tokens)
        said(f"{number + 1} of {requests}: {', '.join(f'{tally.engine} {tally.lost} lost' for tally, _ in racers)}")
    tallies = [tally for tally, _ in racers[1:]]
    return [_row(tally, reference) for tally in (reference, *tallies[:-1])] + [
        _row(tallies[-1], reference) | regret(tallies[-1], tallies[:-1], reference)
    ]


def meets(tally: Tally, reference: Tally) -> bool:
    """Nothing lost, and as accurate as forgetting nothing, or nearly."""
    return not tally.lost and tally.accuracy >= ACCURACY_SHARE * reference.accuracy


def regret(hybrid: Tally, fixed: list[Tally], reference: Tally) -> dict[str, Any]:
    """Positive figures: so much better the best fixed engine would have been."""
    best = max(fixed, key=lambda tally: (tally.served, tally.tokens_per_s))
    meeting = [tally for tally in fixed if meets(tally, reference)]
    fastest = max(meeting, key=lambda tally: tally.tokens_per_s, default=None)
    return {
        "regret_served": best.served - hybrid.served,
        "best_served": best.engine,
        "regret_tok_s": None if fastest is None else fastest.tokens_per_s - hybrid.tokens_per_s,
        "best_tok_s": None if fastest is None else fastest.engine,
    }


def _answer(engine: AnyEngine, tally: Tally, number: int, asked: Asked, new_tokens: int) -> None:
    """Gives the engine one request of the stream, and takes down what came of it."""
    chat = Chat(engine.model.tokenizer, engine.model.context_limit)
    rendered = chat.render(Prompt(text=asked.text))
    options: dict[str, Any] = {"ignore_eos": True, "turns": rendered.turns}
    if getattr(engine, "reads_text", False):
        options["text"] = asked.text
    begun_s = engine.clock_s
    engine.submit(number, rendered.token_ids, new_tokens, **options)
    happened: list[events.Event] = []
    while engine.has_work:
        happened += engine.advance()
    tally.seconds += engine.clock_s - begun_s
    tally.requests += 1
    tally.facts += asked.question is not None
    decisions = [event.choice for event in happened if isinstance(event, events.Decision)]
    tally.choices.update(decisions[-1:])
    outcome = next(event for event in happened if isinstance(event, events.Outcome))
    if outcome.outcome != "ok":
        tally.lost += 1
    else:
        tally.new_tokens += outcome.new_tokens
        if asked.question is not None:
            with _unlimited(engine):
                knows = _knows(engine, chat, asked.question)
            tally.right, tally.wrong = tally.right + knows, tally.wrong + (not knows)
    tally.peak_bytes = engine.memory().device_peak_bytes


def _knows(engine: AnyEngine, chat: Chat, question: Question) -> bool:
    """Asked again after its answer, without being kept: so it counts what the cache still holds, and not how well a
    small model talks."""
    again = chat.render_follow_up(Prompt(text=question.kind.asked)).token_ids
    begun = again + engine.model.tokenizer.encode(question.kind.begins, add_special_tokens=False)
    return best_choice(engine, begun, question.choices) == question.truth


@contextmanager
def _unlimited(engine: AnyEngine) -> Iterator[None]:
    """The judge's questions are not the stream's, so their memory does not count."""
    pool = engine.device_pool
    cap_bytes, peak_bytes, peaks = pool.cap_bytes, pool.peak_bytes, dict(pool.peak_by_kind)
    pool.cap_bytes = None
    try:
        yield
    finally:
        pool.cap_bytes, pool.peak_bytes, pool.peak_by_kind = cap_bytes, peak_bytes, peaks


def _fact(rng: random.Random, model: Model, tokens: int) -> Asked:
    kinds = rng.sample(KINDS, 3)
    choices = {kind: rng.sample(kind.values, CHOICES) for kind in kinds}
    truths = {kind: rng.choice(choices[kind]) for kind in kinds}
    text = _with_prose(rng, model, tokens, [kind.said.format(truths[kind]) for kind in kinds], kinds[0].asked)
    return Asked("lookup", text, Question(kinds[0], truths[kinds[0]], tuple(choices[kinds[0]])))


def _with_prose(rng: random.Random, model: Model, tokens: int, facts: list[str], asked: str) -> str:
    """About so many tokens of prose, with the facts somewhere in it, and what is asked of it. Raises BadRequest when
    there is not so much."""
    chat = Chat(model.tokenizer, model.context_limit)
    supply = Supply(passages(), rng, model.tokenizer)
    sentences: list[str] = []
    room = tokens - len(chat.render(Prompt(text=" ".join([*facts, asked]))).token_ids)
    while room > 0:
        for sentence in " ".join(supply.take().split()).split(". "):
            room -= len(chat.render_follow_up(Prompt(text=sentence)).token_ids) - len(
                chat.render_follow_up(Prompt(text=".")).token_ids
            )
            if room < 0:
                break
            sentences.append(sentence.rstrip(".") + ".")
    for fact in facts:
        sentences.insert(rng.randint(0, len(sentences)), fact)
    return f"{' '.join(sentences)}\n\n{asked}"


def _row(tally: Tally, reference: Tally) -> dict[str, Any]:
    return {
        "engine": tally.engine,
        "requests": tally.requests,
        "lost": tally.lost,
        "accuracy": tally.accuracy,
        "tok_s": tally.tokens_per_s,
        "served": tally.served,
        "meets_both": meets(tally, reference),
        "device_peak_bytes": tally.peak_bytes,
        "choices": " ".join(f"{engine} {count}" for engine, count in tally.choices.most_common()),
        "regret_served": None,
        "best_served": None,
        "regret_tok_s": None,
        "best_tok_s": None,
    }
