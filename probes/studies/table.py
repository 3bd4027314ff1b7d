"""Rows as a table for the terminal."""

from __future__ import annotations

from typing import Any

from probes.studies.base import Rows


def table(rows: Rows) -> str:
    """Aligned columns, a header from the keys."""
    if not rows:
        return "no rows"
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[one_line(name) for name in names], *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
    return one_line(str(value))


def one_line(text: str) -> str:
    """Text out of a file: what would move the cursor, or break the line, is a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)
