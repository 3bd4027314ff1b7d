"""What studies' records tell of each engine, budget and improvement: the candidates of an advice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from engines import sizes
from engines.errors import BadRequest
from probes import variants
from probes.advice import Candidate, Figure
from probes.studies.base import Row
from probes.studies.record import Record
from probes.studies.table import one_line

TIMED = ("performance", "ablation")
ANSWERED = ("retention", "accuracy", "ablation")
READ = tuple(dict.fromkeys(TIMED + ANSWERED))
FULL = (variants.PAGED, None)

Key = tuple[str, float | None]  # of a candidate: the variant's name and its budget
Points = dict[int, float]  # by context, tokens; 0 where a record tells none


@dataclass(frozen=True)
class Answers:
    right: int
    asked: int

    def __add__(self, other: Answers) -> Answers:
        return Answers(self.right + other.right, self.asked + other.asked)

    @property
    def share(self) -> float:
        return self.right / self.asked


@dataclass
class Known:
    """Of one candidate. `answers` are its own and the full cache's to the same questions, by study and context."""

    device_bytes: Points = field(default_factory=dict)
    kv_bytes: Points = field(default_factory=dict)
    ttft_s: Points = field(default_factory=dict)
    tpot_s: Points = field(default_factory=dict)
    modelled: bool = False
    answers: dict[str, dict[int, tuple[Answers, Answers]]] = field(default_factory=dict)
    lost: list[tuple[int, str, int | None]] = field(default_factory=list)  # context, how, under which cap


def collect(records: list[Record]) -> dict[Key, Known]:
    """All that they tell; of two that tell the same, what was measured last counts. Raises BadRequest where times were
    taken on different machines or links."""
    _check_one_machine([record for record in records if record.study in TIMED])
    found: dict[Key, Known] = {}
    for record in sorted(records, key=lambda record: max((s.ended for s in record.sittings), default="")):
        if record.study in TIMED:
            _take_times(record, found)
        if record.study in ANSWERED:
            _take_answers(record, found)
    return found


def longest_context(found: dict[Key, Known]) -> int | None:
    """That was timed."""
    return max((context for known in found.values() for context in known.tpot_s), default=None)


def candidates(found: dict[Key, Known], context: int, cap_bytes: int | None = None) -> list[Candidate]:
    """Of a context of so many tokens. What ran out of memory under a cap is lost only under no larger one."""
    return [_candidate(key, known, context, cap_bytes) for key, known in found.items()]


def name_of(key: Key) -> str:
    name, budget = key
    return one_line(variants.label(name)) + ("" if budget is None else f" at budget {budget:g}")


def _candidate(key: Key, known: Known, context: int, cap_bytes: int | None) -> Candidate:
    lost = next(
        (
            f"{how} at {sizes.counted(at, 'token')}"
            for at, how, cap in sorted(known.lost, key=lambda lost: lost[0])
            if at <= context and (cap is None or (cap_bytes is not None and cap_bytes <= cap))
        ),
        "",
    )
    link = "modelled link" if known.modelled else ""
    return Candidate(
        name_of(key),
        device_bytes=_memory_at(known, context, variants.scores_whole(key[0])),
        accuracy=Figure(1.0, "by definition") if key == FULL else _accuracy_at(known, context),
        tpot_s=_noted(_on_a_line(known.tpot_s, context), link),
        ttft_s=_noted(_on_a_line(known.ttft_s, context), link),
        lost=lost,
    )


def _noted(figure: Figure | None, note: str) -> Figure | None:
    if figure is None or not note:
        return figure
    return Figure(figure.value, ", ".join(filter(None, (figure.note, note))))


def _two_nearest(points: Points, context: int) -> tuple[int, int]:
    """Measured contexts around this one; beyond the ends, the two at that end."""
    known = sorted(points)
    upper = next((place for place, at in enumerate(known) if at >= context), len(known) - 1)
    upper = max(1, upper)
    return known[upper - 1], known[upper]


def _how(one: int, two: int, context: int) -> str:
    return f"{'between' if one < context < two else 'extrapolated from'} {one:,} and {two:,} tokens"


def _on_a_line(points: Points, context: int) -> Figure | None:
    """Measured, or on the straight line through the two nearest contexts; None with fewer, or where the line has come
    down to nothing."""
    if context in points:
        return Figure(points[context])
    if len(points) < 2:
        return None
    one, two = _two_nearest(points, context)
    value = points[one] + (points[two] - points[one]) * (context - one) / (two - one)
    return Figure(value, _how(one, two, context)) if value > 0 else None


def _memory_at(known: Known, context: int, squared: bool) -> Figure | None:
    """Measured, or worked out: KV by its bytes a token, and the rest by two measured contexts, on a line, or `squared`
    where all scores of a layer are held at once. With one context the rest stays as it is, and may be more."""
    points, kv = known.device_bytes, known.kv_bytes
    if context in points or not points:
        return Figure(points[context]) if points else None
    if len(points) > 1 and not squared:
        return _on_a_line(points, context)
    if len(points) > 1 and kv.keys() >= points.keys():
        one, two = _two_nearest(points, context)
        rest = {at * at: points[at] - kv[at] for at in (one, two)}
        growth = (rest[two * two] - rest[one * one]) / (two * two - one * one)
        value = kv[two] * context / two + rest[two * two] + growth * (context**2 - two**2)
        return Figure(value, _how(one, two, context)) if value > 0 else None
    at = min(points, key=lambda at: abs(at - context))
    if squared or at not in kv:
        return None
    value = points[at] + kv[at] / at * (context - at)
    return Figure(value, f"extrapolated from {at:,} tokens by the KV's bytes a token") if value > 0 else None


