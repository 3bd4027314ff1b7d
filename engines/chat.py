"""Prompts to token ids: through the model's own chat template where it has one, as plain text otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from engines.commands import Prompt
from engines.errors import BadRequest

# Stands for an answer that is not known yet when a template is rendered. Templates strip and match on contents, so it
# is a plain word, long enough that no template's own words hold it.
_ANSWER = "KVTUIANSWERPLACEHOLDER"
_CUT_MARK = "\n[…]\n"
_TITLE_CHARS = 48


@dataclass(frozen=True)
class Rendered:
    """What the model reads. `offsets[i]` is the end of token i in `text`, in characters; `cut_tokens` is how much
    shorter it is than what was asked for."""

    text: str
    token_ids: list[int]
    offsets: list[int]
    cut_tokens: int = 0


class Chat:
    """Renders prompts for one model. `tokenizer` is transformers' own; `context_limit` counts tokens."""

    def __init__(self, tokenizer: Any, context_limit: int) -> None:
        self._tokenizer = tokenizer
        self._limit = context_limit
        self._has_template = bool(getattr(tokenizer, "chat_template", None))

    def render(self, prompt: Prompt, *, truncate_to: int | None = None) -> Rendered:
        """A new conversation: `text` counts as one message of the user's. With `truncate_to`, the middle of the longest
        message is cut out until so many tokens are left (a question at the end and an instruction at the beginning
        both survive). Raises BadRequest: empty, longer than the context, a template that refuses the messages."""
        messages = _messages(prompt)
        rendered = self._tokenize_conversation(messages)
        if truncate_to is not None and len(rendered.token_ids) > truncate_to:
            return self._truncated(messages, rendered, truncate_to)
        excess = len(rendered.token_ids) - self._limit
        if excess > 0:
            raise BadRequest(
                f"the prompt has {len(rendered.token_ids):,} tokens, {excess:,} more than the context of "
                f"{self._limit:,}; shorten it, or let its middle be cut out with --truncate"
            )
        return rendered

    def render_follow_up(self, prompt: Prompt) -> Rendered:
        """What goes between the model's last answer and its next: the end of its turn, the new messages, the start of
        its turn. The template says what that is: it renders a conversation with a placeholder for the answer, and
        everything after the placeholder is wanted."""
        messages = _messages(prompt)
        if not self._has_template:
            return self._tokenize("\n\n" + _plain(messages), special=False)
        rendered = self._apply([{"role": "user", "content": "…"}, {"role": "assistant", "content": _ANSWER}, *messages])
        _, found, tail = rendered.partition(_ANSWER)
        if not found:
            raise BadRequest("this model's chat template drops earlier answers, so a follow-up has nothing to follow")
        return self._tokenize(tail, special=False)

    def _tokenize_conversation(self, messages: list[dict[str, str]]) -> Rendered:
        if self._has_template:
            return self._tokenize(self._apply(messages), special=False)
        return self._tokenize(_plain(messages), special=True)

    def _apply(self, messages: list[dict[str, str]]) -> str:
        try:
            return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as fault:  # a template may raise anything, in words of its own
            raise BadRequest(f"this model's chat template refuses the messages: {_first_line(fault)}") from fault

    def _tokenize(self, text: str, *, special: bool) -> Rendered:
        options = {"add_special_tokens": special, "verbose": False}
        if getattr(self._tokenizer, "is_fast", False):
            found = self._tokenizer(text, return_offsets_mapping=True, **options)
            ends = [end for _, end in found["offset_mapping"]]
        else:
            found = self._tokenizer(text, **options)
            ends = _guess_ends(self._tokenizer, found["input_ids"], len(text))
        # Special tokens that stand for no text come as (0, 0); ends must never run backwards.
        return Rendered(text, list(found["input_ids"]), list(accumulate(ends, max)))

    def _truncated(self, messages: list[dict[str, str]], rendered: Rendered, limit: int) -> Rendered:
        index = max(range(len(messages)), key=lambda i: len(messages[i]["content"]))
        content = messages[index]["content"]
        keep_chars, asked_tokens = len(content), len(rendered.token_ids)
        while len(rendered.token_ids) > limit:
            # Tokens are not equally long, so a proportional cut is repeated until it suffices; it always shrinks.
            shrunk = keep_chars * limit // len(rendered.token_ids) - 2 * len(_CUT_MARK)
            keep_chars = min(shrunk, keep_chars - 1)
            if keep_chars < 2:
                raise BadRequest(f"the prompt cannot be cut to {limit:,} tokens: its other messages need the room")
            half = keep_chars // 2
            cut = content[: keep_chars - half] + _CUT_MARK + content[len(content) - half :]
            messages = [{**m, "content": cut} if i == index else m for i, m in enumerate(messages)]
            rendered = self._tokenize_conversation(messages)
        return replace(rendered, cut_tokens=asked_tokens - len(rendered.token_ids))


def title_of(prompt: Prompt) -> str:
    """A short line for lists: the prompt's own title, or the beginning of what it asks."""
    if prompt.title:
        return prompt.title
    words = " ".join(_messages(prompt)[-1]["content"].split())
    return words if len(words) <= _TITLE_CHARS else words[: _TITLE_CHARS - 1].rstrip() + "…"


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    messages = prompt.messages
    if messages is None:
        messages = [{"role": "user", "content": prompt.text}]
    if not any(message["content"].strip() for message in messages):
        raise BadRequest("the prompt is empty")
    return messages


def _plain(messages: list[dict[str, str]]) -> str:
    """For models without a template, which have no notion of turns."""
    return "\n\n".join(message["content"] for message in messages)


def _guess_ends(tokenizer: Any, token_ids: list[int], length: int) -> list[int]:
    """Ends of tokens for tokenizers that keep no offsets, from the lengths of what they decode to."""
    ends = accumulate(len(tokenizer.decode([token_id])) for token_id in token_ids)
    return [min(end, length) for end in ends]


def _first_line(fault: Exception) -> str:
    return (str(fault) or type(fault).__name__).splitlines()[0]
