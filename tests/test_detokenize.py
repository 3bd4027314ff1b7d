import pytest
from tokenizer_fakes import byte_level_tokenizer, sentencepiece_tokenizer

from engines.detokenize import Detokenizer

TEXTS = [
    "the keeper wrote",
    "naïve über €5, 灯台 и маяк",
    "🙂🇳🇴👩‍👩‍👧 at the end 🙂",
    "e\u0301 combining, \u200f right to left \u05d0\u05d1",
    " leading and trailing  spaces ",
    "line\nbreaks\n\n\tand tabs",
]


@pytest.fixture(scope="module")
def byte_level():
    return byte_level_tokenizer()


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_split_over_tokens_comes_out_whole(byte_level, text):
    ids = byte_level.encode(text)
    stream = Detokenizer(byte_level)
    pieces = [stream.add(token_id) for token_id in ids]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_nothing_is_shown_of_an_unfinished_character(byte_level):
    ids = byte_level.encode("🙂")
    assert len(ids) == 4  # else this tests nothing
    stream = Detokenizer(byte_level)
    assert [stream.add(token_id) for token_id in ids] == ["", "", "", "🙂"]


def test_bytes_that_are_no_character_come_out_in_the_end_and_hold_nothing_back(byte_level):
    start = byte_level.encode("🙂")[0]
    stream = Detokenizer(byte_level)
    text = "".join(stream.add(token_id) for token_id in [start, *byte_level.encode("word")])
    assert text == "\ufffdword"
    stream = Detokenizer(byte_level)
    assert "\ufffd" in "".join(stream.add(start) for _ in range(20))


def test_special_tokens_have_no_text(byte_level):
    stream = Detokenizer(byte_level)
    ids = [*byte_level.encode("word"), byte_level.convert_tokens_to_ids("<|im_end|>"), *byte_level.encode(" more")]
    assert "".join(stream.add(token_id) for token_id in ids) == "word more"


def test_sentencepiece_keeps_the_spaces_between_words():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["▁the", "▁light", "s", "▁goat"])
    stream = Detokenizer(tokenizer)
    assert [stream.add(token_id) for token_id in ids] == ["the", " light", "s", " goat"]


def test_sentencepiece_keeps_the_space_between_prompt_and_answer():
    tokenizer = sentencepiece_tokenizer()
    the, light = tokenizer.convert_tokens_to_ids(["▁the", "▁light"])
    assert Detokenizer(tokenizer, [the]).add(light) == " light"
    assert Detokenizer(tokenizer).add(light) == "light"


def test_sentencepiece_bytes_are_held_back_until_their_character_is_complete():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["▁the", *(f"<0x{byte:02X}>" for byte in "🙂".encode()), "s"])
    stream = Detokenizer(tokenizer)
    assert [stream.add(token_id) for token_id in ids] == ["the", "", "", "", "🙂", "s"]


def test_a_prompt_that_ends_within_a_character(byte_level):
    ids = byte_level.encode("🙂")
    stream = Detokenizer(byte_level, ids[:2])
    assert "".join(stream.add(token_id) for token_id in [*ids[2:], *byte_level.encode(" ok")]) == "🙂 ok"
