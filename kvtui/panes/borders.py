"""What stands in a column's borders: whole words, as many as there is room for."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len, set_cell_size

from kvtui.improvements import Knob
from kvtui.literal import one_line
from kvtui.names import OTHER

_FIRST = ("address", "anchors", "scoring", "prefetch", "prefill", "budget", "budget_tokens", "alpha")
_NOBODYS_CHOICE = ("arena_tokens", "victim")
_OFF: tuple[Knob, ...] = (None, 0, "off")  # False is 0


def knobs_told(knobs: Mapping[str, Knob], room: int) -> str:
    """Where a server is, then improvements, then the rest: those that fit into `room` cells, each in as few words as
    it takes. Which budget is in the header, too."""
    shown = {name: value for name, value in knobs.items() if name not in _NOBODYS_CHOICE and value not in _OFF}
    if shown.get("scoring") == shown.get("prefill"):
        shown.pop("scoring", None)
    line = ""
    for name in sorted(shown, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
        worded = [f"{line}, {one_line(words)}" if line else one_line(words) for words in _worded(name, shown[name])]
        fitting = next((words for words in worded if cell_len(words) <= room), None)
        if fitting is None:
            return line or _cut(worded[-1], room)
        line = fitting
    return line


def model_told(name: str, room: int) -> str:
    """A model's name; without whose it is, where there is no room for that."""
    mark = f"{OTHER} " * name.startswith(f"{OTHER} ")
    short = mark + name.removeprefix(mark).rpartition("/")[2]
    return name if cell_len(name) <= room else _cut(short, room)


def _worded(name: str, value: Knob) -> list[str]:
    """In more words and in fewer."""
    if name == "address":
        return [str(value), str(value).partition("://")[2].partition("/")[0] or str(value)]
    if name == "clock":
        return [f"clock {value}", str(value), "wall time"]
    if name in ("prefill", "scoring", "prefetch"):
        return [f"{value} {name}"]
    short = {"heavy_share": "heavy", "partial_ratio": "partial", "alpha": "α"}.get(name, name.replace("_", " "))
    if value is True:
        return [short]
    return [f"{short} {value:g}" if isinstance(value, float) else f"{short} {value}"]


def _cut(text: str, room: int) -> str:
    """What does not fit in any words."""
    return text if cell_len(text) <= room else set_cell_size(text, max(0, room - 1)).rstrip() + "…" * (room > 0)
