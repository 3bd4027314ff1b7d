"""What kind of task a request is: a small linear model over its words, in a millisecond, before any engine runs.

A request is often a few words beside a long document. What kind of task it is stands in those words, so they are
looked for first; the rest of the text says little more than that there is a document. The weights are made by
`python -m probes.train_classifier`.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from engines.cues import CUES

TASKS = ("writing", "chat", "summary", "lookup", "reasoning", "code")

# Of a longer text only its two ends are read: that is where people ask.
HEAD_CHARS, TAIL_CHARS = 1200, 1200
HASHED = 1 << 12  # features that words and pairs of them are hashed to
_ASKED_CHARS = 600  # most of an end that counts as asked
_BLOCK_CHARS = 260  # a paragraph longer than this is something to read

_CUES = [re.compile(pattern) for pattern in CUES.values()]
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[^\sa-z\d]|\d+")
_SENTENCE = re.compile(r"(?<=[.!?:])[\"'”’)]*\s+|\n+")
_ASKING = re.compile(r"\?|\b(please|pls|plz|me|you|your|u|i'd|i want|i need)\b")
_REQUESTING = re.compile(
    r"\b(please|pls|plz|give|write|make|tell|show|explain|help|need|want|find|let|put|say|i'd like|add|turn|use|list"
    r"|name)\b"
)
_FIRST_PERSON = re.compile(r"\b(i|i'm|i've|i'd|me|my|we|our|us)\b")
_CODE = re.compile(
    r"[{}();=<>_\[\]`\\|$#]|->|::|\b(def|return|import|for|if|while|select|from|class|int|void|var|let)\b"
)
_INDENTED = re.compile(r"^(?: {2,}|\t)\S", re.MULTILINE)


@dataclass(frozen=True)
class Parts:
    """The words that ask, where they stand (0 first, 1 last), and the characters of all that there is to read."""

    asked: str
    place: float
    read_chars: int
    seen: str


def parts(text: str) -> Parts:
    """Tells a request from the document it comes with: short paragraphs at either end, or else the sentences there that
    speak to somebody."""
    length = len(text)
    if length > HEAD_CHARS + TAIL_CHARS:
        text = f"{text[:HEAD_CHARS]}\n\n{text[-TAIL_CHARS:]}"
    text = text.strip().replace("’", "'")
    blocks = [block for block in re.split(r"\n\s*\n", text) if block.strip()]
    if length <= _BLOCK_CHARS:
        return Parts(text, 0.5, 0, text)
    head = blocks[0] if len(blocks) > 1 and len(blocks[0]) <= _BLOCK_CHARS else ""
    tail = blocks[-1] if len(blocks) > 1 and len(blocks[-1]) <= _BLOCK_CHARS else ""
    if not head and not tail:
        pieces = [piece for piece in _SENTENCE.split(text) if piece.strip()]
        first, last = pieces[:2], pieces[2:][-2:]
        head = " ".join(piece for i, piece in enumerate(first) if i == 0 or _ASKING.search(piece.lower()))
        tail = " ".join(piece for i, piece in enumerate(last) if i == len(last) - 1 or _ASKING.search(piece.lower()))
        if bool(_ASKING.search(head.lower())) != bool(_ASKING.search(tail.lower())):
            head, tail = (head, "") if _ASKING.search(head.lower()) else ("", tail)
    asked = "\n".join(end for end in (head[:_ASKED_CHARS], tail[-_ASKED_CHARS:]) if end)
    place = 0.5 if bool(head) == bool(tail) else float(bool(tail))
    return Parts(asked, place, length - len(asked), text)


def classify(text: str) -> dict[str, float]:
    """The probability of each of `TASKS`, for the user's own text with whatever document it holds."""
    weights, bias = _model()
    scores = features(text) @ weights + bias
    shares = np.exp(scores - scores.max())
    return dict(zip(TASKS, (shares / shares.sum()).tolist(), strict=True))


@cache
def _model() -> tuple[np.ndarray, np.ndarray]:
    """Weights float32 [features, tasks] and bias [tasks]."""
    with resources.files("engines").joinpath("data/classifier.npz").open("rb") as file:
        stored = np.load(file)
        return stored["weights"].astype(np.float32), stored["bias"].astype(np.float32)


def features(text: str) -> np.ndarray:
    """What the model is linear in: float32 [features]."""
    found = parts(text)
    asked = found.asked.lower()
    hashed = np.zeros(HASHED, np.float32)
    words = ["#" if word.isdigit() else word for word in _WORD.findall(asked)]
    grams = {*words, *(f"{a} {b}" for a, b in zip(["^", *words], [*words, "$"], strict=True))}
    for word in words:
        grams.update(f"<{word}>"[i : i + 4] + "~" for i in range(len(word) - 1))
    for gram in grams:
        hashed[zlib.crc32(gram.encode()) % HASHED] += 1
    hashed /= max(1.0, float(np.linalg.norm(hashed)))
    cues = np.array([min(2, len(cue.findall(asked))) for cue in _CUES], np.float32)
    # "What is ..." asks for something else with a document than without one.
    beside = cues if found.read_chars else np.zeros_like(cues)
    hints = np.concatenate([cues, beside, cues - beside])
    hints /= max(1.0, float(np.linalg.norm(hints)))
    return np.concatenate([hashed, hints, 0.5 * _structure(found)])


def _structure(found: Parts) -> np.ndarray:
    """What a request looks like before its words are read: float32 [11]."""
    asked, seen = found.asked, found.seen
    signs = len(_CODE.findall(seen)) / max(20, len(seen))
    return np.array(
        [
            min(1.0, len(asked) / 200),
            float(len(asked) < 60),
            float(found.read_chars > 0),
            min(1.0, found.read_chars / 1000),
            found.place - 0.5,
            float("?" in asked),
            float(asked.rstrip().endswith("?")),
            float("?" not in asked and not _REQUESTING.search(asked.lower())),
            min(1.0, 8 * signs),
            min(1.0, 15 * len(_FIRST_PERSON.findall(seen.lower())) / max(60, len(seen))),
            float(bool(_INDENTED.search(seen))),
        ],
        np.float32,
    )
