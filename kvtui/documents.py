"""Documents that a question is about: pasted, dropped on the terminal, or read from a file."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kvtui import figures
from kvtui.literal import one_line
from kvtui.prompts import read_text

PASTED = "pasted text"
CHARACTERS_A_TOKEN = 4  # of English; what else there is has fewer, so an estimate is on the low side
CLEARLY = 1.2
NAME_CHARACTERS = 32
DROP_CHARACTERS = 8192
_DROP_STARTS = ("/", "'/", '"/', "file://", "'file://", '"file://')


@dataclass(frozen=True)
class Document:
    name: str
    text: str

    @property
    def size_bytes(self) -> int:
        return len(self.text) if self.text.isascii() else len(self.text.encode(errors="replace"))

    @property
    def tokens(self) -> int:
        """An estimate: the real ones are counted in the worker, by the model's tokenizer."""
        return -(-len(self.text) // CHARACTERS_A_TOKEN)

    def label(self, context_limit: int | None) -> str:
        """ "moby.txt · 1.25 MB · ~312k tokens", with the model's context when that is clearly too much for it."""
        name = one_line(self.name)
        if len(name) > NAME_CHARACTERS:
            name = name[: NAME_CHARACTERS // 2] + "…" + name[1 - NAME_CHARACTERS // 2 :]
        tokens = f"{self.tokens:,}" if self.tokens < 10_000 else f"{self.tokens / 1000:,.0f}k"
        over = context_limit is not None and self.tokens > CLEARLY * context_limit
        limit = f" > context {context_limit:,}" if over else ""
        return f"{name} · {figures.size(self.size_bytes)} · ~{tokens} token{'s' * (self.tokens != 1)}{limit}"

    def followed_by(self, other: Document) -> Document:
        """Both as one."""
        name = self.name if self.name == other.name else f"{self.name} + {other.name}"
        return Document(name, f"{self.text}\n{other.text}")


def read_documents(paths: list[Path]) -> Document:
    """The text files as one document; several follow each other, each under its name. Waits for the disk. Raises
    BadRequest in one line: not a file, too large, unreadable, binary, not UTF-8, empty."""
    documents = [Document(one_line(path.name), read_text(path)) for path in paths]
    if len(documents) == 1:
        return documents[0]
    text = "\n\n".join(f"{document.name}\n\n{document.text}" for document in documents)
    return Document(" + ".join(document.name for document in documents), text)


def may_be_dropped(text: str) -> bool:
    """Whether it looks like what a terminal pastes for files that are dropped on it; cheap."""
    return len(text) <= DROP_CHARACTERS and text.lstrip().startswith(_DROP_STARTS)


def dropped_paths(text: str) -> list[Path]:
    """The existing files that `text` names, if it is nothing but their absolute paths: as they are, in quotes, with
    backslashes before spaces, or as file:// addresses; one, or several in a row or a line each. Waits for the disk."""
    ways = [[text.strip()], [line.strip() for line in text.strip().split("\n")], text.split()]
    with contextlib.suppress(ValueError):  # an apostrophe in a name
        ways.append(shlex.split(text))
    for words in ways:
        paths = [_local_path(word) for word in words]
        if paths and all(map(_is_file, paths)):
            return paths
    return []


def _local_path(word: str) -> Path:
    if word.startswith("file://"):
        address = urlsplit(word, allow_fragments=False)
        return Path(unquote(address.path))
    return Path(word)


def _is_file(path: Path) -> bool:
    try:
        return path.is_absolute() and path.is_file()
    except (OSError, ValueError):  # too long a name, a folder that may not be looked into
        return False
