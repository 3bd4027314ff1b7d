"""Real prose for long contexts: what ships, or a text of the user's. No passage is given twice: repeated filler is easy
to compress, and a cache that forgets it has forgotten nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

from engines.errors import BadRequest

MAX_BYTES = 16 << 20
PASSAGE_CHARS = 1000  # shorter paragraphs are joined with those behind them
PARAGRAPH_CHARS = 3000  # longer ones are divided between sentences


@dataclass(frozen=True)
class Prose:
    """`name` is its file's; `sha256` is of its bytes. All passages are different."""

    name: str
    sha256: str
    passages: tuple[str, ...]


class OutOfProse(BadRequest):
    """More prose is needed than there is."""


class Supply:
    """Passages in random order, each of them once."""

    def __init__(self, passages: Sequence[str], rng: random.Random, tokenizer: Any) -> None:
        self._all, self._tokenizer = passages, tokenizer
        self._left = list(passages)
        rng.shuffle(self._left)

    def take(self) -> str:
        """Raises OutOfProse when all are taken."""
        if not self._left:
            tokens = len(self._tokenizer.encode("\n\n".join(self._all), add_special_tokens=False))
            raise OutOfProse(f"that takes more prose than the {tokens:,} tokens there are, and none is given twice")
        return self._left.pop()


def passages() -> list[str]:
    """Those that ship: 36 small essays of some 330 tokens each."""
    return list(shipped().passages)


def shipped() -> Prose:
    return _prose("prose.txt", resources.files("probes").joinpath("data/prose.txt").read_bytes())


def read(path: Path) -> Prose:
    """A text of the user's, UTF-8. Paragraphs and sentences that repeat others are left out. Raises BadRequest for what
    is no text."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as fault:
        raise BadRequest(f"cannot read {path}: {fault.strerror or fault}") from fault
    if len(content) > MAX_BYTES:
        raise BadRequest(f"{path} is larger than {MAX_BYTES >> 20} MiB; a part of it will do")
    return _prose(str(path), content)


def sentences(text: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?…])\s+|(?<=[。！？])", text.strip()) if part]


def _prose(name: str, content: bytes) -> Prose:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadRequest(f"{name} is no text in UTF-8") from None
    if "\0" in text:
        raise BadRequest(f"{name} is no text: it holds NUL bytes")
    passages = tuple(dict.fromkeys(_passages(text)))
    if not passages:
        raise BadRequest(f"{name} is empty")
    return Prose(name, sha256(content).hexdigest(), passages)


def _passages(text: str) -> Iterator[str]:
    paragraphs = dict.fromkeys(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    joined = ""
    for paragraph in filter(None, paragraphs):
        for piece in _pieces(paragraph):
            joined = f"{joined}\n\n{piece}".strip()
            if len(joined) >= PASSAGE_CHARS:
                yield joined
                joined = ""
    if joined:
        yield joined


def _pieces(paragraph: str) -> Iterator[str]:
    if len(paragraph) <= PARAGRAPH_CHARS:
        yield paragraph
        return
    piece = ""
    for sentence in dict.fromkeys(sentences(paragraph)):
        piece = f"{piece} {sentence}".strip()
        if len(piece) >= PASSAGE_CHARS:
            yield piece
            piece = ""
    if piece:
        yield piece
