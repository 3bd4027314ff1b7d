"""Standard benchmarks: how right each engine's answers are, by its budget."""

from __future__ import annotations

import argparse
import math
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from engines.errors import BadRequest
from engines.events import ENGINE_LABELS, SERVER
from probes import tasks
from probes.studies.base import Cell, Chart, Measure, ModelStudy, Point, Row, Rows

KEEPS_ALL = "vllm"  # has no budget
SHARES = ("acc", "acc_norm", "exact_match")  # means of what is 0 or 1 for each item


class Accuracy(ModelStudy):
    name = "accuracy"
    summary = "Standard benchmarks (lm-eval's tasks, or your own) on each engine, over budgets."
    keys = ("task", "metric", "engine", "budget")
    measures = (Measure("value", "higher", right="right", asked="items"), Measure("loss", "lower"))

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--tasks", default="piqa,openbookqa", help="of lm-eval's or --task-dir, separated by commas"
        )
        parser.add_argument("--task-dir", type=Path, metavar="DIR", help="a folder with tasks of your own (YAML)")
        parser.add_argument("--limit", type=int, metavar="N", help="the first N items of each task only")
        parser.add_argument(
            "--num-fewshot", type=int, metavar="N", help="examples before each item, else the task's own"
        )
        parser.add_argument("--chat-template", action="store_true", help="ask through the model's chat template")
        parser.add_argument("--engines", default="vllm,h2o,h2o+,infinigen", help="separated by commas")
        parser.add_argument("--budgets", default="1.0,0.5,0.3,0.2", help="shares of KV kept or fetched")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self._folder = Path(options.task_dir).resolve() if options.task_dir is not None else None
        self._names, self._engines = _listed(options.tasks), _listed(options.engines)
        known = [engine for engine in ENGINE_LABELS if engine != SERVER]
        if not self._names or not self._engines or not set(self._engines) <= set(known):
            raise BadRequest(f"--tasks names one task or more, and --engines some of {', '.join(known)}")
        try:
            self._budgets = [float(budget) for budget in _listed(options.budgets)]
        except ValueError:
            raise BadRequest(f"--budgets are numbers, separated by commas, not {options.budgets!r}") from None
        if not self._budgets or not all(0 < budget <= 1 for budget in self._budgets):
            raise BadRequest("--budgets are shares above 0 and at most 1")
        if options.limit is not None and options.limit < 1:
            raise BadRequest("--limit is 1 or more")
        if options.num_fewshot is not None and options.num_fewshot < 0:
            raise BadRequest("--num-fewshot is 0 or more")
        if self._folder is not None and not self._folder.is_dir():
            raise BadRequest(f"--task-dir: there is no folder {options.task_dir}")
        tasks.check_harness()
        self._index = tasks.find(self._names, self._folder)

    @cached_property
    def _tasks(self) -> dict[str, Any]:
        """All at once, so that what cannot be had is known before anything is measured."""
        return tasks.load(self._index, self._names, self._folder)

    def cells(self) -> list[Cell]:
        return [
            {"task": task, "engine": engine, "budget": budget}
            for task in self._names
            for engine in self._engines
            for budget in ([1.0] if engine == KEEPS_ALL else dict.fromkeys(self._budgets))
        ]

    def measure(self, cell: Cell) -> Rows:
        loaded = self._tasks[cell["task"]]
        import engines
        from probes.engine_lm import EngineFailed, EngineLM

        if self.options.chat_template and not getattr(self.model.tokenizer, "chat_template", None):
            raise BadRequest(f"model {self.model.name} has no chat template")

        def asked(done: int, total: int) -> None:
            self.said(f"{cell['task']}, {cell['engine']} at {cell['budget']:g}: {done:,} of {total:,} requests")

        budget = cell["budget"]
        lm = EngineLM(engines.create_engine(cell["engine"], self.model, budget=budget, alpha=alpha_at(budget)), asked)
        try:
            found = tasks.evaluate(
                lm,
                loaded,
                self.options.limit,
                self.options.num_fewshot,
                self.options.chat_template,
                self.options.seed,
            )
        except EngineFailed as fault:
            return [{**cell, "outcome": fault.outcome, "detail": str(fault)}]
        return [row | {"device_kv_peak_bytes": lm.device_kv_peak_bytes} for row in rows_of(cell, found)]

    def reading(self, results: Rows) -> str:
        said = []
        for (task, metric), rows in _by(results, "task", "metric").items():
            if task not in self._names:  # a part of a group
                continue
            told = ", ".join(f"{_named(row)} {_number(row)}" for row in rows)
            items = next((row["items"] for row in rows if row["items"] is not None), None)
            said.append(f"{task}, {metric}" + (f" of {items:,} items" if items else "") + f": {told}.")
        failed = [f"{row['engine']} at {row['budget']:g} on {row['task']}" for row in results if row["outcome"] != "ok"]
        if failed:
            said.append(f"Without a result: {', '.join(failed)}.")
        said.append("What differs by less than about twice the standard error (±) may be chance.")
        return " ".join(said)

    def charts(self, results: Rows) -> list[Chart]:
        """Of each task, its metrics over budgets; what keeps all is a level line, to compare with. Of one budget, each
        metric's bars, task by task."""
        whole = [row for row in results if row["task"] in self._names]
        if len(set(self._budgets)) == 1:
            return [
                Chart(_file(metric), f"budget {self._budgets[0]:g}", "task", metric, _series(rows, self._budgets))
                for (metric,), rows in _by(whole, "metric").items()
            ]
        return [
            Chart(_file(task, metric), task, "budget (share of KV)", metric, _series(rows, self._budgets))
            for (task, metric), rows in _by(whole, "task", "metric").items()
        ]


