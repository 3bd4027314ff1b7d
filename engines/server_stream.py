"""What a server streams, as tokens: server-sent events whose data are an OpenAI-compatible API's chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engines.events import UNKNOWN_TOKEN

LINE_BYTES = 1 << 20
QUOTED_CHARACTERS = 80
ROUNDING = 1e-3
MOST = 1 << 28  # tokens, requests: what is more is no number of them
_AS_ID = "token_id:"  # how a vLLM that knows no `return_token_ids` spells a token, if it is asked to


class ServerFault(Exception):
    """What went wrong with a server: one line for the person."""


@dataclass(frozen=True)
class Said:
    """One token. `text` is what the server makes of it, "" for one that is within a character."""

    token_id: int
    text: str
    logprob: float | None


@dataclass(frozen=True)
class Chunk:
    """One message of the stream. `content` is the answer's text in it (without what a model only thinks), `reason` why
    the answer ends with it ("" while it does not). `prompt_tokens` is what the server counted, None where it does not
    tell."""

    tokens: list[Said] = field(default_factory=list)
    content: str = ""
    reason: str = ""
    prompt_tokens: int | None = None


class _Logprob(msgspec.Struct):
    token: str = ""
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    """Of completions `tokens` and `token_logprobs`, of chats `content`."""

    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    content: list[_Logprob] | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


class _Message(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Message)


def messages(pieces: Iterable[bytes]) -> Iterator[str]:
    """The data of each event, up to "[DONE]", which comes too. Comments and other fields mean nothing here. Raises
    ServerFault for a line without end."""
    data: list[str] = []
    for line in _lines(pieces):
        if not line:
            if data:
                yield "\n".join(data)
            data.clear()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line[:1] in "{[<":  # no field of an event has such a name: an error page, or JSON without a stream
            raise ServerFault(f"the server sent no stream of tokens: {quoted(line)}")
    if data:
        yield "\n".join(data)


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    held = b""
    for piece in pieces:
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if len(held) > LINE_BYTES:
            raise ServerFault("the server sent a line of more than 1 MB, which no stream of tokens has")
    if held:
        yield held.removesuffix(b"\r").decode("utf-8", "replace")


def chunk(data: str, vocabulary: int) -> Chunk:
    """What one event says. Ids count below `vocabulary`; with 0, no id counts. Raises ServerFault for anything else,
    and for what the server says went wrong."""
    try:
        told = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise ServerFault(f"the server sent what is no part of an answer: {quoted(data)}") from None
    if told.error:
        raise ServerFault(f"the server failed: {error_text(data)}")
    prompt_tokens = plausible_count(told.usage.prompt_tokens) if told.usage else None
    choice = told.choices[0] if told.choices else None
    if choice is None:
        return Chunk(prompt_tokens=prompt_tokens)
    delta = choice.delta or _Delta()
    content = choice.text or delta.content or ""
    thought = delta.reasoning or delta.reasoning_content or ""
    tokens = _tokens(choice, thought + content, vocabulary)
    return Chunk(tokens, content, choice.finish_reason or "", prompt_tokens)


def _tokens(choice: _Choice, text: str, vocabulary: int) -> list[Said]:
    """As many as the server tells of; one, where it tells of none and there is text."""
    logprobs = choice.logprobs or _Logprobs()
    spelt = logprobs.tokens or [entry.token for entry in logprobs.content or []]
    chances = logprobs.token_logprobs or [entry.logprob for entry in logprobs.content or []]
    ids = choice.token_ids
    if ids is None and spelt and all(name.startswith(_AS_ID) for name in spelt):
        ids = [_as_id(name[len(_AS_ID) :]) for name in spelt]
    count = len(ids) if ids is not None else len(spelt) or bool(text)
    if "".join(spelt) != text or len(spelt) != count:
        spelt = [text] + [""] * (count - 1)  # which of them reads what is not told
    return [
        Said(
            ids[index] if ids is not None and 0 <= ids[index] < vocabulary else UNKNOWN_TOKEN,
            spelt[index],
            _plausible_logprob(chances[index]) if index < len(chances) else None,
        )
        for index in range(count)
    ]


def _as_id(digits: str) -> int:
    return int(digits) if digits.isdecimal() and len(digits) < 10 else UNKNOWN_TOKEN


def plausible_count(told: int | None) -> int | None:
    """A number of something; None for what is none. A server may say anything, and nothing here should have to carry
    it."""
    return told if told is not None and 0 <= told < MOST else None


def _plausible_logprob(told: float | None) -> float | None:
    """At most 0, but for rounding."""
    return told if told is not None and -MOST < told < ROUNDING else None


def error_text(body: str) -> str:
    """The server's own words, on one line: the message of an error in JSON, or the beginning of whatever it is."""
    told: Any = body
    with suppress(msgspec.DecodeError, RecursionError):
        told = msgspec.json.decode(body)
    while isinstance(told, dict) and (
        inner := [told[name] for name in ("error", "message", "detail") if told.get(name)]
    ):
        told = inner[0]
    if not isinstance(told, str):
        told = msgspec.json.encode(told).decode()
    return one_line(told)


def quoted(text: str) -> str:
    return f'"{one_line(text, QUOTED_CHARACTERS)}"'


def one_line(text: str, characters: int = 3 * QUOTED_CHARACTERS) -> str:
    """The beginning of what may be of any length."""
    line = " ".join(text.split())
    return line if len(line) <= characters else line[: characters - 1] + "…"
