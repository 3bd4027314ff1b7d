"""Prompt streams from files and pipes: text is one prompt, .jsonl is one prompt a line."""

from __future__ import annotations

import json
import os
import stat
from importlib import resources
from pathlib import Path

import msgspec

from engines.commands import Prompt
from engines.errors import BadRequest
from kvtui import figures, piped
from kvtui.literal import one_line

LARGEST_BYTES = 64_000_000
_KEYS = {"prompt", "messages", "follow_up", "title", "max_new_tokens"}
_ROLES = {"system", "user", "assistant"}


def read_prompt_file(path: Path) -> list[Prompt]:
    """The prompts of a file or a pipe. Raises BadRequest in one line: unreadable, empty, binary, or a faulty line by
    number."""
    text = read_text(path, pipes=True)
    if path.suffix.lower() == ".jsonl":
        return parse_jsonl(text, str(path))
    return [Prompt(text=text, title=one_line(piped.name_of(path)))]


def read_text(path: Path, *, pipes: bool = False) -> str:
    """A text file's contents, without its final newline; of a pipe, where `pipes` are welcome, all that comes. Raises
    BadRequest in one line: not a file, too large, unreadable, binary, not UTF-8, empty."""
    name = one_line(str(path))
    try:
        is_pipe = pipes and piped.is_pipe(path)
        if not is_pipe and not stat.S_ISREG(path.stat().st_mode):  # a pipe may wait for ever, a device have no end
            raise BadRequest(f"{name} is not a file")
        with piped.open_pipe(path) if is_pipe else path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as fault:
        raise BadRequest(f"cannot read {name}: {getattr(fault, 'strerror', None) or fault}") from fault
    check_size(size, name)
    return decode_text(_all_of(raw, name), name)


def read_stdin(wait_s: float | None = None) -> str:
    """As `read_text`; "" where nothing came within `wait_s`."""
    raw = piped.read_stdin(LARGEST_BYTES + 1, wait_s)
    return decode_text(_all_of(raw, "stdin"), "stdin") if raw or wait_s is None else ""


def _all_of(raw: bytes, name: str) -> bytes:
    if len(raw) > LARGEST_BYTES:  # of a pipe, nobody knows how much more
        raise BadRequest(f"{name} has more than the {figures.size(LARGEST_BYTES)} that a document may have")
    return raw


def check_size(size: int, name: str) -> None:
    """Raises BadRequest for more bytes than a document may have."""
    if size > LARGEST_BYTES:
        size_text, limit = figures.size(size), figures.size(LARGEST_BYTES)
        raise BadRequest(f"{name} has {size_text}: more than the {limit} that a document may have")


def decode_text(raw: bytes, name: str) -> str:
    """UTF-8 (a byte-order mark is dropped). Raises BadRequest for anything that is not text, and for nothing at all."""
    if b"\0" in raw:
        raise BadRequest(f"{name} is a binary file, not text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise BadRequest(f"{name} is not UTF-8 text (byte {fault.start:,})") from fault
    if not text.strip():
        raise BadRequest(f"{name} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")


def parse_jsonl(text: str, name: str) -> list[Prompt]:
    """One object a line, blank lines aside: {"prompt": text} or {"messages": [{"role", "content"}]}, and optionally
    "follow_up", "title" and "max_new_tokens"."""
    prompts: list[Prompt] = []
    # Not splitlines(): JSON strings may hold U+2028 and its like as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompt = _parse_line(line)
            if prompt.follow_up and not prompts:
                raise ValueError("a follow-up needs a prompt before it")
        except ValueError as fault:
            raise BadRequest(f"{name}, line {number}: {fault}") from fault
        prompts.append(prompt)
    return prompts


def check(prompt: Prompt) -> Prompt:
    """The prompt as it is. Raises BadRequest when there is nothing in it, or something that is not Unicode text."""
    if not prompt.text.strip():
        raise BadRequest("the prompt is empty")
    try:
        prompt.text.encode()
    except UnicodeEncodeError as fault:
        raise BadRequest(f"the prompt is not UTF-8 text (character {fault.start:,})") from fault
    return prompt


def built_in_prompts(max_new_tokens: int | None = None) -> list[Prompt]:
    """The stream that `kvtui` shows when it is given nothing else; with a limit of its own for each answer, unless
    `max_new_tokens` is given."""
    text = resources.files("kvtui").joinpath("data/prompts.jsonl").read_text("utf-8")
    prompts = parse_jsonl(text, "the built-in prompts")
    if max_new_tokens is None:
        return prompts
    return [msgspec.structs.replace(prompt, max_new_tokens=max_new_tokens) for prompt in prompts]


def built_in_document() -> str:
    """The text that the built-in stream is about."""
    return built_in_prompts()[0].text.removeprefix("Read this text.").strip()


def _parse_line(line: str) -> Prompt:
    try:
        item = json.loads(line)
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no character") from None
    except json.JSONDecodeError as fault:
        raise ValueError(f"not JSON ({fault.msg}, column {fault.colno})") from fault
    except RecursionError:
        raise ValueError("not JSON that a prompt could be (nested too deep)") from None
    if not isinstance(item, dict) or ("prompt" in item) == ("messages" in item):
        raise ValueError('expected an object with either "prompt" or "messages"')
    if unknown := sorted(item.keys() - _KEYS):
        raise ValueError(f"unknown key {json.dumps(unknown[0])}; known are {', '.join(sorted(_KEYS))}")
    follow_up, title, limit = item.get("follow_up", False), item.get("title", ""), item.get("max_new_tokens")
    if not isinstance(follow_up, bool):
        raise ValueError('"follow_up" is true or false')
    if not isinstance(title, str):
        raise ValueError('"title" is a text')
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 1 << 31):
        raise ValueError('"max_new_tokens" is a whole number above 0')
    messages = _check_messages(item["messages"]) if "messages" in item else None
    text = item.get("prompt", "")
    if not isinstance(text, str) or (messages is None and not text.strip()):
        raise ValueError('"prompt" is a text that is not empty')
    return Prompt(text=text, messages=messages, follow_up=follow_up, title=title, max_new_tokens=limit)


def _check_messages(messages: object) -> list[dict[str, str]]:
    fault = '"messages" is a list of objects with "role" (system, user or assistant) and "content" (text)'
    if not isinstance(messages, list) or not messages:
        raise ValueError(fault)
    for message in messages:
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise ValueError(fault)
        if message["role"] not in _ROLES or not isinstance(message["content"], str):
            raise ValueError(fault)
    if messages[-1]["role"] == "assistant":
        raise ValueError("the last message is the assistant's, so there is nothing to answer")
    if not any(message["content"].strip() for message in messages):
        raise ValueError("every message is empty")
    return messages
