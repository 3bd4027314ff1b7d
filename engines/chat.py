"""Prompts to token ids: through the model's own chat template where it has one, as plain text otherwise."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import msgspec

from engines.commands import Prompt
from engines.errors import BadRequest, PromptTooLong

# They stand for an answer that is not known yet, and for the text that may be cut, when a template is rendered.
# Templates strip and match on contents, so they are plain words, long enough that no template's own words hold them.
_ANSWER = "KVTUIANSWERPLACEHOLDER"
_BODY = "KVTUIDOCUMENTPLACEHOLDER"
_CUT_MARKS = {"start": "[…]\n", "middle": "\n[…]\n", "end": "\n[…]"}
_TITLE_CHARS = 48
_TURN_CHARS = 32


@dataclass(frozen=True)
class Rendered:
    """What the model reads. `offsets[i]` is the end of token i in `text`, in characters; `cut_tokens` is how many were
    cut away at `cut` ("start", "middle" or "end"). `turns` are (role, token) where each message begins, `messages` the
    conversation's own, without the template's words."""

    text: str
    token_ids: list[int]
    offsets: list[int]
    cut_tokens: int = 0
    cut: str = ""
    turns: list[tuple[str, int]] = field(default_factory=list)
    messages: list[dict[str, str]] = field(default_factory=list)


class Chat:
    """Renders prompts for one model. `tokenizer` is transformers' own; `context_limit` counts tokens."""

    def __init__(self, tokenizer: Any, context_limit: int) -> None:
        self._tokenizer = tokenizer
        self._limit = context_limit
        self._has_template = bool(getattr(tokenizer, "chat_template", None))
        self._too_long: tuple[Prompt, Rendered] | None = None

    def render(self, prompt: Prompt, *, truncate_to: int | None = None, cut: str = "middle") -> Rendered:
        """A new conversation: `text`, after its `document`, counts as one message of the user's. What has more than
        `truncate_to` tokens is cut to that many at its "start" (the beginning goes), "middle" or "end": the document if
        there is one, so that the question stays, and else the longest message.

        Raises BadRequest: empty, longer than the context (PromptTooLong), a template that refuses the messages, nothing
        left to cut.
        """
        return self._render(prompt, follow_up=False, limit=self._limit, truncate_to=truncate_to, cut=cut)

    def render_follow_up(self, prompt: Prompt, *, truncate_to: int | None = None, cut: str = "middle") -> Rendered:
        """What goes between the model's last answer and its next: the end of its turn, the new messages, the start of
        its turn. How much the context has left is not known here, so only `truncate_to` limits it."""
        return self._render(prompt, follow_up=True, limit=None, truncate_to=truncate_to, cut=cut)

    def _render(
        self, prompt: Prompt, *, follow_up: bool, limit: int | None, truncate_to: int | None, cut: str
    ) -> Rendered:
        if not any(message["content"].strip() for message in _messages(prompt)):
            raise BadRequest("the prompt is empty")
        special = not follow_up and not self._has_template
        rendered = self._whole(prompt, follow_up=follow_up, special=special)
        tokens = len(rendered.token_ids)
        if truncate_to is not None and tokens > truncate_to:
            around = self._text(_messages(prompt, _BODY), follow_up=follow_up)
            rendered = self._cut(rendered, around, truncate_to, cut, special=special)
            head, _, tail = around.partition(_BODY)
            left = _messages(prompt, rendered.text[len(head) : len(rendered.text) - len(tail)])
            return replace(rendered, turns=_turns(_messages(prompt), rendered, follow_up=follow_up), messages=left)
        if limit is not None and tokens > limit:
            raise PromptTooLong(tokens, limit)
        messages = _messages(prompt)
        return replace(rendered, turns=_turns(messages, rendered, follow_up=follow_up), messages=messages)

    def _whole(self, prompt: Prompt, *, follow_up: bool, special: bool) -> Rendered:
        """The prompt uncut. One that is too long is likely to come again, with a place to cut it at: a megabyte takes a
        second and a half to tokenise, so the latest of them is kept."""
        asked = msgspec.structs.replace(prompt, cut="", follow_up=follow_up)
        if self._too_long is not None and self._too_long[0] == asked:
            return self._too_long[1]
        rendered = self._tokenize(self._text(_messages(prompt), follow_up=follow_up), special=special)
        self._too_long = (asked, rendered) if len(rendered.token_ids) > self._limit else None
        return rendered

    def _text(self, messages: list[dict[str, str]], *, follow_up: bool) -> str:
        """What the model reads of them. Of a follow-up the template says what that is: it renders a conversation with a
        placeholder for the answer, and everything after the placeholder is wanted."""
        if not self._has_template:
            return ("\n\n" if follow_up else "") + "\n\n".join(message["content"] for message in messages)
        if not follow_up:
            return self._apply(messages)
        rendered = self._apply([{"role": "user", "content": "…"}, {"role": "assistant", "content": _ANSWER}, *messages])
        _, found, tail = rendered.partition(_ANSWER)
        if not found:
            raise BadRequest("this model's chat template drops earlier answers, so a follow-up has nothing to follow")
        return tail

    def _apply(self, messages: list[dict[str, str]]) -> str:
        try:
            return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as fault:  # a template may raise anything, in words of its own
            raise BadRequest(f"this model's chat template refuses the messages: {_first_line(fault)}") from fault

    def _tokenize(self, text: str, *, special: bool) -> Rendered:
        options = {"add_special_tokens": special, "verbose": False, "return_attention_mask": False}
        if getattr(self._tokenizer, "is_fast", False):
            found = self._tokenizer(text, return_offsets_mapping=True, **options)
            ends = [end for _, end in found["offset_mapping"]]
        else:
            found = self._tokenizer(text, **options)
            ends = _guess_ends(self._tokenizer, found["input_ids"], len(text))
        # Special tokens that stand for no text come as (0, 0); ends must never run backwards.
        return Rendered(text, list(found["input_ids"]), list(accumulate(ends, max)))

    def _cut(self, whole: Rendered, around: str, limit: int, place: str, *, special: bool) -> Rendered:
        """`whole` with at most `limit` tokens; `around` is its text with a placeholder for what may be cut. Where to
        cut is read off the tokens' offsets, so only what is left is tokenised again."""
        head, found, tail = around.partition(_BODY)
        text, ends, mark = whole.text, whole.offsets, _CUT_MARKS[place]
        start, stop = len(head), len(text) - len(tail)
        if not found or start > stop or not text.startswith(head) or not text.endswith(tail):
            raise BadRequest("this model's chat template rewrites the text, so that it cannot be cut")
        first, last = bisect_right(ends, start), bisect_right(ends, stop)  # tokens that may go: first .. last - 1
        keep = min(limit - len(ends) + last - first, last - first - 1)
        while keep > 0:
            front = {"start": 0, "middle": keep - keep // 2, "end": keep}[place]
            front_end = ends[first + front - 1] if front else start
            back_start = ends[last - 1 - (keep - front)] if keep > front else stop
            cut = self._tokenize(text[:front_end] + mark + text[back_start:], special=special)
            excess = len(cut.token_ids) - limit
            if excess <= 0:
                return replace(cut, cut_tokens=last - first - keep, cut=place)
            keep -= excess  # the mark's own tokens, and words that are split differently at the seam
        raise BadRequest(f"the prompt cannot be cut to {limit:,} tokens: its other parts need the room")


def text_of(prompt: Prompt) -> str:
    """What the user wrote last, with the document that it is about."""
    return _messages(prompt)[-1]["content"]


def title_of(prompt: Prompt) -> str:
    """A short line for lists: the prompt's own title, or the beginning of what it asks."""
    if prompt.title:
        return prompt.title
    words = " ".join((prompt.text or _messages(prompt)[-1]["content"]).split())
    return words if len(words) <= _TITLE_CHARS else words[: _TITLE_CHARS - 1].rstrip() + "…"


def _messages(prompt: Prompt, body: str | None = None) -> list[dict[str, str]]:
    """The prompt as messages; with `body` in place of what of it may be cut."""
    messages = prompt.messages
    if messages is None:
        document, text = prompt.document, prompt.text
        if body is not None:
            document, text = (body, text) if document else ("", body)
        return [{"role": "user", "content": "\n\n".join(part for part in (document, text) if part)}]
    if body is None:
        return messages
    longest = max(range(len(messages)), key=lambda i: len(messages[i]["content"]))
    return [{**message, "content": body} if i == longest else message for i, message in enumerate(messages)]


def _turns(messages: list[dict[str, str]], rendered: Rendered, *, follow_up: bool) -> list[tuple[str, int]]:
    """Where each message begins, by its content. What a template puts before the first is as good as a system prompt;
    of messages that it rewrote, or that were cut, the beginning is looked for and else left out."""
    turns: list[tuple[str, int]] = [] if follow_up or messages[0]["role"] == "system" else [("system", 0)]
    at = 0
    for message in messages:
        content = message["content"].strip()
        found = rendered.text.find(content, at)
        if found < 0:
            found = rendered.text.find(content[:_TURN_CHARS], at)
        if found >= 0 and content:
            turns.append((message["role"], bisect_right(rendered.offsets, found)))
            at = found + 1
    return turns


def _guess_ends(tokenizer: Any, token_ids: list[int], length: int) -> list[int]:
    """Ends of tokens for tokenizers that keep no offsets, from the lengths of what they decode to."""
    ends = accumulate(len(tokenizer.decode([token_id])) for token_id in token_ids)
    return [min(end, length) for end in ends]


def _first_line(fault: Exception) -> str:
    return (str(fault) or type(fault).__name__).splitlines()[0]
