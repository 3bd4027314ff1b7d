"""What a plan's options say: "1k..128k", "1,8,32", "80GB", "pcie4*7"."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from engines.errors import BadRequest
from engines.machines import GB, LATENCY_S, links
from probes.plan.rates import Link

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
SIZES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
MOST = 1 << 24
_COUNT = re.compile(r"(\d+)\s*([km]?)", re.IGNORECASE)


def counts(text: str, option: str) -> list[int]:
    """ "1k,4k,1M", or "1k..128k", which doubles from one to the other. Raises BadRequest."""
    found: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low, high = _count(first, option), _count(last, option) if dots else 0
        found.append(low)
        if dots and high < low:
            raise BadRequest(f"{option} {part.strip()!r} ends before it begins")
        while found[-1] * 2 < high:
            found.append(found[-1] * 2)
        if high > found[-1]:
            found.append(high)
    return list(dict.fromkeys(found))


def _count(text: str, option: str) -> int:
    match = _COUNT.fullmatch(text.strip())
    number = int(match[1]) * UNITS[match[2].lower()] if match and len(match[1]) < 9 else 0
    if not 1 <= number <= MOST:
        raise BadRequest(f"{option} takes numbers from 1 to {MOST:,} such as 512, 4k or 1M, or 1k..128k, not {text!r}")
    return number


def choices(text: str, known: Collection[str], option: str) -> list[str]:
    """Some of `known`, separated by commas. Raises BadRequest."""
    found = [part.strip() for part in text.split(",")]
    for one in found:
        if one not in known:
            raise BadRequest(f"{option} knows no {one!r}: choose from {', '.join(known)}")
    return list(dict.fromkeys(found))


def bytes_of(text: str | None, option: str) -> int | None:
    """ "80GB", "24GiB". Raises BadRequest."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if not match or match[2] not in SIZES or len(match[1]) > 15 or not float(match[1]):
        raise BadRequest(f"{option} is a size such as 80GB or 24GiB, not {text!r}")
    return int(float(match[1]) * SIZES[match[2]])


def link(text: str) -> Link:
    """ "pcie4"; "pcie4*7", seven times as fast; "unscaled:25", in GB/s. Raises BadRequest, which lists the known."""
    name, _, factor = text.partition("*")
    name = name.strip()
    try:
        times = float(factor) if factor else 1.0
        rate = float(name.removeprefix("unscaled:")) * GB if name.startswith("unscaled:") else None
    except ValueError:
        times, rate = 0.0, 0.0
    if rate is None and name in links():
        rate = links()[name].bytes_per_s
    total = (rate or 0.0) * times
    if not 0 < total < math.inf:
        raise BadRequest(
            f"unknown link {text!r}: known are {', '.join(links())} and unscaled:<GB/s>, with *7 for 7 times as fast"
        )
    return Link(total, LATENCY_S)
