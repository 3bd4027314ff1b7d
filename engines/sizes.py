"""Bytes and counts as people read them, on the screen and in messages: one unit everywhere."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def size(size_bytes: float) -> str:
    """Three figures and a decimal unit: "94.4 MB", "1.21 GB", "312 kB"."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return (
                f"{value:.0f} {unit}"
                if unit == "B" or value >= 99.95
                else f"{value:.{1 if value >= 9.95 else 2}f} {unit}"
            )
        value /= 1000
    return f"{value:,.1f} TB"


def counted(count: int, what: str) -> str:
    """ "1 token", "1,024 tokens"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def parsed(text: str) -> int | None:
    """The bytes that "512MiB", "2GB", "1.5GiB" or a plain number stand for; None for anything else."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([A-Za-z]*)", text.strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    size_bytes = int(float(found[1]) * unit) if found and unit else 0
    return size_bytes if 1 <= size_bytes < 1 << 60 else None
