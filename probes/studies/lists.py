"""Options that hold several values, separated by commas: "0.2,0.3", "512,4k", "1k..128k", "vllm,h2o"."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from engines.errors import BadRequest
from engines.sizes import parsed

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
MOST = 1 << 24
_COUNT = re.compile(r"(\d{1,8})\s*([km]?)", re.IGNORECASE)


def counts(option: str, text: str) -> list[int]:
    """Each once, in the order given: "1k,4k,1M", or "1k..128k", which doubles from one to the other. Raises
    BadRequest."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low, high = _count(option, first), _count(option, last) if dots else 0
        found.append(low)
        if dots and high < low:
            raise BadRequest(f"{option} {part.strip()!r} ends before it begins")
        while found[-1] * 2 < high:
            found.append(found[-1] * 2)
        if high > found[-1]:
            found.append(high)
    return list(dict.fromkeys(found))


def _count(option: str, text: str) -> int:
    match = _COUNT.fullmatch(text.strip())
    number = int(match[1]) * UNITS[match[2].lower()] if match else 0
    if not 1 <= number <= MOST:
        raise BadRequest(f"{option} takes numbers from 1 to {MOST:,} such as 512, 4k or 1M, or 1k..128k, not {text!r}")
    return number


def numbers(option: str, text: str, most: float = math.inf) -> list[float]:
    """Each once, in the order given. Raises BadRequest unless all are above 0 and at most `most`."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < number <= most and math.isfinite(number) for number in found):
        limit = "" if most == math.inf else f" and at most {most:g}"
        raise BadRequest(f"{option} is numbers above 0{limit}, separated by commas, not {text!r}")
    return list(dict.fromkeys(found))


def words(option: str, text: str, known: Collection[str]) -> list[str]:
    """Each once, in the order given. Raises BadRequest for one that is not known."""
    found = [part.strip() for part in text.split(",")]
    for word in found:
        if word not in known:
            raise BadRequest(f"{option} has no {word!r}: choose from {', '.join(known)}")
    return list(dict.fromkeys(found))


def size(option: str, text: str | None) -> int | None:
    """Bytes of "80GB" or "24GiB"; None of None. Raises BadRequest."""
    found = None if text is None else parsed(text)
    if text is not None and found is None:
        raise BadRequest(f"{option} is a size such as 512MiB or 2GB, not {text!r}")
    return found
