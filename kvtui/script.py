"""Demo scripts: TOML that says what a talk does, step by step.

    title = "Watch a fact being forgotten"
    [race]                         # any option of `kvtui`, by its long name
    budget = 0.3
    [[step]]
    caption = "Three caches read the same page."
    [[step]]
    wait = "first eviction"        # see `conditions.CONDITIONS`; or seconds, as a number
    engine = "h2o"                 # of which engine; without it, of any
    of = 2                         # of which prompt of the stream; without it, of the current one
    timeout = 60                   # seconds after which the script gives up
    [[step]]
    prompt = "What was the code word?"
    [[step]]
    keys = ["d", "n"]

A step does what it names in the order caption, race, document and prompt, keys, wait.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import msgspec

from engines.errors import BadRequest
from engines.events import ENGINE_LABELS
from kvtui.conditions import CONDITIONS
from kvtui.options import race_options
from kvtui.prompts import LARGEST_BYTES, read_text

LONGEST_S = 86_400

Option = str | float | int | bool


class Step(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One step. `race` starts the worker again with these options changed. `document` is a file beside the script, or
    "built-in", taken `repeat` times, with `prompt` as the question below it; a `prompt` alone is a follow-up unless
    `fresh`."""

    caption: str | None = None
    race: dict[str, Option] | None = None
    document: str | None = None
    repeat: int = 1
    prompt: str | None = None
    fresh: bool = False
    keys: str | list[str] = msgspec.field(default_factory=list)
    wait: str | float | int | None = None
    engine: str = ""
    of: int | None = None
    timeout: float = 180.0

    @property
    def key_names(self) -> list[str]:
        return [self.keys] if isinstance(self.keys, str) else self.keys


class Script(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`stream`: whether the built-in prompts run; otherwise only what the steps ask. `name` and `folder` are
    those of the file."""

    title: str
    step: list[Step]
    about: str = ""
    race: dict[str, Option] = {}
    stream: bool = True
    name: str = ""
    folder: str = "."


def shipped() -> Iterator[tuple[str, Script]]:
    """Names and scripts that come with kvtui."""
    folder = resources.files("kvtui").joinpath("scripts")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            yield file.name.removesuffix(".toml"), parse(file.read_text("utf-8"), file.name)


def find(name: str) -> Script:
    """A file, or the name of a shipped one. Raises BadRequest in one line."""
    path = Path(name)
    if path.suffix != ".toml" and not path.exists():
        known = dict(shipped())
        if name not in known:
            raise BadRequest(f'no script "{name}"; shipped are {", ".join(known)}, anything else is a .toml file')
        return known[name]
    return msgspec.structs.replace(parse(read_text(path), str(path)), folder=str(path.parent))


def parse(text: str, name: str) -> Script:
    """Raises BadRequest: what is wrong, and in which step."""
    try:
        script = msgspec.toml.decode(text, type=Script)
    except (msgspec.DecodeError, msgspec.ValidationError) as fault:
        raise BadRequest(f"{name}: {fault}") from None
    if not script.step:
        raise BadRequest(f"{name}: a script needs at least one [[step]]")
    for number, step in enumerate(script.step, start=1):
        if isinstance(step.wait, str) and step.wait not in CONDITIONS:
            raise BadRequest(f'{name}, step {number}: cannot wait for "{step.wait}"; known are {", ".join(CONDITIONS)}')
        if not isinstance(step.wait, str) and step.wait is not None and not 0 <= step.wait < LONGEST_S:
            raise BadRequest(f"{name}, step {number}: a wait of {step.wait:g} seconds is no wait")
        if not 1 <= step.repeat <= LARGEST_BYTES or not 0 < step.timeout < LONGEST_S:
            raise BadRequest(f'{name}, step {number}: "repeat" and "timeout" are above 0, and no more than a talk has')
        if step.engine and step.engine not in ENGINE_LABELS:
            raise BadRequest(f'{name}, step {number}: no engine "{step.engine}"; known are {", ".join(ENGINE_LABELS)}')
        for key in step.key_names:
            if not is_key(key):
                raise BadRequest(f'{name}, step {number}: no key is called "{key}"')
    return msgspec.structs.replace(script, name=name)


def is_key(name: str) -> bool:
    """Whether Textual has a key of that name, which is a character or a word, with modifiers and "+" before it."""
    from textual.keys import KEY_TO_UNICODE_NAME, REPLACED_KEYS, Keys  # here, as the plain commands need no Textual

    *modifiers, key = name.split("+") if name != "+" else [name]
    if not set(modifiers) <= {"ctrl", "shift", "alt", "super"}:
        return False
    if len(key) == 1:
        return key.isprintable()
    if name in set(Keys) or key in set(Keys):
        return True
    key = REPLACED_KEYS.get(key, key)
    try:
        unicodedata.lookup(KEY_TO_UNICODE_NAME.get(key) or key.replace("_", " "))
    except KeyError:
        return False
    return True


def arguments(options: dict[str, Option]) -> list[str]:
    """The options as the command line would give them. Raises BadRequest for one that is no part of a race."""
    given, known = [], race_options()
    for name, value in options.items():
        if name.replace("_", "-") not in known:
            raise BadRequest(f'"{name}" is no option of a race')
        flag = "--" + name.replace("_", "-")
        if value is True:
            given.append(flag)
        elif value is not False:
            given += [flag, str(value)]
    return given
