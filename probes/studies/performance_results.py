"""What the rounds of the performance study come to: medians with their spread, a table, charts, and it in words."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from engines.events import ENGINE_LABELS
from probes.studies.base import Chart, Point, Row, Rows

TIMES = (
    *("ttft_s", "ttft_p95_s", "tpot_s", "tpot_p95_s", "decode_tok_s", "tok_s"),
    *("latency_p50_s", "latency_p95_s", "queue_s", "good_per_s"),
)
ACCOUNTS = (
    *("device_peak_bytes", "device_kv_peak_bytes", "host_peak_bytes"),
    *("h2d_bytes", "d2h_bytes", "preemptions"),
)
NO_ACCOUNTS: Row = {**dict.fromkeys(ACCOUNTS), "modelled": None}
SPREAD = ("ttft_s", "tpot_s", "tok_s", "latency_p50_s", "goodput")
FULL = {"device_oom": "ran out of device memory", "host_oom": "ran out of host memory", "error": "failed"}


def grouped(rows: Rows, keys: tuple[str, ...]) -> Rows:
    """A row for each thing measured: the medians of its rounds, with `_low` and `_high`, the least and the greatest of
    them. Requests are counted over all rounds, and goodput is the share of them all. `outcome` is the first that is not
    "ok", if there is one."""
    groups: dict[tuple, Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in keys), []).append(row)
    return [dict(zip(keys, key, strict=True)) | _together(group) for key, group in groups.items()]


def _together(group: Rows) -> Row:
    worst = next((row for row in group if row["outcome"] != "ok"), group[0])
    counts = {name: sum(row[name] for row in group) for name in ("requests", "answered", "good")}
    found: Row = {
        "rounds": len(group),
        **{name: worst[name] for name in ("outcome", "detail", "reached_tokens")},
        **counts,
    }
    for name in (*TIMES, "goodput", *ACCOUNTS):
        values = [row[name] for row in group if row[name] is not None]
        found[name] = median(values) if values else None
        if name in SPREAD:
            found |= {f"{name}_low": min(values, default=None), f"{name}_high": max(values, default=None)}
    found["goodput"] = counts["good"] / counts["requests"]
    found["modelled"] = next((row["modelled"] for row in group if row["modelled"] is not None), None)
    return found


def brief(results: Rows) -> Rows:
    """As printed: the columns that say something, in units that people read, each spread behind its median."""
    rows = [
        {
            "engine": row["engine"],
            "budget": row["budget"],
            "context": row["context"],
            "new": row["new_tokens"],
            "batch": row["batch"],
            "rate/s": row["rate_per_s"],
            "TTFT s": _spread(row, "ttft_s"),
            "TPOT ms": _spread(row, "tpot_s", 1e3),
            "tok/s": _spread(row, "tok_s"),
            "latency s": _spread(row, "latency_p50_s"),
            "p95": row["latency_p95_s"],
            "queue s": row["queue_s"],
            "within objective": f"{row['goodput']:.0%}",
            "good/s": row["good_per_s"],
            "device MB": _mb(row["device_peak_bytes"]),
            "of it KV": _mb(row["device_kv_peak_bytes"]),
            "host MB": _mb(row["host_peak_bytes"]),
            "moved MB": _mb(None if row["h2d_bytes"] is None else row["h2d_bytes"] + row["d2h_bytes"]),
            "preempted": row["preemptions"],
            "outcome": row["outcome"],
        }
        for row in results
    ]
    without = [name for name in rows[0] if all(row[name] in (None, "ok") for row in rows)] if rows else []
    return [{name: value for name, value in row.items() if name not in without} for row in rows]


def charts(results: Rows) -> list[Chart]:
    """Over context: the first length of answer and the first batch; over batch: the longest context."""
    grid, streams = _grid(results), _streams(results)
    found = []
    if grid:
        first = _first(grid)
        say = f"answers of {first[0]['new_tokens']:,} tokens, batch {first[0]['batch']}"
        context = "context, tokens"
        found += [
            Chart("tpot", f"TPOT, {say}", context, "ms", _lines(first, "context", "tpot_s", 1e3), log_x=True),
            Chart("ttft", f"TTFT, {say}", context, "s", _lines(first, "context", "ttft_s"), log_x=True, log_y=True),
            Chart(
                "device-peak",
                f"Device peak with the weights, {say}",
                context,
                "MB",
                _lines(first, "context", "device_peak_bytes", 1e-6),
                log_x=True,
            ),
        ]
        longest = [
            row for row in grid if (row["context"], row["new_tokens"]) == (_longest(grid), first[0]["new_tokens"])
        ]
        if len({row["batch"] for row in longest}) > 1:
            title = f"All tokens a second, {_longest(grid):,} tokens of context"
            found.append(Chart("throughput", title, "batch", "tok/s", _lines(longest, "batch", "tok_s"), log_x=True))
    if streams:
        lines = _lines(streams, "rate_per_s", "goodput")
        found.append(Chart("goodput", "Requests served within the objective", "requests a second", "share", lines))
    return [chart for chart in found if chart.series]


def reading(results: Rows, slo_ttft_s: float, slo_tpot_s: float) -> str:
    grid, streams = _grid(results), _streams(results)
    said: list[str] = []
    if grid:
        first = _first(grid)
        timed = sorted({row["context"] for row in first if row["ttft_s"] is not None})
        for context in dict.fromkeys((*timed[:1], *timed[-1:])):
            said += _speed([row for row in first if row["context"] == context])
        said += _memory(first)
    said += _failures(results)
    said += _stream_words(streams, slo_ttft_s, slo_tpot_s)
    said += _link(results)
    return " ".join(said) or "Nothing was measured."


def _speed(rows: Rows) -> Iterator[str]:
    """Of one context: the fastest, and the others beside it."""
    for name, does, unit, scale in (
        ("tpot_s", "decodes fastest", "ms a token", 1e3),
        ("ttft_s", "has the first token soonest", "s", 1),
    ):
        order = sorted((row for row in rows if row[name] is not None), key=lambda row: row[name])
        if not order:
            continue
        best, *others = order
        beside = [
            f"{_name(row, rows)} {row[name] / best[name]:.2f} times as long"
            + (" (their spreads overlap)" if row[f"{name}_low"] <= best[f"{name}_high"] else "")
            for row in others
        ]
        yield (
            f"At {best['context']:,} tokens of context {_name(best, rows)} {does}, {best[name] * scale:.3g} {unit}"
            f"{': ' * bool(beside)}{', '.join(beside)}."
        )


def _memory(rows: Rows) -> Iterator[str]:
    """At the longest context that the paged cache and another one both hold."""
    fits = [row for row in rows if row["outcome"] == "ok"]
    for context in sorted({row["context"] for row in fits}, reverse=True):
        here = [row for row in fits if row["context"] == context]
        paged = next((row for row in here if row["engine"] == "vllm"), None)
        others = [row for row in here if row is not paged]
        if paged is not None and others:
            said = [
                f"{_name(row, rows)} {row['device_kv_peak_bytes'] / paged['device_kv_peak_bytes']:.2f} "
                f"({row['device_peak_bytes'] / paged['device_peak_bytes']:.2f})"
                for row in others
            ]
            yield (
                f"Peak of KV on the device at {context:,} tokens, as a share of {_name(paged, rows)}'s, and in "
                f"brackets the peak of all that is on it: {', '.join(said)}."
            )
            return


def _failures(results: Rows) -> Iterator[str]:
    too_long = sorted({row["context"] for row in _grid(results) if row["outcome"] == "too_long"})
    if too_long:
        yield f"With the answer longer than the model's context: {_counts(too_long)} tokens."
    for outcome, words in FULL.items():
        lost = [row for row in results if row["outcome"] == outcome]
        for name in dict.fromkeys(_name(row, results) for row in lost):
            mine = [row for row in lost if _name(row, results) == name]
            if contexts := [row["context"] for row in mine if row["context"] is not None]:
                yield f"{name} {words} at {_counts(sorted(set(contexts)))} tokens of context."
            for row in _streams(mine):
                yield (
                    f"{name} {words} with {row['requests'] - row['answered']} of {row['requests']} requests at "
                    f"{row['rate_per_s']:g} a second."
                )


def _stream_words(streams: Rows, slo_ttft_s: float, slo_tpot_s: float) -> Iterator[str]:
    if not streams:
        return
    rates = [row["rate_per_s"] for row in streams]
    at = []
    for rate in sorted({min(rates), max(rates)}):
        shares = [
            f"{_name(row, streams)} {row['goodput']:.0%}"
            + (f" ({row['preemptions']:g} preempted)" if row["preemptions"] else "")
            for row in streams
            if row["rate_per_s"] == rate
        ]
        at.append(f"at {rate:g} requests a second {', '.join(shares)}")
    yield (
        f"Requests served within the objective (first token within {slo_ttft_s:g} s of arrival, {slo_tpot_s:g} s a "
        f"token): {'; '.join(at)}."
    )


def _link(results: Rows) -> Iterator[str]:
    names: dict[bool, list[str]] = {True: [], False: []}
    for row in results:
        if row["h2d_bytes"] or row["d2h_bytes"]:
            names[bool(row["modelled"])].append(ENGINE_LABELS[row["engine"]])
    if names[True]:
        yield f"The times of {', '.join(dict.fromkeys(names[True]))} include those of a modelled link."
    if names[False]:
        yield f"The link of {', '.join(dict.fromkeys(names[False]))} is a real one, and measured."


def _grid(rows: Rows) -> Rows:
    return [row for row in rows if row["context"] is not None]


def _streams(rows: Rows) -> Rows:
    return [row for row in rows if row["rate_per_s"] is not None]


def _first(grid: Rows) -> Rows:
    """Of the first length of answer and the first batch."""
    kind = grid[0]["new_tokens"], grid[0]["batch"]
    return [row for row in grid if (row["new_tokens"], row["batch"]) == kind]


def _longest(rows: Rows) -> int:
    return max(row["context"] for row in rows)


def _name(row: Row, among: Rows) -> str:
    label = ENGINE_LABELS[row["engine"]]
    several = len({other["budget"] for other in among if other["engine"] == row["engine"]}) > 1
    return f"{label} at budget {row['budget']:g}" if several else label


def _lines(rows: Rows, x: str, y: str, scale: float = 1.0) -> dict[str, list[Point]]:
    series: dict[str, list[Point]] = {}
    for row in sorted(rows, key=lambda row: row[x]):
        if row[y] is not None:
            low, high = (row.get(f"{y}_{end}") for end in ("low", "high"))
            ends = () if low is None or high is None else (low * scale, high * scale)
            series.setdefault(_name(row, rows), []).append(Point(row[x], row[y] * scale, *ends))
    return series


def _spread(row: Row, name: str, scale: float = 1.0) -> str | None:
    if row[name] is None:
        return None
    middle, low, high = (row[key] * scale for key in (name, f"{name}_low", f"{name}_high"))
    return f"{middle:.3g} ({low:.3g}–{high:.3g})" if row["rounds"] > 1 else f"{middle:.3g}"


def _mb(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / 1e6


def _counts(numbers: list[Any]) -> str:
    return ", ".join(f"{number:,}" for number in numbers)
