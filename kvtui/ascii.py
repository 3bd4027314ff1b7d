"""Any text in ASCII, cell for cell: for terminals, fonts and pipes that have nothing else."""

from __future__ import annotations

import codecs
import os
import sys
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

CODEC_ERRORS = "kvtui-ascii"  # for `stream.reconfigure(errors=…)`, see `register`
_OLD_TERMINALS = ("linux", "vt52", "vt100", "vt102", "vt220", "ansi", "cons25", "sun")  # without most of the glyphs
_UNKNOWN = "?"

_SIGNS = {
    # the cache picture: the states of `palette.GLYPHS` and `THINNED` stay distinct
    **{"█": "#", "▀": "#", "░": ":", "≡": "=", "↑": "^", "·": ".", "◆": "@"},
    **{"⠂": ",", "⠒": "-", "⠖": "+", "⠶": "%", "╋": "X"},
    # graphs and bars
    **{"▁": "_", "▂": "_", "▃": "o", "▄": "o", "▅": "o", "▆": "#", "▇": "#", "▒": ":", "▓": "#", "▔": "-"},
    **{"▏": "|", "▎": "|", "▍": "|", "▌": "|", "▋": "#", "▊": "#", "▉": "#", "▐": "|", "▕": "|"},
    # states, keys, punctuation
    **{"●": "*", "○": "o", "◔": "~", "◌": "o", "■": "#", "◼": "#", "✓": "+", "✖": "x", "×": "x", "▶": ">", "▸": ">"},
    **{"‖": "|", "≠": "!", "›": ">", "‹": "<", "»": ">", "«": "<", "▤": "=", "…": ".", "•": "*", "§": "S", "¶": "P"},
    **{"↓": "v", "←": "<", "→": ">", "⇄": "-", "↔": "-", "↕": "|", "⏎": "<", "⌫": "<", "▲": "^", "▼": "v", "◀": "<"},
    **{"‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "―": "-", "−": "-", "±": "~", "≈": "~", "≤": "<", "≥": ">"},
    **{"“": '"', "”": '"', "„": '"', "‟": '"', "‘": "'", "’": "'", "‚": ",", "‛": "'", "′": "'", "″": '"'},
    **{"⟨": "<", "⟩": ">", "⁄": "/", "÷": "/", "°": "o", "µ": "u", "α": "a", "β": "b", "σ": "s", "Σ": "S", "Δ": "D"},
    # letters that do not decompose
    **{"ß": "s", "ø": "o", "Ø": "O", "æ": "a", "Æ": "A", "œ": "o", "Œ": "O", "đ": "d", "Đ": "D", "ð": "d", "Ð": "D"},
    **{"ł": "l", "Ł": "L", "ı": "i", "þ": "p", "Þ": "P", "ħ": "h", "Ħ": "H", "ŋ": "n", "¡": "!", "¿": "?", "€": "E"},
}


class _Table(dict[int, str]):
    """For `str.translate`: each character's ASCII of the same width, found when it is first met."""

    def __missing__(self, code: int) -> str:
        found = self[code] = chr(code) if 32 <= code < 127 else _ascii_of(chr(code))
        return found


def _ascii_of(character: str) -> str:
    from rich.cells import get_character_cell_size  # what the command line needs of this module is quicker without

    cells = get_character_cell_size(character)
    if not cells:
        return ""
    look = _look(character)
    return look.ljust(cells) if look != _UNKNOWN else look * cells


def _look(character: str) -> str:
    """One ASCII character that looks or means the same; a question mark where there is none."""
    if (sign := _SIGNS.get(character)) is not None:
        return sign
    code = ord(character)
    if 0x2500 <= code < 0x2580:
        return _of_box(unicodedata.name(character))
    if 0x2800 <= code < 0x2900:
        return " ..::**##"[(code - 0x2800).bit_count()]
    if 0x2596 <= code < 0x25A0 or 0x1FB00 <= code < 0x1FB3C:  # quadrants and sextants
        return "*"
    if 0x2400 <= code < 0x2422:  # pictures of control characters, see `literal`
        return "^"
    plain = [c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c)]
    return plain[0] if len(plain) == 1 and plain[0].isascii() and plain[0].isprintable() else _UNKNOWN


def _of_box(name: str) -> str:
    """Heavy lines as light ones: "#" and "=" are the bars' and the pictures'."""
    across = any(word in name for word in ("HORIZONTAL", "LEFT", "RIGHT"))
    down = any(word in name for word in ("VERTICAL", "UP", "DOWN"))
    if "DIAGONAL" in name:
        return "X" if "CROSS" in name else "/" if "UPPER RIGHT TO LOWER LEFT" in name else "\\"
    if across and down:
        return "+"
    return "-" if across else "|"


_TABLE = _Table()


@lru_cache(maxsize=8192)
def to_ascii(text: str) -> str:
    """`text` with each character replaced by ASCII of the same width in cells."""
    if text.isascii():
        return text
    if "\u200d" not in text and "\ufe0f" not in text:
        return text.translate(_TABLE)
    from rich.cells import cell_len, split_graphemes

    # Joiners and selectors change the width of what stands before them; where they make no sense, Rich counts in its
    # own way.
    spans, _ = split_graphemes(text)
    shown = "".join(text[start:end].translate(_TABLE)[:cells].ljust(cells) for start, end, cells in spans)
    cells = cell_len(text)
    return shown[:cells].ljust(cells)


def by_locale(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the person's locale is one without Unicode. Nothing set at all is no such wish: that is what containers
    and services have."""
    if environ.get("PYTHONUTF8") == "1":
        return False
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    _, dot, codeset = locale.partition(".")
    if dot:
        return codeset.split("@")[0].lower().replace("-", "") != "utf8"
    return locale in ("C", "POSIX")


def by_terminal(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal is one whose font lacks most of the glyphs."""
    return environ.get("TERM", "").lower().split("-")[0] in _OLD_TERMINALS


def register() -> None:
    """Standard output and error say in ASCII what their encoding lacks; what has no look in ASCII is spelled out."""
    codecs.register_error(CODEC_ERRORS, _replace)
    narrow = by_locale()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=CODEC_ERRORS, encoding="ascii" if narrow and _is_utf8(stream.encoding) else None)


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("-", "") == "utf8"


def _replace(fault: UnicodeError) -> tuple[str, int]:
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    said = []
    for character in fault.object[fault.start : fault.end]:
        look = to_ascii(character)
        known = look.strip(_UNKNOWN) or not look
        said.append(look if known else character.encode("ascii", "backslashreplace").decode("ascii"))
    return "".join(said), fault.end
