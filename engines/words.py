"""Which tokens make a word together: a rare name is spelt in pieces, each of them likely once the first is there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LONGEST = 8  # tokens: text without spaces is no single word


class Words:
    """Of one vocabulary. A token goes on with a word if it begins with a letter or digit where the last one ended with
    one. Without a tokenizer, each token is a word."""

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._begins = torch.zeros(vocabulary, dtype=torch.bool)
        self._ends = torch.zeros(vocabulary, dtype=torch.bool)
        if tokenizer is None:
            return
        for token, id in tokenizer.get_vocab().items():
            if id < vocabulary and token:
                # Ġ (byte-level) and ▁ (SentencePiece) stand for the space before a word; Ġ would count as a letter.
                self._begins[id] = token[0].isalnum() and token[0] not in "ĠĊĉ"
                self._ends[id] = token[-1].isalnum() and token[-1] not in "ĠĊĉ"

    def of(self, ids: list[int]) -> Tensor:
        """The number of the word that each token is of: int64 [tokens], from 0, ascending."""
        tokens = torch.tensor(ids, dtype=torch.int64)
        starts = torch.ones(len(ids), dtype=torch.bool)
        starts[1:] = ~(self._begins[tokens[1:]] & self._ends[tokens[:-1]])
        place = torch.arange(len(ids))
        first = torch.where(starts, place, 0).cummax(0).values if len(ids) else place
        starts |= (place - first) % LONGEST == 0
        return starts.cumsum(0) - 1


def by_word(surprisal: Tensor, words: Tensor) -> Tensor:
    """-log p of the whole word that each token is of: float32 [tokens]. `words` as by `Words.of`."""
    if not len(words):
        return surprisal
    return torch.zeros(int(words[-1]) + 1).index_add(0, words, surprisal)[words]
