"""The accuracy study: its cells and rows, its tasks from near and far, and what it refuses."""

from __future__ import annotations

import argparse
import importlib.util
import socket
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
from lm_eval.tasks import TaskManager

import engines
from engines.errors import BadRequest, KvtuiError
from probes import study, tasks
from probes.engine_lm import EngineLM
from probes.studies import record
from probes.studies.accuracy import Accuracy, rows_of
from tests.tiny_checkpoints import lm_folder

FACTS = Path(__file__).parent / "lm_tasks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    lm_folder(path, 512)
    return path


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A task from a folder needs none; nor may it find its items where an earlier run left them."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "items")


def made(**options: Any) -> Accuracy:
    usual = {
        "tasks": "kvtui_facts",
        "task_dir": FACTS,
        "limit": 3,
        "num_fewshot": None,
        "chat_template": False,
        "engines": "vllm,h2o",
        "budgets": "1.0,0.3",
        "model": "none",
        "seed": 0,
    }
    return Accuracy(argparse.Namespace(**{**usual, **options}))


def test_the_command_measures_tasks_of_ones_own(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--task-dir", str(FACTS), "--limit", "4", "--engines", "vllm,h2o", "--budgets", "1,0.3"]
    out = tmp_path / "there"
    assert study.main(["accuracy", "--tasks", "kvtui_facts", "--model", str(folder), *given, "--out", str(out)]) == 0
    rows = record.load(out).results
    assert [(row["engine"], row["budget"], row["metric"]) for row in rows] == [
        (engine, budget, metric)
        for engine, budget in (("vllm", 1), ("h2o", 1), ("h2o", 0.3))
        for metric in ("acc", "acc_norm")
    ]
    for row in rows:
        assert (row["items"], row["outcome"]) == (4, "ok")
        assert row["right"] == row["value"] * 4
    paged, full, small = ([row["value"] for row in rows[at : at + 2]] for at in (0, 2, 4))
    assert paged == full
    assert rows[4]["device_kv_peak_bytes"] < 0.6 * rows[2]["device_kv_peak_bytes"]
    assert small is not None
    printed = capsys.readouterr().out
    assert "kvtui_facts, acc of 4 items: vllm" in printed
    assert (out / "kvtui_facts-acc.svg").exists()


def test_engines_without_a_budget_are_measured_once() -> None:
    cells = made(engines="vllm,h2o,infinigen", budgets="0.5,0.2,0.5").cells()
    assert [(cell["engine"], cell["budget"]) for cell in cells] == [
        ("vllm", 1.0),
        ("h2o", 0.5),
        ("h2o", 0.2),
        ("infinigen", 0.5),
        ("infinigen", 0.2),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tasks": " , "}, "--tasks names one task"),
        ({"engines": "vllm-server"}, "--engines some of vllm, h2o"),
        ({"budgets": "1.5"}, "above 0 and at most 1"),
        ({"budgets": "half"}, "are numbers"),
        ({"limit": 0}, "--limit"),
        ({"num_fewshot": -1}, "--num-fewshot"),
        ({"task_dir": "/no/such"}, "no folder /no/such"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        made(**options)


def test_without_lm_eval_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lm_eval" else found(name))
    with pytest.raises(BadRequest, match=r"pip install 'kvtui\[eval\]'"):
        made()


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A few tasks in place of the thousands that lm-eval comes with."""
    root = tmp_path / "shipped"
    task = "task: {}\ndataset_path: no/such\noutput_type: multiple_choice\ntest_split: test\n"
    files = {
        "one/reading.yaml": task.format("reading"),
        "one/_own_yaml": "tag: languages\n",
        "one/german.yaml": "include: _own_yaml\n" + task.format("german"),
        "two/both.yaml": "group: both\ntask:\n  - reading\n  - writing\n",
        "three/writing.yaml": task.format("writing"),
        "three/broken.yaml": "task: [",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for module in (lm_eval.tasks, lm_eval.tasks.manager):
        monkeypatch.setattr(module, "__file__", str(root / "__init__.py"))
    return root


@pytest.mark.parametrize(("name", "whole"), [("reading", 3), ("languages", 3), ("both", 5), ("kvtui_facts", 1)])
def test_a_task_is_found_without_reading_all_of_them(name: str, whole: int, shipped: Path) -> None:
    """A group brings its parts, from whatever folder."""
    found = tasks.find([name], FACTS)
    assert name in found.all_tasks
    if name == "both":
        assert {"reading", "writing"} <= set(found.all_tasks)
    assert ("writing" in found.all_tasks) == (name == "both")


def test_an_unknown_task_is_refused_with_those_that_are_near(shipped: Path) -> None:
    with pytest.raises(BadRequest, match=r"no task is called 'kvtui_fact'; near it are kvtui_facts"):
        made(tasks="kvtui_fact")
    with pytest.raises(BadRequest, match=r"no task is called 'xyzzy'$"):
        tasks.find(["xyzzy"], None)


def test_items_that_are_not_there_are_one_line(tmp_path: Path) -> None:
    text = (FACTS / "kvtui_facts.yaml").read_text()
    (tmp_path / "task.yaml").write_text(text.replace("facts.jsonl", "none.jsonl"))
    there = made(task_dir=tmp_path)
    with pytest.raises(KvtuiError, match=r"the items of task 'kvtui_facts' cannot be read: .*none.jsonl") as caught:
        there.measure(there.cells()[0])
    assert "\n" not in str(caught.value)


def test_items_on_a_network_that_is_not_there_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("Couldn't reach 'some/where' on the Hub")

    monkeypatch.setattr("lm_eval.api.task.datasets.load_dataset", unreachable)
    with pytest.raises(KvtuiError, match=r"cannot be read: Couldn't reach .*; it is on the network"):
        tasks.load(TaskManager(include_path=FACTS, include_defaults=False), ["kvtui_facts"], FACTS)


def test_out_of_memory_is_a_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = engines.create_engine
    monkeypatch.setattr(engines, "create_engine", lambda *given, **knobs: create(*given, **knobs, arena_tokens=16))
    there = made(model=str(folder), engines="vllm")
    (row,) = there.measure(there.cells()[0])
    assert (row["outcome"], row["task"]) == ("device_oom", "kvtui_facts")
    assert row["detail"].startswith("out of device memory")
    assert there.reading([row]).startswith("Without a result: vllm at 1 on kvtui_facts.")
    assert there.charts([row]) == []


class Noting(EngineLM):
    """Answers nothing, and notes the contexts."""

    def __init__(self, model) -> None:
        super().__init__(engines.create_engine("vllm", model))
        self.contexts: list[str] = []

    def loglikelihood(self, requests, disable_tqdm=True):
        self.contexts += [request.args[0] for request in requests]
        return [(0.0, False)] * len(requests)


def test_every_engine_is_shown_the_same_examples(folder: Path) -> None:
    loaded = tasks.load(TaskManager(include_path=FACTS, include_defaults=False), ["kvtui_facts"], FACTS)["kvtui_facts"]
    model = engines.load_model(str(folder), device="cpu")

    def shown(seed: int, examples: int = 2) -> list[str]:
        lm = Noting(model)
        tasks.evaluate(lm, loaded, limit=3, num_fewshot=examples, chat_template=False, seed=seed)
        return lm.contexts

    first = shown(0)
    assert all(context.count("Question:") == 3 for context in first)
    assert shown(0) == first
    assert shown(1) != first


def test_rows_are_lm_evals_results() -> None:
    cell = {"task": "both", "engine": "h2o", "budget": 0.3}
    found = {
        "results": {
            "part": {"alias": "part", "acc,none": 0.75, "acc_stderr,none": 0.1, "sample_len": 8},
            "texts": {"word_perplexity,none": 12.5, "word_perplexity_stderr,none": "N/A", "exact_match,strict": 0.5},
            "both": {"alias": "both", "acc,none": 0.6, "acc_stderr,none": 0.05},
        },
        "n-samples": {"part": {"original": 10, "effective": 8}, "texts": {"original": 4, "effective": 4}},
        "higher_is_better": {
            "part": {"acc": True},
            "texts": {"word_perplexity": False, "exact_match": True},
            "both": {},
        },
    }
    rows = rows_of(cell, found)
    columns = ("task", "metric", "value", "loss", "stderr", "right", "items")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("part", "acc", 0.75, None, 0.1, 6, 8),
        ("texts", "word_perplexity", None, 12.5, None, None, 4),
        ("texts", "exact_match (strict)", 0.5, None, None, 2, 4),
        ("both", "acc", 0.6, None, 0.05, None, None),
    ]
    assert all((row["engine"], row["budget"], row["outcome"]) == ("h2o", 0.3, "ok") for row in rows)


def test_charts_have_a_line_an_engine_and_bars_where_there_is_one_budget() -> None:
    def row(engine: str, budget: float, value: float) -> dict[str, Any]:
        base = {"task": "kvtui_facts", "metric": "acc", "loss": None, "stderr": 0.1, "items": 20, "outcome": "ok"}
        return {**base, "engine": engine, "budget": budget, "value": value}

    rows = [row("vllm", 1.0, 0.8), row("h2o", 1.0, 0.8), row("h2o", 0.3, 0.6)]
    (chart,) = made().charts(rows)
    assert {name: [(point.x, point.y) for point in points] for name, points in chart.series.items()} == {
        "vllm": [(0.3, 0.8), (1.0, 0.8)],
        "h2o": [(0.3, 0.6), (1.0, 0.8)],
    }
    assert chart.series["h2o"][0].low == pytest.approx(0.5)
    (bars,) = made(budgets="0.3").charts([rows[0], rows[2]])
    assert {name: [(point.x, point.y) for point in points] for name, points in bars.series.items()} == {
        "vllm": [("kvtui_facts", 0.8)],
        "h2o": [("kvtui_facts", 0.6)],
    }
    assert (
        made()
        .reading(rows)
        .startswith("kvtui_facts, acc of 20 items: vllm 0.8 ±0.1, h2o at 1 0.8 ±0.1, h2o at 0.3 0.6 ±0.1.")
    )
