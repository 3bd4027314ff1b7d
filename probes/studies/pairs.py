"""Two records of the same study side by side: whether they can be compared, and what each has of each measure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from engines.errors import BadRequest
from probes.studies.base import Measure, Row, Scalar
from probes.studies.record import Record
from probes.studies.table import one_line

REPEATS = ("repeats", "rounds", "cases", "limit")  # how often the same was measured
LINKS = ("link", "links")  # told apart by what the sittings say of them
MACHINE = ("cpu", "cores", "gpus", "torch_threads")
TIMED = ("_s", "_ms", "_ratio", "goodput")  # ends of the names of columns that hang on the machine
RATE_APART = 0.1

Keys = tuple[Scalar, ...]


@dataclass
class Side:
    """What one record has of a measure and a cell: a figure a repeat, and the counts together where it is a share.
    `failed` says why there is none."""

    figures: list[float] = field(default_factory=list)
    right: int = 0
    asked: int = 0
    failed: str = ""

    @property
    def known(self) -> bool:
        return bool(self.figures)


@dataclass(frozen=True)
class Pair:
    keys: dict[str, Scalar]
    measure: Measure
    a: Side
    b: Side

    @property
    def timed(self) -> bool:
        return self.measure.column.endswith(TIMED)

    @property
    def counted(self) -> bool:
        """Whether its counts may be taken for so many independent trials: not where they count times."""
        return bool(self.a.asked and self.b.asked) and not self.timed

    @property
    def exact(self) -> bool:
        """Bytes that are the same in each repeat are counted, not sampled: any difference is one."""
        sides = (self.a.figures, self.b.figures)
        return self.measure.column.endswith("_bytes") and all(len(set(figures)) == 1 for figures in sides)

    @property
    def level(self) -> bool:
        """Whether all repeats of both gave the same figure."""
        return not self.counted and len({*self.a.figures, *self.b.figures}) == 1


def check_comparable(a: Record, b: Record) -> None:
    """Raises BadRequest, which says what differs."""
    if a.study != b.study:
        raise BadRequest(f"A is a record of the study {one_line(a.study)}, B one of {one_line(b.study)}")
    if a.keys != b.keys:
        raise BadRequest("A and B tell their cells apart by other columns: they are of different versions of the study")
    for name in dict.fromkeys(("model", *a.options, *b.options)):
        if name in REPEATS or name in LINKS or _is_key(name, a.keys):
            continue
        one, other = (one_line(str(record.options.get(name))) for record in (a, b))
        if one != other:
            option = one_line(name).replace("_", "-")
            raise BadRequest(f"A was measured with --{option} {one}, B with {other}: they are not of the same thing")


def _is_key(option: str, keys: tuple[str, ...]) -> bool:
    """Whether an option, such as `contexts`, names the values of a column, such as `context`; `aim` has several."""
    if option in ("tokens", "distances") and "aim" in keys:
        return True
    singulars = {option, option.removesuffix("s"), option.removesuffix("es")}
    return any(key in singulars or key.removesuffix("_per_s") in singulars for key in keys)


def pairs(a: Record, b: Record) -> tuple[list[Pair], int, int]:
    """Of all cells that both have, and how many only A and only B has."""
    rows_a, rows_b = _by_keys(a), _by_keys(b)
    both = [keys for keys in rows_a if keys in rows_b]
    common = {measure.column for measure in b.measures}
    found = [
        pair
        for keys in both
        for measure in a.measures
        if measure.column in common
        for pair in [
            Pair(
                dict(zip(a.keys, keys, strict=True)),
                measure,
                _side(rows_a[keys], measure),
                _side(rows_b[keys], measure),
            )
        ]
        if pair.a.known or pair.b.known
    ]
    return found, len(rows_a) - len(both), len(rows_b) - len(both)


def other_conditions(a: Record, b: Record) -> list[str]:
    """What makes times of the two incomparable, a sentence each; empty where nothing does."""
    return [*_other_machine(a, b), *_other_links(a, b)]


def cautions(a: Record, b: Record) -> Iterator[str]:
    """What a reader should know and what does not forbid a comparison."""
    packages = {name for record in (a, b) for sitting in record.sittings for name in sitting.versions}
    changed = []
    for name in sorted(packages):
        one, other = ({sitting.versions.get(name, "none") for sitting in record.sittings} for record in (a, b))
        if one != other:
            changed.append(f"{name} {'/'.join(sorted(one))} and {'/'.join(sorted(other))}")
    if changed:
        yield f"Versions differ: {one_line(', '.join(changed))}."
    if a.seed != b.seed:
        yield f"Seeds differ: {a.seed} and {b.seed}."
    for name, record in (("A", a), ("B", b)):
        if any(_busy(sitting.machine) for sitting in record.sittings):
            yield f"Other work was running when {name} began: a difference in times may be that work's."
    one_s, other_s = ({link.profile: link.bytes_per_s for s in r.sittings for link in s.links} for r in (a, b))
    for profile in sorted(one_s.keys() & other_s.keys()):
        ratio = other_s[profile] / one_s[profile] if one_s[profile] else math.inf
        if abs(ratio - 1) > RATE_APART:
            yield f"In B the link {one_line(profile)} was {ratio:.2f} times as fast, which is in times over it, too."


def _busy(machine: dict[str, Scalar]) -> bool:
    load, cores = machine.get("load_1m"), machine.get("cores")
    return isinstance(load, (int, float)) and isinstance(cores, (int, float)) and load > cores / 2


def _other_machine(a: Record, b: Record) -> Iterator[str]:
    for name in MACHINE:
        one, other = ({str(sitting.machine.get(name)) for sitting in record.sittings} for record in (a, b))
        if one != other:
            values = f"{'/'.join(sorted(one))} and {'/'.join(sorted(other))}"
            yield f"The machines differ ({name.replace('_', ' ')}: {one_line(values)})."
            return


def _other_links(a: Record, b: Record) -> Iterator[str]:
    one, other = (
        {f"{link.profile}{'' if link.measured else ', modelled'}" for s in record.sittings for link in s.links}
        for record in (a, b)
    )
    if one != other:
        values = [one_line("/".join(sorted(links)) or "none") for links in (one, other)]
        yield f"The links differ ({values[0]} and {values[1]})."


def _by_keys(record: Record) -> dict[Keys, list[Row]]:
    found: dict[Keys, list[Row]] = {}
    for row in record.rows:
        found.setdefault(tuple(row.get(name) for name in record.keys), []).append(row)
    return found


def _side(rows: list[Row], measure: Measure) -> Side:
    side = Side()
    for row in rows:
        value = _number(row.get(measure.column))
        if value is not None:
            side.figures.append(value)
        elif row.get("outcome"):
            side.failed = one_line(str(row["outcome"]))
        right, asked = _number(row.get(measure.right)), _number(row.get(measure.asked))
        if right is not None and asked is not None and 0 <= right <= asked and asked >= 1:
            side.right, side.asked = side.right + int(right), side.asked + int(asked)
    return side


def _number(value: Scalar) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
