"""`kvtui study compare A B`: what got better or worse from one record to another of the same study, and what is noise.

Exit code: 0 when nothing got worse, 1 when something did, 2 for records that cannot be compared.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from engines.errors import BadRequest
from engines.sizes import counted
from probes.studies import difference, record
from probes.studies.base import Scalar
from probes.studies.pairs import Pair, cautions, check_comparable, other_conditions, pairs
from probes.studies.parser import Help, Parser
from probes.studies.record import Record
from probes.studies.table import one_line, table

BETTER, WORSE, UNSEEN, FEW, UNJUDGED = (
    "better",
    "worse",
    "no difference seen",
    "too few to tell",
    "not judged",
)
NAMED_MOST = 5  # of those that got worse, or better, in the reading


@dataclass(frozen=True)
class Comparison:
    """`a` and `b` are medians, or shares of counts; `ratio` is B's to A's. `p` is corrected for being one of
    several."""

    keys: dict[str, Scalar]
    measure: str
    a: float | None
    b: float | None
    n_a: int
    n_b: int
    ratio: float | None
    p: float | None
    verdict: str
    note: str = ""


def compared(a: Record, b: Record, measures: list[str] | None = None) -> tuple[list[Comparison], str]:
    """All comparisons, or those of some measures, and a paragraph. Raises BadRequest."""
    check_comparable(a, b)
    known = [measure.column for measure in a.measures]
    for name in measures or []:
        if name not in known:
            raise BadRequest(f"--measures are of {', '.join(map(one_line, known))}, not {one_line(name)!r}")
    found, only_a, only_b = pairs(a, b)
    found = [pair for pair in found if measures is None or pair.measure.column in measures]
    apart = other_conditions(a, b)
    tested = {at: test for at, pair in enumerate(found) if (test := _test(pair, bool(apart))) is not None}
    verdicts = dict(zip(tested, difference.judged(list(tested.values())), strict=True))
    comparisons = []
    for at, pair in enumerate(found):
        if at in tested:
            verdict, p = verdicts[at]
            verdict = _direction(pair, tested[at].rise) if verdict == "differs" else verdict
            comparisons.append(_comparison(pair, verdict, p))
        else:
            comparisons.append(_untested(pair))
    said = [_reading(comparisons), *_how_many(found, comparisons, len(tested)), *apart]
    if apart:
        said.append("Times are not judged.")
    elif any(pair.timed for pair in found):
        said.append("A and B ran at different moments: what else the machine did then is in their times, too.")
    said += cautions(a, b)
    for name, only in (("A", only_a), ("B", only_b)):
        if only:
            said.append(f"{counted(only, 'cell')} of {name} {'is' if only == 1 else 'are'} not in the other.")
    return comparisons, " ".join(said)


def _test(pair: Pair, apart: bool) -> difference.Test | None:
    """None where there is nothing to test: one of the two has no figure, bytes are exact, all figures are the same,
    times are of two machines."""
    if not (pair.a.known and pair.b.known) or pair.exact or pair.level or (apart and pair.timed):
        return None
    if pair.counted:
        return difference.of_counts(pair.a.right, pair.a.asked, pair.b.right, pair.b.asked)
    return difference.of_repeats(pair.a.figures, pair.b.figures)


def _untested(pair: Pair) -> Comparison:
    if pair.a.known and not pair.b.known:
        return _comparison(pair, WORSE, None, f"no figure in B ({pair.b.failed or 'it has none'})")
    if not pair.a.known:
        return _comparison(pair, BETTER, None, f"no figure in A ({pair.a.failed or 'it has none'})")
    if pair.exact:
        rise = pair.b.figures[0] - pair.a.figures[0]
        return _comparison(pair, _direction(pair, rise) if rise else UNSEEN, None, "counted, not sampled")
    if pair.level:
        return _comparison(pair, UNSEEN, None, "all the same")
    return _comparison(pair, UNJUDGED, None, "another machine or link")


def _direction(pair: Pair, rise: float) -> str:
    return BETTER if (rise > 0) == (pair.measure.better == "higher") else WORSE


def _comparison(pair: Pair, verdict: str, p: float | None, note: str = "") -> Comparison:
    def value(side: Any) -> float | None:
        if not side.known:
            return None
        return side.right / side.asked if pair.counted else median(side.figures)

    a, b = value(pair.a), value(pair.b)
    n_a, n_b = (side.asked if pair.counted else len(side.figures) for side in (pair.a, pair.b))
    ratio = b / a if a and b is not None else None
    return Comparison(pair.keys, pair.measure.column, a, b, n_a, n_b, ratio, p, verdict, note)


def _reading(comparisons: list[Comparison]) -> str:
    if not comparisons:
        return "The two have no cell with a figure in common."
    counts = Counter(comparison.verdict for comparison in comparisons)
    parts = [f"{counts[verdict]} {words}" for verdict, words in _SAID.items() if counts[verdict]]
    said = [f"Of {counted(len(comparisons), 'comparison')}: {', '.join(parts)}."]
    for verdict in (WORSE, BETTER):
        named = [_named(comparison) for comparison in comparisons if comparison.verdict == verdict]
        if named:
            more = f"; and {len(named) - NAMED_MOST} more" if len(named) > NAMED_MOST else ""
            said.append(f"{verdict.capitalize()}: {'; '.join(named[:NAMED_MOST])}{more}.")
    return " ".join(said)


_SAID = {
    WORSE: "got worse",
    BETTER: "got better",
    UNSEEN: "without a difference to be seen",
    FEW: "with too few measurements to tell",
    UNJUDGED: "not judged",
}


def _named(comparison: Comparison) -> str:
    where = ", ".join(f"{name} {one_line(str(value))}" for name, value in comparison.keys.items() if value is not None)
    how = comparison.note if comparison.ratio is None else f"{comparison.ratio:.3g} times A's"
    return f"{comparison.measure} of {where}: {how}" if where else f"{comparison.measure}: {how}"


def _how_many(found: list[Pair], comparisons: list[Comparison], tests: int) -> list[str]:
    """How many measurements would do, where there were too few."""
    few = [pair for pair, comparison in zip(found, comparisons, strict=True) if comparison.verdict == FEW]
    said = []
    if any(not pair.counted for pair in few):
        count = difference.enough(lambda n: difference.least_p_of_repeats(n, n), tests)
        said.append(
            f"For {counted(tests, 'test')} at once, {count} repeats of each on both sides could tell a difference."
        )
    if any(pair.counted for pair in few):
        count = difference.enough(difference.least_p_of_counts, tests)
        said.append(f"{count} questions of each on both sides are the fewest that could tell any difference.")
    return said


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="kvtui study compare",
        description="Two records of the same study: what got better, what worse, and what is noise.",
        epilog="exit code: 0 when nothing got worse, 1 when something did, 2 for what cannot be compared",
        formatter_class=Help,
    )
    parser.add_argument("a", type=Path, metavar="A", help="a record.json, or a study's folder: what was")
    parser.add_argument("b", type=Path, metavar="B", help="another of the same study: what is")
    parser.add_argument(
        "--measures", metavar="NAMES", default=argparse.SUPPRESS, help="only these, separated by commas: fewer tests"
    )
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
    options = parser.parse_args(arguments)
    a, b = record.load(options.a), record.load(options.b)
    wanted = [name.strip() for name in options.measures.split(",")] if "measures" in options else None
    comparisons, reading = compared(a, b, wanted)
    if "json" in options:
        told = {"study": a.study, "a": str(options.a), "b": str(options.b), "alpha": difference.ALPHA}
        whole = {**told, "comparisons": comparisons, "reading": reading}
        print(msgspec.json.format(msgspec.json.encode(whole)).decode())
    else:
        print(table([_row(comparison) for comparison in comparisons]))
        print(f"\n{reading}")
    return int(any(comparison.verdict == WORSE for comparison in comparisons))


def _row(comparison: Comparison) -> dict[str, Scalar]:
    return {
        **comparison.keys,
        "measure": comparison.measure,
        "A": comparison.a,
        "B": comparison.b,
        "n": f"{comparison.n_a}/{comparison.n_b}",
        "B/A": comparison.ratio,
        "p": comparison.p,
        "verdict": comparison.verdict + (f" ({comparison.note})" if comparison.note else ""),
    }
