"""Tokens as words, and what a whole word tells."""

import pytest
import torch

from engines.words import LONGEST, Words, by_word


class Spelling:
    def get_vocab(self) -> dict[str, int]:
        return {token: id for id, token in enumerate(["Ġmar", "ig", "old", ".", "Ġwas", "1", "8", "Ġ", "▁sea", "Ġ“"])}


@pytest.fixture
def words() -> Words:
    return Words(Spelling(), 10)


def test_pieces_of_a_word_are_one_word(words: Words) -> None:
    assert words.of([4, 0, 1, 2, 3, 4]).tolist() == [0, 1, 1, 1, 2, 3]


def test_digits_are_one_number_and_a_quote_is_none_of_it(words: Words) -> None:
    assert words.of([7, 5, 6, 6, 3]).tolist() == [0, 1, 1, 1, 2]
    assert words.of([9, 1, 2, 8]).tolist() == [0, 1, 1, 2]


def test_text_without_spaces_is_cut(words: Words) -> None:
    assert words.of([1] * (2 * LONGEST + 1)).tolist() == [0] * LONGEST + [1] * LONGEST + [2]


def test_nothing_and_no_tokenizer(words: Words) -> None:
    assert words.of([]).tolist() == []
    assert Words(None, 10).of([0, 1, 2]).tolist() == [0, 1, 2]


def test_a_word_is_as_surprising_as_all_its_pieces(words: Words) -> None:
    surprisal = torch.tensor([0.5, 6.8, 5.3, 3.2, 1.0])
    told = by_word(surprisal, words.of([4, 0, 1, 2, 3]))
    torch.testing.assert_close(told, torch.tensor([0.5, 15.3, 15.3, 15.3, 1.0]))
