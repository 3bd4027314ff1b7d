"""Renders docs/templates/*.md to docs/*.md, with the numbers of docs/results/*.json: `make docs-results`.

A template is Jinja2 with `results(NAME)`, a study's record with ways to look a row up, and `table(rows, columns)`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from probes.studies.base import Row, Rows
from probes.studies.record import Record, load

HERE = Path(__file__).parent
NOTICE = "<!-- Made by `make docs-results` out of docs/templates/{} and docs/results: edit those. -->\n\n"
SCALES = {"ms": (1e3, ".1f"), "MB": (1e-6, ",.1f"), "MiB": (1 / 2**20, ",.1f"), "GB": (1e-9, ",.2f"), "%": (100, ".0f")}


class Results:
    """A record's results, for a page."""

    def __init__(self, record: Record) -> None:
        self.record, self.rows, self.reading = record, record.results, record.reading

    def where(self, **wanted: Any) -> Rows:
        """The rows that have these values."""
        return [row for row in self.rows if all(row.get(name) == value for name, value in wanted.items())]

    def row(self, **wanted: Any) -> Row:
        """The one row that has these values."""
        found = self.where(**wanted)
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows of the study {self.record.study} have {wanted}")
        return found[0]

    @property
    def made(self) -> str:
        """When, on what, and over which link."""
        first = self.record.sittings[0]
        machine = first.machine
        links = ", ".join(link.profile for link in first.links)
        link = "" if self.record.link_modelled is None else f", link {links}"
        return (
            f"{first.begun[:10]}, {machine['cpu']}, {machine['cores']} cores, torch {first.versions['torch']}, "
            f"{machine['torch_threads']} threads, seed {self.record.seed}{link}"
            f"{' (modelled)' if self.record.link_modelled else ''}"
        )


def shown(value: Any, form: str = "") -> str:
    """A number in a page. `form` is a format, or a unit: ms, MB, MiB, GB, %."""
    if value is None:
        return "–"
    if form in SCALES:
        factor, form = SCALES[form]
        value *= factor
    return format(value, form or ("," if isinstance(value, int) and not isinstance(value, bool) else ""))


def table(rows: Rows, columns: Mapping[str, str]) -> str:
    """Markdown. `columns` are headers with a row's column and its form: `{"TPOT ms": "tpot_s ms"}`."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = [shown(row[name], form) for name, _, form in (column.partition(" ") for column in columns.values())]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render(template: Path, results: Path = HERE / "results") -> str:
    """A page. Raises LookupError or jinja2's errors where a template asks for what is not there."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["shown"] = shown
    environment.globals.update(results=lambda name: Results(load(results / f"{name}.json")), table=table)
    return NOTICE.format(template.name) + environment.get_template(template.name).render()


def templates() -> list[Path]:
    return sorted((HERE / "templates").glob("*.md"))


def main() -> int:
    for template in templates():
        (HERE / template.name).write_text(render(template), "utf-8")
        print(f"docs/{template.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
