"""A study's record: what was asked, with which versions, on which machine, and what came of it. One JSON file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import msgspec

from engines.errors import BadRequest
from engines.events import LinkInfo
from probes.studies.base import Measure, Rows, Scalar

FORMAT = 1
MAX_BYTES = 64 << 20


class Sitting(msgspec.Struct, frozen=True):
    """One stretch of measuring; a study that was interrupted has several. Times are UTC, ISO 8601. A modelled link's
    rate hangs on the memory bandwidth that was measured when its sitting began."""

    begun: str
    ended: str
    cells: int
    versions: dict[str, str]
    machine: dict[str, Scalar]
    links: tuple[LinkInfo, ...] = ()


class Measured(msgspec.Struct, frozen=True):
    """A cell, and the rows that it gave."""

    cell: dict[str, Scalar]
    rows: list[dict[str, Scalar]]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`measured` are the rows as they came, `results` what the study made of them. `link_modelled` is None where times
    depend on no link."""

    kvtui_study: int = FORMAT
    study: str
    options: dict[str, Scalar]
    seed: int
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    sittings: tuple[Sitting, ...]
    link_modelled: bool | None = None
    measured: tuple[Measured, ...]
    results: list[dict[str, Scalar]]
    reading: str

    @property
    def rows(self) -> Rows:
        return [row for one in self.measured for row in one.rows]


def to_json(record: Record) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"


def load(path: Path) -> Record:
    """A record from its file, or from its study's folder. Raises BadRequest for what is none."""
    path = path / "record.json" if path.is_dir() else path
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadRequest(f"{path} is too large to be a study's record")
        content = path.read_bytes()
    except OSError as fault:
        raise BadRequest(f"cannot read {path}: {fault.strerror or fault}") from fault
    try:
        record = msgspec.json.decode(content, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise BadRequest(f"{path} is no study's record: {fault}") from None
    if record.kvtui_study != FORMAT:
        raise BadRequest(f"{path} is a record of format {record.kvtui_study}; this kvtui reads {FORMAT}")
    return record


def to_csv(rows: Rows) -> str:
    """A header of all columns in the order of their first appearance; None is an empty field."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
