"""Conversations that tell facts early, go on with real prose, and ask late.

What stands between is never filler that repeats itself: a conversation that needs more prose than there is is refused.
"""

from __future__ import annotations

import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engines.chat import Chat
from engines.commands import Prompt
from engines.errors import BadRequest
from engines.model import Model
from probes.facts import Question, draw
from probes.prose import Supply, passages, sentences

LAYOUTS = ("first", "middle", "system")
TURNS = 2
DEEPEST = 0.9
THANKS = {"role": "assistant", "content": "Thank you, I have read it."}
RULES = "You are a helpful assistant. Answer briefly. Stay friendly, and say so when you do not know something."
GREETING = "Hello! I am going to tell you a little and read you a lot."
Messages = list[dict[str, str]]
Of = Literal["context", "distance"]


@dataclass(frozen=True)
class Case:
    """A conversation up to the questions, and what will be asked of it. `distance` counts the tokens between the last
    fact and a question."""

    messages: Messages
    questions: list[Question]
    distance: int


class Measures(NamedTuple):
    """Of a conversation, in tokens: before the first fact, between the last and the question, and all of it."""

    before: int
    distance: int
    context: int


def depth_of(layout: str) -> float | None:
    """Where in the document the facts stand, 0 to 0.9; None for the layouts that have names. Raises BadRequest."""
    if layout in LAYOUTS:
        return None
    try:
        depth = float(layout)
    except ValueError:
        depth = -1.0
    if not 0 <= depth <= DEEPEST:
        raise BadRequest(
            f"a layout is {', '.join(LAYOUTS)}, or how deep in the document the facts stand, from 0 to {DEEPEST}"
        )
    return depth


def make_case(
    model: Model,
    layout: str,
    tokens: int,
    seed: int = 0,
    *,
    of: Of = "context",
    turns: int = TURNS,
    prose: Sequence[str] = (),
) -> Case:
    """A conversation whose context, or the distance in it, is `tokens` long. `layout` says where the facts stand:
    "first" (they are the first turn), "middle" (within prose, in the second of the early turns), "system" (in the
    system prompt, after instructions), or a depth from 0 to 0.9 (within the first of the later turns, so that this
    share of the prose stands before them). Behind them come `turns` turns of prose, of what ships if none is given.

    A context is made of whole passages and may be one longer than asked for; a distance ends with a sentence. With
    equal seeds, conversations of other distances and layouts tell the same facts, and a longer distance begins with the
    prose of a shorter one. Raises BadRequest for what the model's context or the prose is too short for.
    """
    depth = depth_of(layout)
    before = 0
    if depth is not None:
        before = round(tokens * depth if of == "context" else tokens * depth / (1 - depth))
    _check_fits(tokens + before if of == "distance" else tokens, model, layout, of, tokens)
    # Contexts are drawn as they were for the tables of docs/improvements.md.
    rng = random.Random(f"{layout} {tokens} {seed}" if of == "context" else f"conversation {seed}")
    questions = draw(rng)
    supply = Supply(prose or passages(), rng, model.tokenizer)
    chat = Chat(model.tokenizer, sys.maxsize)
    opening = [] if depth is not None else _opening(layout, questions, supply)

    def messages(read: list[str], ahead: list[str]) -> Messages:
        lead = [*ahead, _told(questions)] if depth is not None else []
        return [*opening, *_readings(read, turns, lead)]

    def measures(read: list[str], ahead: list[str]) -> Measures:
        return _measures(chat, messages(read, ahead), questions)

    read: list[str] = []
    ahead: list[str] = []
    if depth is not None:
        distance = tokens if of == "distance" else tokens - before
        read = _filled(supply, lambda texts: measures(texts, []).distance >= distance)
        ahead = _filled(supply, lambda texts: measures(read, texts).before >= before)
    elif of == "distance":
        read = _filled(supply, lambda texts: measures(texts, []).distance >= tokens)
    else:
        while measures(read, []).context < tokens:
            read.append(supply.take())
    found = measures(read, ahead)
    _check_fits(found.context, model, layout, of, tokens)
    if len(_turns(read, turns)) < turns:
        raise BadRequest(f"{of} {tokens:,} is too short for prose in {turns} later turns")
    return Case(messages(read, ahead), questions, found.distance)


def _check_fits(context: int, model: Model, layout: str, of: Of, tokens: int) -> None:
    if context > model.context_limit:
        raise BadRequest(
            f"layout {layout}, {of} {tokens:,} takes {context:,} tokens of context, and this model's is "
            f"{model.context_limit:,}"
        )


def asked(messages: Messages, question: str) -> Messages:
    return [*messages, {"role": "user", "content": question or "?"}]


def _told(questions: list[Question]) -> str:
    return " ".join(question.said for question in questions)


def _opening(layout: str, questions: list[Question], supply: Supply) -> Messages:
    facts = _told(questions)
    if layout == "system":
        return [{"role": "system", "content": f"{RULES} About the user: {facts} Do not make things up."}]
    if layout == "first":
        return [
            {"role": "user", "content": f"Please remember this. {facts}"},
            {"role": "assistant", "content": "I will remember that."},
        ]
    half = supply.take().split(". ")
    first, second = ". ".join(half[: len(half) // 3]), ". ".join(half[len(half) // 3 : 2 * len(half) // 3])
    return [
        {"role": "user", "content": GREETING},
        THANKS,
        {"role": "user", "content": f"{first}. {facts} {second}."},
        THANKS,
    ]


def _readings(read: list[str], turns: int, lead: list[str]) -> Messages:
    """Later turns of prose, however long: over many, a small model forgets with its full cache too, and then there is
    nothing to compare with."""
    texts = _turns(read, turns) or ([[]] if lead else [])
    if lead:
        texts[0] = [*lead, *texts[0]]
    return [
        message
        for part in texts
        for message in ({"role": "user", "content": "Here is something to read. " + "\n\n".join(part)}, THANKS)
    ]


def _turns(read: list[str], turns: int) -> list[list[str]]:
    """What is read in each turn, the earlier ones longer; sentences where there are fewer passages than turns."""
    parts = read if len(read) >= turns else [sentence for text in read for sentence in sentences(text)]
    each, more = divmod(len(parts), turns)
    ends = [each * (turn + 1) + min(turn + 1, more) for turn in range(turns)]
    found = [parts[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
    if parts is not read:
        found = [[" ".join(part)] for part in found if part]
    return [part for part in found if part]


def _filled(supply: Supply, enough: Callable[[list[str]], bool]) -> list[str]:
    """Passages until there are enough, the last of them no longer than it need be."""
    read: list[str] = []
    while not enough(read):
        read.append(supply.take())
    if read:
        parts = sentences(read.pop())
        short = bisect_left(range(1, len(parts)), True, key=lambda count: enough([*read, " ".join(parts[:count])]))
        read.append(" ".join(parts[: short + 1]))
    return read


def _measures(chat: Chat, messages: Messages, questions: list[Question]) -> Measures:
    whole = chat.render(Prompt(messages=asked(messages, "")))
    begin = whole.text.index(questions[0].said)
    end = max(whole.text.index(question.said) + len(question.said) for question in questions)
    # Tokens are counted by where they end in the text.
    before, until = bisect_left(whole.offsets, begin + 1), bisect_left(whole.offsets, end) + 1
    return Measures(before, whole.turns[-1][1] - until, len(whole.token_ids))
