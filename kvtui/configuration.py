"""From the command line's options to what a worker starts with, and where its prompts come from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from engines.commands import Prompt, WorkerConfig
from engines.errors import BadRequest
from engines.events import SERVER
from kvtui.literal import one_line

_STDIN_WAIT_S = 3.0
_DEFAULT_QUESTION = "Summarise the text above in a few sentences."


def configure(options: dict[str, Any], *, piped: bool = True) -> WorkerConfig:
    """Options to a worker's configuration, knobs checked, prompts read, if `piped` from a stdin that is a pipe."""
    from engines.knobs import check_knobs
    from engines.server_address import checked_address

    texts = options.pop("prompts")
    prompt_file, document = options.pop("prompt_file"), options.pop("document")
    for tier in ("device_memory", "host_memory", "disk"):
        options[f"{tier}_bytes"] = options.pop(tier)
    options["engines"], options["server"] = _apart(options["engines"])
    config = WorkerConfig(**options)
    check_knobs(config)
    if config.server is not None:
        config = msgspec.structs.replace(config, server=checked_address(config.server))
    _check_encodable(config)
    stream = _prompts(prompt_file, document, texts, piped=piped and not in_browser())
    if not stream:
        from kvtui.prompts import built_in_prompts

        stream = built_in_prompts(config.max_new_tokens if is_given("max_new_tokens") else None)
    return msgspec.structs.replace(config, prompts=stream)


def _apart(engines: list[str]) -> tuple[list[str], str | None]:
    """Ids, and the address that stands behind the server's."""
    parts = [engine.partition("=") for engine in engines]
    server = next((address for id, found, address in parts if id == SERVER and found), None)
    return [id if id == SERVER else id + found + address for id, found, address in parts], server


def _check_encodable(config: WorkerConfig) -> None:
    """A command line is bytes; what of it was no UTF-8 cannot be sent to the worker."""
    from engines import commands

    try:
        commands.encode(config)
    except UnicodeEncodeError as fault:
        raise BadRequest(f"an option is not UTF-8 text: {fault.object}") from None


def _prompts(prompt_file: Path | None, document: Path | None, texts: tuple[str, ...], *, piped: bool) -> list[Prompt]:
    """The prompt stream: the file's prompts, then each --prompt; else what stdin brings, which may be nothing."""
    from kvtui import prompts
    from kvtui.piped import name_of

    if not piped and "-" in (str(prompt_file), str(document)):
        raise BadRequest('"-" would be stdin, where nobody writes here')
    if document is not None and prompt_file is not None:
        raise click.UsageError("--document goes with --prompt; a --prompt-file holds its own documents")
    stream = []
    if prompt_file is not None:
        from_stdin = str(prompt_file) == "-"
        stream += [Prompt(text=prompts.read_stdin())] if from_stdin else prompts.read_prompt_file(prompt_file)
    for text in texts:
        stream.append(prompts.check(Prompt(text=text)))
    if document is not None:
        from_stdin = str(document) == "-"
        text = prompts.read_stdin() if from_stdin else prompts.read_text(document, pipes=True)
        question = stream[0].text if stream else _DEFAULT_QUESTION
        title = "stdin" if from_stdin else one_line(name_of(document))
        stream[:1] = [Prompt(document=text, text=question, title=title)]
    if not stream and piped and not is_terminal(sys.stdin) and (text := prompts.read_stdin(_STDIN_WAIT_S)):
        stream = [Prompt(text=text)]
    return stream


def is_given(option: str) -> bool:
    """Whether the person gave it, rather than its default."""
    return click.get_current_context().get_parameter_source(option) is not click.core.ParameterSource.DEFAULT


def in_browser() -> bool:
    """Whether `kvtui serve` started this: then the pipes lead to a visitor's browser."""
    return "web_driver" in os.environ.get("TEXTUAL_DRIVER", "")


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
