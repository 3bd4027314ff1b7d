"""`kvtui study advise`: what records tell of each candidate, what is worked out between them, and the command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from engines.errors import BadRequest
from probes import study, variants
from probes.advice import Candidate, Figure
from probes.studies import advise, evidence
from tests import study_records as records

H2O = ("h2o", 0.3)
# Weights of 1,000 bytes, 2 bytes of KV a token in the paged cache; H2O keeps 0.3 of it and holds n²/1000 of scores.
SPEED = records.speed(
    [
        *(
            records.speed_row("vllm", n, tpot, 1000 + 2 * n, device_kv_peak_bytes=2 * n, ttft_s=n / 1000)
            for n, tpot in ((1000, 0.030), (2000, 0.040))
        ),
        *(
            records.speed_row("h2o", n, 0.025, 1000 + 6 * n // 10 + n * n // 1000, device_kv_peak_bytes=6 * n // 10)
            for n in (1000, 2000)
        ),
        *(records.speed_row("infinigen", n, 0.1, 900 + n // 2, device_kv_peak_bytes=n // 2) for n in (1000, 2000)),
        records.speed_row("h2o", 1000, 9.0, 9, batch=4),
        records.speed_row("h2o", 1000, 9.0, 9) | {"rate_per_s": 2.0},
    ],
    links=(records.PCIE,),
)
ANSWERS = records.answers([("paged", 1000, 40, 48), ("h2o", 1000, 20, 48), ("infinigen", 1000, 38, 48)])


def at(context: int, *found: Any, cap_bytes: int | None = None) -> dict[str, Candidate]:
    return {one.name: one for one in evidence.candidates(evidence.collect([*found]), context, cap_bytes)}


def test_a_measured_context_is_told_as_it_was_measured() -> None:
    found = at(1000, SPEED, ANSWERS)
    assert set(found) == {"Paged (vLLM-style)", "H2O at budget 0.3", "InfiniGen at budget 0.3"}
    paged, h2o, infinigen = found.values()
    assert (paged.device_bytes, paged.tpot_s, paged.ttft_s) == (Figure(3000), Figure(0.03), Figure(1))
    assert paged.accuracy == Figure(1, "by definition")
    assert h2o.accuracy == Figure(0.5, "retention at 1,000 tokens: 20 of 48, full cache 40 of 48")
    assert h2o.tpot_s == Figure(0.025)  # of one request at a time, and of no stream
    assert infinigen.tpot_s == Figure(0.1, "modelled link")


def test_another_context_is_worked_out_and_says_so() -> None:
    paged, h2o, _ = at(4000, SPEED, ANSWERS).values()
    note = "extrapolated from 1,000 and 2,000 tokens"
    assert paged.tpot_s == Figure(pytest.approx(0.060), note)
    assert paged.device_bytes == Figure(9000, note)  # 1,000 and 2 bytes a token
    # 1,000 of weights, 2,400 of KV and 16,000 of scores; a line would have 12,400.
    assert h2o.device_bytes == Figure(pytest.approx(19_400), note)
    assert h2o.accuracy is not None
    assert h2o.accuracy.note.startswith("retention at 1,000 tokens")
    between = at(1500, SPEED)["Paged (vLLM-style)"]
    assert between.tpot_s == Figure(pytest.approx(0.035), "between 1,000 and 2,000 tokens")


def test_with_one_context_only_memory_is_worked_out_and_not_for_scores() -> None:
    one = changed(SPEED, measured=(changed(SPEED.measured[0], rows=[r for r in SPEED.rows if r["context"] == 1000]),))
    paged, h2o, _ = at(4000, one).values()
    assert paged.tpot_s is None
    assert paged.device_bytes == Figure(9000, "extrapolated from 1,000 tokens by the KV's bytes a token")
    assert h2o.device_bytes is None


def test_a_line_that_comes_down_to_nothing_tells_nothing() -> None:
    falling = records.speed([records.speed_row("vllm", n, t, 1) for n, t in ((1000, 0.2), (2000, 0.1))])
    assert at(4000, falling)["Paged (vLLM-style)"].tpot_s is None


def test_out_of_memory_is_lost_for_longer_contexts_and_no_larger_cap() -> None:
    row = records.speed_row("h2o", 2000, None, 0) | {"outcome": "device_oom"}
    free, capped = records.speed([row]), records.speed([row], options={"device_memory": "1MiB"})
    name = "H2O at budget 0.3"
    assert at(2000, free)[name].lost == "ran out of device memory at 2,000 tokens"
    assert at(4000, free)[name].lost
    assert not at(1000, free)[name].lost
    assert not at(2000, capped)[name].lost
    assert at(2000, capped, cap_bytes=1 << 20)[name].lost
    assert not at(2000, capped, cap_bytes=1 << 21)[name].lost


def test_the_later_record_counts_and_the_worse_of_two_kinds_of_answers() -> None:
    later = records.answers([("paged", 1000, 40, 40), ("h2o", 1000, 30, 40)], ended="2026-12-02T10:00:00+00:00")
    found = at(1000, later, ANSWERS)["H2O at budget 0.3"].accuracy
    assert found is not None
    assert found.value == 0.75
    tasks = changed(records.answers([("vllm", 1000, 20, 40), ("h2o", 1000, 10, 40)]), study="accuracy")
    found = at(1000, later, tasks)["H2O at budget 0.3"].accuracy
    assert found is not None
    assert (found.value, found.note[:8]) == (0.5, "accuracy")


def test_conversations_of_one_aim_are_one_figure_and_a_task_counts_once() -> None:
    rows = [
        {"aim": "context 1000", "engine": e, "budget": b, "context": n, "right_answers": r, "questions": 4}
        for e, b, n, r in (
            ("paged", None, 1003, 4),
            ("paged", None, 990, 4),
            ("h2o", 0.2, 1003, 3),
            ("h2o", 0.2, 990, 1),
        )
    ]
    record = records.of("retention", rows, keys=("aim", "budget", "engine"), measures=records.COUNTS)
    found = at(1000, record)["H2O at budget 0.2"].accuracy
    assert found == Figure(0.5, "retention at 1,000 tokens: 4 of 8, full cache 8 of 8")
    rows = [
        {"task": "piqa", "metric": m, "engine": e, "budget": b, "right": r, "items": 10}
        for e, b, m, r in (
            ("vllm", 1.0, "acc", 8),
            ("vllm", 1.0, "acc_norm", 9),
            ("h2o", 0.3, "acc", 4),
            ("h2o", 0.3, "acc_norm", 9),
        )
    ]
    measure = records.Measure("value", "higher", right="right", asked="items")
    record = records.of("accuracy", rows, keys=("task", "metric", "engine", "budget"), measures=(measure,))
    found = at(1000, record)["H2O at budget 0.3"].accuracy
    assert found == Figure(0.5, "accuracy: 4 of 10, full cache 8 of 10")


def test_a_full_cache_that_knows_nothing_is_no_measure() -> None:
    none = records.answers([("paged", 1000, 0, 8), ("h2o", 1000, 1, 8)])
    assert at(1000, none)["H2O at budget 0.3"].accuracy is None
    alone = records.answers([("h2o", 1000, 1, 8)])
    assert at(1000, alone) == {}


def test_the_ablation_tells_times_and_answers() -> None:
    common = {"device_kv_bytes": 5, "device_peak_bytes": 50, "ttft_s": 1.0, "retention_context": 1000, "questions": 8}
    rows: list[dict[str, Any]] = [
        {"variant": "paged", "tpot_ms": 20.0, "right_answers": 8, **common},
        {"variant": "h2o anchors", "tpot_ms": 10.0, "right_answers": 6, **common},
    ]
    options = {"tokens": 512, "budget": 0.2}
    ablation = records.of("ablation", rows, keys=("variant",), measures=records.COUNTS, options=options)
    found = at(512, ablation)["h2o anchors at budget 0.2"]
    assert (found.tpot_s, found.device_bytes) == (Figure(0.01), Figure(50))
    assert found.accuracy == Figure(0.75, "retention at 1,000 tokens: 6 of 8, full cache 8 of 8")


def test_times_of_two_machines_or_links_are_no_one_table() -> None:
    sitting = SPEED.sittings[0]
    moved = changed(SPEED, sittings=(changed(sitting, machine={**sitting.machine, "cores": 64}),))
    with pytest.raises(BadRequest, match="on different machines"):
        evidence.collect([SPEED, moved])
    nvlink = changed(SPEED, sittings=(changed(sitting, links=(changed(records.PCIE, profile="nvlink-c2c"),)),))
    with pytest.raises(BadRequest, match=r"over different links \(nvlink-c2c; pcie4\)"):
        evidence.collect([SPEED, nvlink])


def test_every_variant_has_a_command_that_kvtui_takes() -> None:
    from kvtui.cli import cli

    for name in variants.VARIANTS:
        command = variants.command(name, "smollm2-135m", None if name == variants.PAGED else 0.3)
        with cli.make_context("kvtui", command.split()[1:]) as context:
            assert context.params["engines"] == [variants.VARIANTS[name][0]]
    assert variants.command("h2o anchors", "m", 0.2) == "kvtui --model m --engines h2o --budget 0.2 --anchors 0.6"
    assert variants.command("h2o\x1b", "m", 0.2) == ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    records.write(Path("kvtui-studies/one/record.json"), SPEED)
    records.write(Path("kvtui-studies/two/record.json"), ANSWERS)
    return tmp_path


def advised(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    study.main(["advise", "--json", *arguments])
    return json.loads(capsys.readouterr().out)


def test_the_command_advises(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["advise"]) == 0
    out = capsys.readouterr().out
    assert "2,000 tokens of context; asked for: at least 90% of the full cache's right answers." in out
    assert "Take Paged (vLLM-style): the fastest of 2 that fit." in out
    assert "    kvtui --model smollm2-135m --engines vllm\n" in out
    assert "Runner-up: InfiniGen at budget 0.3." in out
    assert "95% of the full cache's right answers (retention at 1,000 tokens: 38 of 48, full cache 40 of 48)" in out
    assert "Times over the link are modelled, not measured." in out
    assert "*" not in out


def test_limits_decide(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advised(capsys, "--min-accuracy", "0.4")["best"] == "H2O at budget 0.3"
    assert advised(capsys, "--device-memory", "4500B")["best"] == "InfiniGen at budget 0.3"
    assert advised(capsys, "--min-accuracy", "0", "--prefer", "memory")["best"] == "InfiniGen at budget 0.3"
    assert study.main(["advise", "--results", "kvtui-studies/one", "--device-memory", "4500B"]) == 1
    assert "What is not known of the full cache's right answers, kvtui study retention" in capsys.readouterr().out
    told = advised(capsys, "--context", "4k")
    assert told["context"] == 4096
    assert told["candidates"][0]["tpot_s"]["note"] == "extrapolated from 1,000 and 2,000 tokens"


def test_when_nothing_fits_the_nearest_miss_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["advise", "--max-tpot", "0.035"]) == 1
    out = capsys.readouterr().out
    assert "Nothing fits." in out
    assert "The nearest miss is Paged (vLLM-style): 40 ms a token, at most 35 ms asked for." in out
    told = advised(capsys, "--max-tpot", "0.035")
    assert (told["best"], told["nearest_miss"]) == (None, "Paged (vLLM-style)")
    only = records.write(Path("only.json"), records.answers([("paged", 1, 1, 1), ("h2o", 1, 1, 1)]))
    assert study.main(["advise", "--results", str(only)]) == 2
    assert "none of the records has times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device-memory", "lots"], "--device-memory is a size such as"),
        (["--min-accuracy", "90"], "--min-accuracy is a share"),
        (["--min-accuracy", "nan"], "--min-accuracy is a share"),
        (["--max-tpot", "-1"], "--max-tpot is a number of seconds"),
        (["--max-ttft", "inf"], "--max-ttft is a number of seconds"),
        (["--context", "long"], "--context takes numbers"),
        (["--context", "1k,2k"], "--context is one number of tokens"),
        (["--context", "0"], "--context takes numbers"),
        (["--measure", "--budgets", "2"], "--budgets is numbers above 0 and at most 1"),
        (["--results", "nowhere.json"], "cannot read nowhere.json"),
        (["--results", "."], "holds no study's record"),
        (["--results", "kvtui-studies", "--model", "qwen"], "none of the records is of qwen"),
    ],
)
def test_refusals_are_one_line(
    folder: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main(["advise", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_broken_record_among_many_is_left_out_and_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("kvtui-studies/broken").mkdir()
    Path("kvtui-studies/broken/record.json").write_text("{}")
    Path("kvtui-studies/begun").mkdir()
    told = advised(capsys)
    assert told["best"] == "Paged (vLLM-style)"
    assert told["notes"][1].startswith("Left out: kvtui-studies/broken/record.json is no study's record")


def test_without_records_short_ones_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from probes.studies.improvements import Ablation

    asked: list[argparse.Namespace] = []

    def measure(self: Ablation, cell: dict[str, Any]) -> list[dict[str, Any]]:
        asked.append(self.options)
        row = {"device_peak_bytes": 50, "device_kv_bytes": 5, "device_transient_bytes": 1, "ttft_s": 1.0}
        row |= {"retention": 1.0, "retention_context": 1000, "right_answers": 8, "questions": 8}
        names = (("paged", 20.0), ("h2o", 15.0), ("h2o+", 10.0))
        return [{"variant": name, "tpot_ms": tpot * self.options.tokens / 512, **row} for name, tpot in names]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Ablation, "measure", measure)
    monkeypatch.setattr(Ablation, "links", lambda self: (records.PCIE,))
    assert study.main(["advise", "--context", "2k", "--budgets", "0.2,0.3"]) == 0
    told = capsys.readouterr()
    assert "holds no records of smollm2-135m" in told.err
    assert [(o.tokens, o.budget, o.cases) for o in asked] == [
        (n, b, 4) for n in advise.SHORT_CONTEXTS for b in (0.2, 0.3)
    ]
    assert "40 ms a token (extrapolated from 512 and 1,024 tokens)" in told.out
    assert study.main(["advise", "--context", "512"]) == 0  # out of what was kept
    assert len(asked) == 4
    assert study.main(["advise", "--context", "256", "--measure"]) == 0
    assert [o.tokens for o in asked[4:]] == [256]
