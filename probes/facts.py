"""The facts that a conversation tells, and what is asked about them afterwards."""

from __future__ import annotations

import random
from dataclasses import dataclass

FACTS_EACH = 4
CHOICES = 8


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

    @property
    def said(self) -> str:
        return self.kind.said.format(self.truth)


def draw(rng: random.Random) -> list[Question]:
    """As many as a conversation tells, each of another kind, its truth one of the choices."""
    questions = []
    for kind in rng.sample(KINDS, FACTS_EACH):
        choices = rng.sample(kind.values, CHOICES)
        questions.append(Question(kind, rng.choice(choices), tuple(choices)))
    return questions
