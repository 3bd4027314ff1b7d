import pytest
from tokenizer_fakes import BRACKETS, byte_level_tokenizer

from engines.chat import Chat, title_of
from engines.commands import Prompt
from engines.errors import BadRequest


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def chat(tokenizer):
    return Chat(tokenizer, context_limit=4096)


def test_a_text_is_a_message_of_the_users(chat):
    rendered = chat.render(Prompt(text="the light"))
    assert rendered.text == "<|im_start|>user\nthe light<|im_end|>\n<|im_start|>assistant\n"


def test_messages_keep_their_roles(chat):
    roles = [("system", "be brief"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    rendered = chat.render(Prompt(messages=[{"role": role, "content": content} for role, content in roles]))
    assert rendered.text.count("<|im_start|>") == 5
    assert rendered.text.startswith("<|im_start|>system\nbe brief<|im_end|>")


def test_a_model_without_a_template_reads_plain_text():
    chat = Chat(byte_level_tokenizer(chat_template=None), 4096)
    assert chat.render(Prompt(text="the light")).text == "the light"
    assert chat.render_follow_up(Prompt(text="and then?")).text == "\n\nand then?"


@pytest.mark.parametrize("text", ["the light", "naïve 🙂 灯", "  two  spaces\n"])
def test_offsets_are_the_ends_of_tokens(chat, tokenizer, text):
    rendered = chat.render(Prompt(text=text))
    assert len(rendered.offsets) == len(rendered.token_ids)
    assert rendered.offsets == sorted(rendered.offsets)
    assert rendered.offsets[-1] == len(rendered.text)
    for count in range(1, len(rendered.token_ids) + 1):
        prefix = tokenizer.decode(rendered.token_ids[:count])
        if not prefix.endswith("\ufffd"):
            assert rendered.text[: rendered.offsets[count - 1]] == prefix


def test_the_tail_of_a_follow_up_comes_from_the_template(chat):
    tail = chat.render_follow_up(Prompt(text="which word?"))
    assert tail.text == "<|im_end|>\n<|im_start|>user\nwhich word?<|im_end|>\n<|im_start|>assistant\n"
    brackets = Chat(byte_level_tokenizer(BRACKETS), 4096)
    assert brackets.render_follow_up(Prompt(text="which word?")).text == "<|im_end|>[INST] which word? [/INST]"


def test_prompt_and_answer_and_tail_are_what_the_template_says_of_the_whole(chat):
    asked, answer, again = "the light", "a goat", "which word?"
    parts = chat.render(Prompt(text=asked)).text + answer + chat.render_follow_up(Prompt(text=again)).text
    roles = [("user", asked), ("assistant", answer), ("user", again)]
    whole = chat.render(Prompt(messages=[{"role": role, "content": content} for role, content in roles]))
    assert parts == whole.text


def test_what_a_template_refuses_is_one_line():
    brackets = Chat(byte_level_tokenizer(BRACKETS), 4096)
    with pytest.raises(BadRequest, match="refuses the messages: no system turns here") as caught:
        brackets.render(Prompt(messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prompt", [Prompt(text=" \n"), Prompt(messages=[{"role": "user", "content": ""}])])
def test_an_empty_prompt_is_refused(chat, prompt):
    with pytest.raises(BadRequest, match="empty"):
        chat.render(prompt)


def test_a_prompt_longer_than_the_context_says_by_how_much(tokenizer):
    text = "the light " * 200
    length = len(Chat(tokenizer, 4096).render(Prompt(text=text)).token_ids)
    with pytest.raises(BadRequest, match=rf"{length} tokens, {length - 100} more than the context of 100.*--truncate"):
        Chat(tokenizer, 100).render(Prompt(text=text))
    assert len(Chat(tokenizer, length).render(Prompt(text=text)).token_ids) == length


def test_truncation_keeps_both_ends(tokenizer):
    chat = Chat(tokenizer, 200)
    text = "First of all. " + "the light on the tower " * 300 + "And last: which word?"
    rendered = chat.render(Prompt(text=text), truncate_to=150)
    assert 100 < len(rendered.token_ids) <= 150
    assert "First of all." in rendered.text
    assert "And last: which word?" in rendered.text
    assert rendered.text.endswith("<|im_start|>assistant\n")
    assert chat.render(Prompt(text="short"), truncate_to=150).text == chat.render(Prompt(text="short")).text


def test_truncation_cuts_the_longest_message_only(tokenizer):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "goat " * 500}]
    rendered = Chat(tokenizer, 200).render(Prompt(messages=messages), truncate_to=100)
    assert "be brief" in rendered.text


def test_truncation_to_less_than_the_template_itself_is_refused(tokenizer):
    with pytest.raises(BadRequest, match="cannot be cut"):
        Chat(tokenizer, 200).render(Prompt(text="goat " * 100), truncate_to=5)


def test_titles():
    assert title_of(Prompt(text="x", title="A title")) == "A title"
    assert title_of(Prompt(text="two\nlines")) == "two lines"
    long = title_of(Prompt(text="word " * 100))
    assert len(long) <= 48
    assert long.endswith("…")
