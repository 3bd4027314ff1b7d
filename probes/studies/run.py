"""Runs a study: cell by cell with a progress bar, into its folder, and then the record, the charts and the reading."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from probes.studies.base import Cell, Study
from probes.studies.folder import Folder
from probes.studies.machine import machine, versions
from probes.studies.record import Measured, Record, Sitting


def run(study: Study, folder: Folder) -> Record:
    """Measures what is not yet measured, and writes the results. What an interruption or a fault leaves undone can be
    gone on with. Raises KvtuiError."""
    with folder.locked():
        cells = study.cells()
        done = [measured.cell for measured in folder.measured]
        missing = [cell for cell in cells if cell not in done]
        if missing:
            _measure(study, folder, missing, len(cells))
        # In the study's order, whatever order they were measured in.
        known = sorted(folder.measured, key=lambda measured: cells.index(measured.cell))
        rows = [row for measured in known for row in measured.rows]
        results = study.results(rows)
        links = [link for sitting in folder.sittings for link in sitting.links]
        record = Record(
            study=study.name,
            options=folder.begun.options,
            seed=folder.begun.seed,
            keys=study.keys,
            measures=study.measures,
            sittings=tuple(folder.sittings),
            link_modelled=any(not link.measured for link in links) if links else None,
            measured=tuple(known),
            results=results,
            reading=" ".join([study.reading(results), *_cautions(folder.sittings)]),
        )
        folder.finish(record, study.charts(results))
    return record


def _measure(study: Study, folder: Folder, missing: list[Cell], total: int) -> None:
    begun, count = _now(), 0
    about = machine()
    links = study.links()
    with _progress(total, total - len(missing)) as (say, step):
        study.said = say
        try:
            for cell in missing:
                say(_named(cell))
                folder.add(Measured(cell, study.measure(cell)))
                count += 1
                step(_named(cell))
        finally:
            if count:
                folder.end_sitting(Sitting(begun, _now(), count, versions(), about, links))


@contextmanager
def _progress(total: int, done: int) -> Iterator[tuple]:
    """Two callables: one takes a line about what is under way, the other what has just ended. A bar on a terminal, a
    line for each elsewhere; on standard error, as the results are what goes on."""
    if not sys.stderr.isatty():
        ended = done

        def count(what: str) -> None:
            nonlocal ended
            ended += 1
            print(f"{ended}/{total}  {what}", file=sys.stderr, flush=True)

        yield lambda line: None, count
        return
    columns = (
        SpinnerColumn(),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=done)

        def say(line: str) -> None:
            bar.update(task, description=line.replace("[", r"\["))

        yield say, lambda what: bar.advance(task)


def _named(cell: Cell) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in cell.items()) or "all"


def _cautions(sittings: list[Sitting]) -> Iterator[str]:
    """What a reader should know of how it was measured."""
    if not sittings:
        return
    if any(cast(float, sitting.machine["load_1m"]) > cast(int, sitting.machine["cores"]) / 2 for sitting in sittings):
        yield "Other work was running when it began: trust ratios within it more than its times."
    first, *others = sittings
    if any(_fixed(other) != _fixed(first) for other in others):
        yield "It was measured in several sittings, with other versions or on another machine: see the record."
    elif others:
        yield f"It was measured in {len(sittings)} sittings."


def _fixed(sitting: Sitting) -> tuple:
    return sitting.versions, {name: value for name, value in sitting.machine.items() if name != "load_1m"}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
