"""A study's folder: its options, the rows of each cell as it ends, and at last the record, a CSV and the charts.

What was measured is on the disk before the next cell begins, so an interruption costs one cell.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from engines.errors import BadRequest, KvtuiError
from probes.studies.base import Chart, Scalar
from probes.studies.charts import to_svg
from probes.studies.record import Measured, Record, Sitting, to_csv, to_json

T = TypeVar("T")


class Begun(msgspec.Struct, frozen=True):
    """What a study began with."""

    study: str
    options: dict[str, Scalar]
    seed: int


class Folder:
    """`measured` are the cells that are done, `sittings` those that have ended."""

    def __init__(self, path: Path, begun: Begun) -> None:
        self.path, self.begun = path, begun
        self.measured: list[Measured] = []
        self.sittings: list[Sitting] = []

    @classmethod
    def create(cls, path: Path, begun: Begun) -> Folder:
        """A new one. Raises BadRequest when there is something already, or it cannot be made."""
        with _refusals(path):
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise BadRequest(f"{path} is not empty; --resume {path} goes on with a study that was interrupted")
            (path / "study.json").write_bytes(msgspec.json.format(msgspec.json.encode(begun)) + b"\n")
        return cls(path, begun)

    @classmethod
    def open(cls, path: Path) -> Folder:
        """One that was begun. A last line that was cut off is measured again. Raises BadRequest for another folder."""
        with _refusals(path):
            try:
                folder = cls(path, msgspec.json.decode((path / "study.json").read_bytes(), type=Begun))
                folder.measured = list(_lines(path / "rows.jsonl", Measured))
                folder.sittings = list(_lines(path / "sittings.jsonl", Sitting))
            except (msgspec.DecodeError, UnicodeDecodeError) as fault:
                raise BadRequest(f"{path} holds no study that can be gone on with: {fault}") from None
        return folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process measures into a folder. Raises BadRequest when another does."""
        with _refusals(self.path), (self.path / "study.json").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadRequest(f"another process is measuring into {self.path}") from None
            yield

    def add(self, measured: Measured) -> None:
        with _refusals(self.path):
            _append(self.path / "rows.jsonl", msgspec.json.encode(measured))
        self.measured.append(measured)

    def end_sitting(self, sitting: Sitting) -> None:
        with _refusals(self.path):
            _append(self.path / "sittings.jsonl", msgspec.json.encode(sitting))
        self.sittings.append(sitting)

    def finish(self, record: Record, charts: list[Chart]) -> None:
        with _refusals(self.path):
            (self.path / "record.json").write_bytes(to_json(record))
            (self.path / "results.csv").write_text(to_csv(record.results), "utf-8")
            (self.path / "reading.txt").write_text(f"{record.reading}\n", "utf-8")
            for chart in charts:
                (self.path / f"{chart.name}.svg").write_text(to_svg(chart), "utf-8")


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise KvtuiError(f"cannot use the folder {path}: {fault.strerror or fault}") from fault


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _lines(path: Path, kind: type[T]) -> Iterator[T]:
    """Whole lines; what stands behind the last of them was cut off and goes."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        os.truncate(path, len(whole))
    for line in whole.splitlines():
        yield msgspec.json.decode(line, type=kind)
