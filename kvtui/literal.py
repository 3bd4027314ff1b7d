"""Text from models, documents and traces, shown as it is: nothing in it can steer the terminal or hide."""

from __future__ import annotations

import re

BRIEF_CHARACTERS = 450
_CHAT_MARKS = re.compile(r"<\|[^|<>\s]{1,40}\|>(?:assistant|system|user)?\s*|</?s>|\[/?INST\]")

_VISIBLE = {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
_VISIBLE |= {0x09: "    ", 0x7F: "␡"}
_VISIBLE |= {code: f"⟨{code:02X}⟩" for code in range(0x80, 0xA0)}
# Marks that reorder or join text without showing themselves. The joiner and the selectors inside emoji are dropped
# rather than spelled out: what is left is the emoji's parts, which every terminal measures alike.
_INVISIBLE = (
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x180E, 0x200B, 0x200C, 0x200E, 0x200F, 0x2028, 0x2029, 0x3164, 0xFEFF),
    *(0xFFA0, 0xE0001),
    *(*range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC), *range(0x1BCA0, 0x1BCA4)),
    *(*range(0x1D173, 0x1D17B), *range(0xE0020, 0xE0080)),
)
_VISIBLE |= {code: f"⟨{code:04X}⟩" for code in _INVISIBLE}
_VISIBLE |= dict.fromkeys((0x200D, *range(0xFE00, 0xFE10), *range(0x180B, 0x180E), *range(0xE0100, 0xE01F0)), "")
_VISIBLE |= dict.fromkeys(range(55296, 57344), "�")


def literal(text: str) -> str:
    """`text` with control, bidirectional and zero-width characters made visible; line breaks stay, a tab is 4 cells."""
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    """As `literal`, with runs of white space (line breaks too) as one space."""
    return literal(" ".join(text.split()))


def brief(text: str) -> str:
    """As `one_line`, for what a person is told: the middle left out of what quotes a whole file."""
    line = one_line(text)
    if len(line) <= BRIEF_CHARACTERS:
        return line
    return f"{line[: BRIEF_CHARACTERS * 2 // 3]} … {line[-BRIEF_CHARACTERS // 3 :]}"


def quoted(token: str) -> str:
    """A token in quotes, its white space kept, a line break as a sign. Part of a character has no text yet."""
    return f"“{literal(token.replace(chr(10), '⏎'))}”" if token else "“…”"


def spoken(text: str) -> str:
    """A prompt without the chat template's marks, for previews that show how it ends."""
    return _CHAT_MARKS.sub("\n", text).strip()


def question(text: str) -> str:
    """The last paragraph of a prompt, which is what is asked about all that comes before it."""
    return spoken(text).rsplit("\n\n", 1)[-1]
