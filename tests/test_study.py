"""The studies' own arithmetic and wiring; their figures are in docs/improvements.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import engines
from probes import ablation, chunks, retention, scoring, study
from probes.conversations import LAYOUTS, make_case
from probes.facts import CHOICES
from tests.tiny import tiny

ROOT = Path(__file__).parent.parent


def test_the_interval_is_wilsons() -> None:
    found = retention.Retention(asked=200, right=190)
    low, high = found.interval
    assert (round(low, 4), round(high, 4)) == (0.9104, 0.9726)


def test_memory_of_bounded_chunks_is_flat() -> None:
    first, second = chunks.flat((1024, 4096), budget_tokens=256, chunk_tokens=128)
    assert second.device_peak_bytes == pytest.approx(first.device_peak_bytes, rel=0.05)


def test_flash_scoring_keeps_the_same_at_a_fraction_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")[0]
    monkeypatch.setattr(scoring, "prompt", lambda model, tokens: [(7 * i) % 97 for i in range(tokens)])
    flash, sampled = scoring.study(model, 0.3, 300, 900, 64, repeats=1)
    assert flash["overlap"] >= 0.995
    assert flash["retained"] == pytest.approx(1, abs=1e-3)
    assert sampled["overlap"] < flash["overlap"]
    assert flash["transient_bytes"] < 0.2 * flash["eager_bytes"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_case_holds_its_facts_early_and_its_questions_have_one_answer(smollm2, layout: str) -> None:
    case = make_case(smollm2, layout, 700, seed=3)
    text = "\n".join(message["content"] for message in case.messages)
    for question in case.questions:
        said = question.said
        assert text.count(said) == 1
        assert text.index(said) < len(text) / 2
        assert question.truth in question.choices
        assert len(set(question.choices)) == CHOICES
    assert make_case(smollm2, layout, 700, seed=3) == case
    assert make_case(smollm2, layout, 700, seed=4) != case


@pytest.mark.slow
def test_the_ablation_sets_each_variant_beside_the_others(smollm2, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {name: ablation.VARIANTS[name] for name in ("paged", "h2o", "h2o+")}
    monkeypatch.setattr(ablation, "VARIANTS", variants)
    monkeypatch.setattr(ablation, "ROUNDS", 1)
    rows = ablation.measure(smollm2, tokens=320, new_tokens=3, context=150, cases=1)
    paged, h2o, plus = rows
    assert [row["variant"] for row in rows] == list(variants)
    assert h2o["device_kv_bytes"] == pytest.approx(0.3 * paged["device_kv_bytes"], rel=0.1)
    assert plus["device_transient_bytes"] < h2o["device_transient_bytes"] / 2  # which holds all scores of a layer
    assert all(row["ttft_s"] > 0 and row["tpot_ms"] > 0 and 0 <= row["retention"] <= 1 for row in rows)


def test_a_full_cache_remembers(smollm2) -> None:
    engine = engines.create_engine("vllm", smollm2)
    found = retention.ask(engine, make_case(smollm2, "first", 300, seed=0))
    assert sum(found.right) >= 3
    assert 250 < found.tokens < 700


def test_the_command_prints_a_table_or_json_and_refuses_in_one_line() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvtui.cli", "study", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    refused = run("retention", "--engines", "tgi", "--model", "smollm2-135m")
    assert refused.returncode == 2
    assert refused.stderr.startswith("kvtui: known are the engines paged, h2o")
    assert len(refused.stderr.splitlines()) == 1
    assert run("no-such").returncode == 2


def test_a_table_is_aligned() -> None:
    rows = [{"n": 1, "share": 0.5, "name": "a"}, {"n": 20_000, "share": None, "name": "long"}]
    assert study.table(rows).split("\n") == ["     n  share  name", "     1    0.5     a", "20,000      –  long"]
