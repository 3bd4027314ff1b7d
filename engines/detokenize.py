"""Token ids to text, one token at a time, without ever showing half a character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_PREFIX_TOKENS = 6
_LONGEST_WAIT_TOKENS = 8  # a UTF-8 character has four bytes; more held-back tokens than this are damaged for good


class Decodes(Protocol):
    def decode(
        self, token_ids: list[int], /, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str: ...


class Detokenizer:
    """Streams the text of one answer.

    A token's text depends on its neighbours: sentencepiece drops the space of a first word, byte-level BPE may split a
    character over tokens. So each new token is decoded behind a short prefix of known tokens (at first the prompt's
    last ones), and what it adds to the prefix's own text is new. While the text ends in an unfinished character, tokens
    are held back until a later one completes it.
    """

    def __init__(self, tokenizer: Decodes, prompt_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._prefix = list(prompt_ids[-_PREFIX_TOKENS:])
        self._pending: list[int] = []

    def add(self, token_id: int) -> str:
        """The text that is complete once `token_id` is there: "" while a character is unfinished or for a special
        token. Bytes that no later token can complete come out as U+FFFD."""
        self._pending.append(token_id)
        before = self._decode(self._prefix)
        after = self._decode(self._prefix + self._pending)
        if after.endswith("\ufffd") and len(self._pending) < _LONGEST_WAIT_TOKENS:
            return ""
        # The length of `before` is no measure when the prompt itself ends within a character: then its U+FFFD is the
        # place where the new text begins.
        start = len(before.rstrip("\ufffd")) if not after.startswith(before) else len(before)
        self._prefix, self._pending = (self._prefix + self._pending)[-_PREFIX_TOKENS:], []
        return after[start:]

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
