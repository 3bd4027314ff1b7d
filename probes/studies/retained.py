"""What came of asking for facts: shares with intervals, the drop against the full cache, the reading and the charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from probes.facts import CHOICES
from probes.proportions import relative_drop, wilson
from probes.studies.base import Chart, Point, Row, Rows

FULL = "paged"
ALL = "all"
UNSURE = 0.75  # the share of right answers below which the model itself, and not the cache, is what forgets


def results(rows: Rows) -> Rows:
    """A row a layout, aim, budget and engine, from those of single conversations; "all" stands for totals."""
    return [
        _result(layout, aim, budget, engine, group)
        for layout in _with_all(rows, "layout")
        for aim in _with_all(rows, "aim")
        for group in [[row for row in rows if layout in (ALL, row["layout"]) and aim in (ALL, row["aim"])]]
        for budget, engine in dict.fromkeys((row["budget"], row["engine"]) for row in group)
    ]


def _result(layout: str, aim: str, budget: float | None, engine: str, group: Rows) -> Row:
    mine = [row for row in group if (row["budget"], row["engine"]) == (budget, engine)]
    asked, right = (sum(row[name] for row in mine) for name in ("questions", "right_answers"))
    low, high = wilson(right, asked)
    drop = None if engine == FULL else _drop(mine, [row for row in group if row["engine"] == FULL])
    held = [row for row in mine if not row["lost"]]
    result = {
        "layout": layout,
        "aim": aim,
        "budget": budget,
        "engine": engine,
        "questions": asked,
        "right_answers": right,
        "right": right / asked,
        "low_95": low,
        "high_95": high,
        "drop": drop and drop[0],
        "drop_low_95": drop and drop[1],
        "drop_high_95": drop and drop[2],
        "distance": round(sum(row["distance"] for row in mine) / len(mine)),
        "context": round(sum(row["context"] for row in mine) / len(mine)),
        "device_kv_share": sum(row["device_kv_bytes"] for row in held) / sum(row["full_kv_bytes"] for row in held)
        if held
        else None,
        "peak_kv_share": max(row["peak_kv_share"] for row in mine),
    }
    return result | ({"lost": len(mine) - len(held)} if len(held) < len(mine) else {})


def _drop(mine: Rows, full: Rows) -> tuple[float, float, float] | None:
    """Over the same questions; None where no full cache was measured, or where it knew nothing."""
    theirs = {(row["layout"], row["aim"], row["case"]): row["answers"] for row in full}
    if not theirs:
        return None
    pairs = Counter(
        pair
        for row in mine
        for pair in zip(theirs[row["layout"], row["aim"], row["case"]], row["answers"], strict=True)
    )
    return relative_drop(pairs["1", "1"], pairs["1", "0"], pairs["0", "1"])


def reading(results: Rows) -> str:
    totals = [row for row in results if row["layout"] == _top(results, "layout") and row["aim"] == _top(results, "aim")]
    said = [*_memory_and_answers(totals), *_distances(results), *_lost(totals)]
    return " ".join(said)


def _memory_and_answers(totals: Rows) -> Iterator[str]:
    full = next((row for row in totals if row["engine"] == FULL), None)
    if full is None:
        yield "The full cache (paged) was not measured, so nothing is said of a drop against it."
    else:
        yield f"With its full cache the model answered {_counted(full)}."
    for budget in _budgets(totals):
        rows = [row for row in totals if row["budget"] == budget]
        yield f"At budget {budget:g}, {'; '.join(_one(row) for row in rows)}."


def _one(row: Row) -> str:
    held = "" if row["device_kv_share"] is None else f", with {row['device_kv_share']:.0%} of its KV on the device"
    peak = f" ({row['peak_kv_share']:.0%} at the peak)"
    if row["drop"] is None:
        return f"{row['engine']} answered {_counted(row)}{held}{peak}"
    kept, low, high = (f"{1 - row[name]:.0%}" for name in ("drop", "drop_high_95", "drop_low_95"))
    return f"{row['engine']} answered {kept} as many rightly as that (95 % interval {low} to {high}){held}{peak}"


def _counted(row: Row) -> str:
    return (
        f"{row['right_answers']} of {row['questions']} questions rightly ({row['right']:.0%}, 95 % interval "
        f"{row['low_95']:.0%} to {row['high_95']:.0%})"
    )


def _distances(results: Rows) -> Iterator[str]:
    """Where each falls behind the full cache, and where the full cache does not know either."""
    rows = _by_distance(results)
    for budget in _budgets(rows):
        said = []
        for engine in dict.fromkeys(row["engine"] for row in rows if row["budget"] == budget):
            mine = [row for row in rows if (row["budget"], row["engine"]) == (budget, engine)]
            if len(mine) < 2 or all(row["drop"] is None for row in mine):
                continue
            behind = [row for row in mine if row["drop"] is not None and row["drop_low_95"] > 0]
            where = f"at {_tokens(behind)}" if behind else "at no distance"
            said.append(f"{engine} {where} (from {mine[0]['right']:.0%} right to {mine[-1]['right']:.0%})")
        if said:
            yield f"Further behind the full cache than chance explains, at budget {budget:g}: {'; '.join(said)}."
    full = [row for row in rows if row["engine"] == FULL]
    guessing = [row for row in full if row["low_95"] <= 1 / CHOICES]
    unsure = [row for row in full if row["right"] < UNSURE and row not in guessing]
    if guessing:
        yield (
            f"At {_tokens(guessing)} the model does no better than guessing (1 of {CHOICES}) with its full cache, so "
            "nothing can be compared there."
        )
    if unsure:
        yield (
            f"At {_tokens(unsure)} the model itself misses more than a quarter with its full cache, so that little can "
            "be compared there."
        )


def _tokens(rows: Rows) -> str:
    *first, last = [f"{row['distance']:,}" for row in rows]
    return f"{', '.join(first)} and {last} tokens" if first else f"{last} tokens"


def _lost(totals: Rows) -> Iterator[str]:
    for row in totals:
        if row.get("lost"):
            yield (
                f"{row['engine']} ran out of device memory in {row['lost']} conversations, which count as answered "
                "wrongly."
            )


def charts(results: Rows) -> list[Chart]:
    found = []
    layout, aim = _top(results, "layout"), _top(results, "aim")
    near = _by_distance(results)
    total = [row for row in results if row["layout"] == layout and row["aim"] == aim]
    placed = [row for row in results if row["layout"] != ALL and row["aim"] == aim]
    budgets = _budgets(results)
    share = "share answered rightly, 95 % intervals"
    for budget in budgets or (None,):
        suffix, at = ("", "") if budget is None else (f"-{budget:g}", f", budget {budget:g}")
        if len({row["aim"] for row in near}) > 1:
            apart = "tokens between the last fact and its question"
            series = _series(near, budget, "distance")
            found.append(Chart(f"distance{suffix}", f"Facts known, by distance{at}", apart, share, series))
        where = "where the facts stand"
        series = _series(placed, budget, "layout")
        found.append(Chart(f"position{suffix}", f"Facts known, by position{at}", where, share, series))
    if len(budgets) > 1:
        by_budget = [row | {"budget": at} for row in total for at in budgets if row["budget"] in (at, None)]
        series = {
            engine: [_point(row, "budget") for row in by_budget if row["engine"] == engine]
            for engine in dict.fromkeys(row["engine"] for row in total)
        }
        found.append(Chart("budget", "Facts known, by budget", "share of KV entries kept or fetched", share, series))
    return found


def _series(rows: Rows, budget: float | None, x: str) -> dict[str, list[Point]]:
    mine = [row for row in rows if row["budget"] in (budget, None)]
    return {
        engine: [_point(row, x) for row in mine if row["engine"] == engine]
        for engine in dict.fromkeys(row["engine"] for row in mine)
    }


def _point(row: Row, x: str) -> Point:
    return Point(row[x], row["right"], row["low_95"], row["high_95"])


def _by_distance(results: Rows) -> Rows:
    """Over all layouts, the nearest first."""
    rows = [row for row in results if row["layout"] == _top(results, "layout")]
    return sorted((row for row in rows if row["aim"] != ALL), key=lambda row: row["distance"])


def _budgets(rows: Rows) -> list[float]:
    return sorted({row["budget"] for row in rows if row["budget"] is not None})


def _with_all(rows: Rows, column: str) -> list[str]:
    known = list(dict.fromkeys(row[column] for row in rows))
    return [*known, ALL] if len(known) > 1 else known


def _top(results: Rows, column: str) -> str:
    """The total, or the only one that there is."""
    return _with_all([row for row in results if row[column] != ALL], column)[-1]