def alpha_at(budget: float) -> float | None:
    """A whole budget leaves nothing out: then InfiniGen's other limit, on how far a logit may lie below the maximum, is
    off too. Below, the engines are as they are by default."""
    return math.inf if budget == 1 else None


def rows_of(cell: Cell, found: dict[str, Any]) -> Rows:
    """lm-eval's results as rows: for each task (a group has several, and itself) and metric. What is better when it is
    higher is a `value`, and otherwise a `loss`."""
    rows = []
    for task, metrics in found["results"].items():
        count = found["n-samples"].get(task)
        items = count["effective"] if count else metrics.get("sample_len")
        for key, number in metrics.items():
            metric, _, filtered = key.partition(",")
            if not filtered or metric.endswith("_stderr") or not isinstance(number, (int, float)):
                continue
            higher = found["higher_is_better"].get(task, {}).get(metric) is not False
            spread = metrics.get(f"{metric}_stderr,{filtered}")
            rows.append(
                {
                    **cell,
                    "task": task,
                    "metric": metric if filtered == "none" else f"{metric} ({filtered})",
                    "value": float(number) if higher else None,
                    "loss": None if higher else float(number),
                    "stderr": float(spread) if isinstance(spread, (int, float)) else None,
                    "right": round(number * items) if metric in SHARES and count else None,
                    "items": items,
                    "outcome": "ok",
                }
            )
    return rows


def _listed(text: str) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _by(rows: Rows, *names: str) -> dict[tuple[Any, ...], Rows]:
    """The rows that have a result, by those columns."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        if row["outcome"] == "ok":
            groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def _named(row: Row) -> str:
    return row["engine"] if row["engine"] == KEEPS_ALL else f"{row['engine']} at {row['budget']:g}"


def _figure(row: Row) -> float:
    return row["loss"] if row["value"] is None else row["value"]


def _number(row: Row) -> str:
    return f"{_figure(row):.4g}" + ("" if row["stderr"] is None else f" ±{row['stderr']:.2g}")


def _file(*words: str) -> str:
    return re.sub(r"[^\w.-]+", "-", "-".join(words)).strip("-")


def _series(rows: Rows, budgets: list[float]) -> dict[str, list[Point]]:
    """By engine, points over budgets, or over tasks where there is one budget."""
    series = {}
    for (engine,), own in _by(rows, "engine").items():
        points = [point for row in own for point in _points(row, budgets)]
        series[engine] = points if len(set(budgets)) == 1 else sorted(points, key=lambda point: float(point.x))
    return series


def _points(row: Row, budgets: list[float]) -> list[Point]:
    y, spread = _figure(row), row["stderr"]
    ends = (None, None) if spread is None else (y - spread, y + spread)
    if len(set(budgets)) == 1:
        return [Point(row["task"], y, *ends)]
    at = [min(budgets), max(budgets)] if row["engine"] == KEEPS_ALL else [row["budget"]]
    return [Point(x, y, *ends) for x in at]
