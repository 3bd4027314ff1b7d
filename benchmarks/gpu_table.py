"""One line of a GPU check's table, with the limit that it is held against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`limit` None: for information."""

    what: str
    value: float
    unit: str = ""
    limit: float | None = None
    at_least: bool = False

    @property
    def off(self) -> bool:
        if self.limit is None:
            return False
        return not (self.value >= self.limit if self.at_least else self.value <= self.limit)  # NaN is off, too

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"{'≥' if self.at_least else '≤'} {self.limit:g}"
        verdict = "" if self.limit is None else "OFF" if self.off else "ok"
        return f"{self.what:<62} {self.value:>10.4g} {self.unit:<4} {limit:>10}  {verdict}".rstrip()