def _accuracy_at(known: Known, context: int) -> Figure | None:
    """The least that any study found, each at the context nearest to this one; None where no study asked, or where the
    full cache had nothing right."""
    found = []
    for study, by_context in known.answers.items():
        at = min(by_context, key=lambda at: (abs(at - context), -at))
        own, full = by_context[at]
        if full.right:
            where = f" at {at:,} tokens" if at else ""
            note = f"{study}{where}: {own.right} of {own.asked}, full cache {full.right} of {full.asked}"
            found.append(Figure(own.share / full.share, note))
    return min(found, key=lambda figure: figure.value, default=None)


def _take_times(record: Record, found: dict[Key, Known]) -> None:
    cap = sizes.parsed(str(record.options.get("device_memory") or ""))
    columns = {"device_bytes": "device_peak_bytes", "ttft_s": "ttft_s", "tpot_s": "tpot_s", "kv_bytes": ""}
    rows: dict[tuple[Key, int], list[Row]] = {}
    for key, context, row in _rows(record):
        if context and row.get("batch") in (None, 1) and row.get("rate_per_s") is None:  # one request at a time
            rows.setdefault((key, context), []).append(row)
    for (key, context), repeats in rows.items():
        known = found.setdefault(key, Known())
        known.modelled = bool(record.link_modelled) and variants.over_the_link(key[0])
        known.lost = [lost for lost in known.lost if lost[0] != context]
        for row in repeats:
            outcome = row.get("outcome")
            if outcome in ("device_oom", "host_oom"):
                what = str(outcome).removesuffix("_oom")
                known.lost.append((context, f"ran out of {what} memory", cap if what == "device" else None))
        for aspect, column in columns.items():
            values = [value for row in repeats if (value := _value(row, aspect, column)) is not None]
            if values:
                getattr(known, aspect)[context] = median(values)


def _value(row: Row, aspect: str, column: str) -> float | None:
    if aspect == "kv_bytes":
        return _number(row.get("device_kv_peak_bytes", row.get("device_kv_bytes")))
    value = _number(row.get(column))
    if value is None and aspect == "tpot_s" and (value := _number(row.get("tpot_ms"))) is not None:
        value /= 1e3
    return value or None


def _take_answers(record: Record, found: dict[Key, Known]) -> None:
    """Of a benchmark's metrics, the first of each task: several count the same answers."""
    counted = [measure for measure in record.measures if measure.right and measure.asked]
    totals: dict[tuple[Key, int], Answers] = {}
    metrics: dict[object, object] = {}
    for key, context, row in _rows(record):
        context = int(_number(row.get("retention_context")) or context)
        for measure in counted:
            right, asked = _number(row.get(measure.right)), _number(row.get(measure.asked))
            if (
                right is not None
                and asked
                and metrics.setdefault(row.get("task"), row.get("metric")) == row.get("metric")
            ):
                so_far = totals.get((key, context), Answers(0, 0))
                totals[key, context] = so_far + Answers(int(right), int(asked))
    study = "retention" if record.study == "ablation" else record.study
    for (key, context), answers in totals.items():
        full = totals.get((FULL, context))
        if full is not None:
            found.setdefault(key, Known()).answers.setdefault(study, {})[context] = answers, full


def _rows(record: Record) -> Iterator[tuple[Key, int, Row]]:
    """Rows with the candidate and the context that they are of."""
    for row in record.rows:
        name = variants.named(str(row.get("engine") or row.get("variant") or ""))
        budget = _number(row["budget"] if "budget" in row else record.options.get("budget"))
        if name:
            yield (name, None if name == variants.PAGED else budget), _context(row, record), row


def _context(row: Row, record: Record) -> int:
    """In tokens; 0 where it is not told. What a conversation's length was aimed at counts rather than what it came to,
    which differs from one to the next."""
    aimed = re.search(r"\d+", str(row.get("aim") or ""))
    told = (float(aimed[0]) if aimed else None, row.get("context"), row.get("tokens"), record.options.get("tokens"))
    return max(0, int(next((number for value in told if (number := _number(value)) is not None), 0)))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def _check_one_machine(records: list[Record]) -> None:
    sittings = [sitting for record in records for sitting in record.sittings]
    machines = {
        ", ".join(str(sitting.machine.get(name)) for name in ("cpu", "cores", "gpus") if sitting.machine.get(name))
        for sitting in sittings
    }
    links = {link.profile for sitting in sittings for link in sitting.links}
    for what, names in (("on different machines", machines), ("over different links", links)):
        if len(names) > 1:
            raise BadRequest(
                f"times were taken {what} ({'; '.join(sorted(names))}): name records of one with --results"
            )
