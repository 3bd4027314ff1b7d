"""Options that hold several values, separated by commas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from engines.errors import BadRequest

Number = TypeVar("Number", int, float)


def numbers(option: str, text: str, kind: type[Number], most: float = math.inf) -> list[Number]:
    """Each once, in the order given. Raises BadRequest unless all are above 0 and at most `most`."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number <= most and math.isfinite(number) for number in found):
        what = "whole numbers above 0" if kind is int else "numbers above 0"
        limit = "" if most == math.inf else f" and at most {most:g}"
        raise BadRequest(f"{option} is {what}{limit}, separated by commas, not {text!r}")
    return list(dict.fromkeys(found))


def words(option: str, text: str, known: Sequence[str]) -> list[str]:
    """Each once, in the order given. Raises BadRequest for one that is not known."""
    found = [part.strip() for part in text.split(",")]
    for word in found:
        if word not in known:
            raise BadRequest(f"{option} has no {word!r}: choose from {', '.join(known)}")
    return list(dict.fromkeys(found))
