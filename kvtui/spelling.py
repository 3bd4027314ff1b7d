"""Signs that need more room where there is only ASCII: `ascii` keeps every width, and one character would be another
key ("<") or mean something else ("=")."""

from __future__ import annotations

_KEYS = str.maketrans(
    {"←": "left", "→": "right", "↑": "up", "↓": "down", "⏎": "enter", "⌫": "bksp", "⇧": "shift+", "−": "-", "…": "..."}
)
_ARROWS = str.maketrans({"→": "->", "⇄": "<->"})

_spelled = False


def use(ascii_only: bool) -> None:
    """From the next drawing on."""
    global _spelled
    _spelled = ascii_only


def keys(text: str) -> str:
    """Names of keys, or a sentence about them; every arrow in it is a key."""
    return text.translate(_KEYS) if _spelled else text


def arrows(text: str) -> str:
    """Arrows that say from where to where."""
    return text.translate(_ARROWS) if _spelled else text
