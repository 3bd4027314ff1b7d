from typing import ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_fakes import BRACKETS, CHATML, byte_level_tokenizer

from engines.chat import Chat, title_of
from engines.commands import Prompt
from engines.errors import BadRequest, PromptTooLong


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


def test_a_document_and_its_question_are_one_message(chat):
    rendered = chat.render(Prompt(document="the light", text="which word?"))
    assert "user\nthe light\n\nwhich word?<|im_end|>" in rendered.text
    assert "user\nthe light<|im_end|>" in chat.render(Prompt(document="the light")).text


TEMPLATES = {"none": None, "chatml": CHATML, "brackets": BRACKETS}
DOCUMENT = "First of all. " + "the light on the tower " * 300 + "The very end."
CUTS = {
    "start": ("user\n[…]\n", "The very end.\n\nwhich word?<|im_end|>"),
    "middle": ("user\nFirst of all. ", "The very end.\n\nwhich word?<|im_end|>"),
    "end": ("user\nFirst of all. ", "\n[…]\n\nwhich word?<|im_end|>"),
}


@pytest.mark.parametrize("place", CUTS)
def test_a_cut_leaves_the_question_and_a_mark(tokenizer, place):
    chat = Chat(tokenizer, 200)
    prompt = Prompt(document=DOCUMENT, text="which word?")
    asked = Chat(tokenizer, 10_000).render(prompt)
    rendered = chat.render(prompt, truncate_to=150, cut=place)
    assert 146 <= len(rendered.token_ids) <= 150
    assert rendered.offsets[-1] == len(rendered.text)
    assert rendered.text.count("[…]") == 1
    assert all(piece in rendered.text for piece in CUTS[place])
    assert rendered.text.endswith("<|im_start|>assistant\n")
    assert rendered.cut == place
    assert 0 < len(asked.token_ids) - rendered.cut_tokens - len(rendered.token_ids) + 8 < 16
    again = chat.render_follow_up(prompt, truncate_to=150, cut=place)
    assert len(again.token_ids) <= 150
    assert again.text.startswith("<|im_end|>\n<|im_start|>user\n")
    assert all(piece in again.text for piece in CUTS[place])


CHATS = {name: Chat(byte_level_tokenizer(template), 100_000) for name, template in TEMPLATES.items()}


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@settings(deadline=None, max_examples=60)
@given(
    document=st.text(st.sampled_from("ab é灯🙂\n<[/"), min_size=200),
    limit=st.integers(60, 180),
    place=st.sampled_from(sorted(CUTS)),
    follow_up=st.booleans(),
)
def test_a_cut_is_never_longer_than_asked(chat, document, limit, place, follow_up):
    render = chat.render_follow_up if follow_up else chat.render
    prompt = Prompt(document=document, text="which?")
    if not document.strip() or len(render(prompt).token_ids) <= limit:
        return
    rendered = render(prompt, truncate_to=limit, cut=place)
    assert limit - 12 <= len(rendered.token_ids) <= limit
    assert "which?" in rendered.text
    assert "[…]" in rendered.text


def test_a_text_alone_is_cut_itself(tokenizer):
    chat = Chat(tokenizer, 200)
    rendered = chat.render(Prompt(text=DOCUMENT), truncate_to=150)
    assert "First of all." in rendered.text
    assert "The very end.<|im_end|>" in rendered.text
    assert chat.render(Prompt(text="short"), truncate_to=150).text == chat.render(Prompt(text="short")).text


def test_a_long_prompt_is_tokenised_once(tokenizer):
    class Counting:
        chat_template, is_fast = tokenizer.chat_template, True
        apply_chat_template = tokenizer.apply_chat_template
        lengths: ClassVar[list[int]] = []

        def __call__(self, text, **options):
            self.lengths.append(len(text))
            return tokenizer(text, **options)

    chat, prompt = Chat(Counting(), 200), Prompt(document=DOCUMENT, text="which word?", ticket="t1")
    with pytest.raises(PromptTooLong):
        chat.render(prompt)
    chat.render(msgspec.structs.replace(prompt, cut="end"), truncate_to=150, cut="end")
    assert sum(length > len(DOCUMENT) for length in Counting.lengths) == 1


def test_truncation_cuts_the_longest_message_only(tokenizer):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "goat " * 500}]
    rendered = Chat(tokenizer, 200).render(Prompt(messages=messages), truncate_to=100)
    assert "be brief" in rendered.text
    assert 96 <= len(rendered.token_ids) <= 100


def test_truncation_to_less_than_the_template_itself_is_refused(tokenizer):
    with pytest.raises(BadRequest, match="cannot be cut"):
        Chat(tokenizer, 200).render(Prompt(text="goat " * 100), truncate_to=5)


def test_a_template_that_rewrites_the_text_cannot_be_cut():
    shouting = Chat(byte_level_tokenizer("{% for m in messages %}{{ m['content'] | lower }}{% endfor %}"), 200)
    with pytest.raises(BadRequest, match="rewrites the text"):
        shouting.render(Prompt(text="goat " * 100), truncate_to=50)


def test_titles():
    assert title_of(Prompt(text="x", title="A title")) == "A title"
    assert title_of(Prompt(text="two\nlines")) == "two lines"
    assert title_of(Prompt(document="long " * 100, text="why?")) == "why?"
    long = title_of(Prompt(text="word " * 100))
    assert len(long) <= 48
    assert long.endswith("…")
