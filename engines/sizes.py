"""Bytes and counts as people read them, on the screen and in messages: one unit everywhere."""

from __future__ import annotations


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
