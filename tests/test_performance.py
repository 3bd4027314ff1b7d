"""The performance study: whose turn it is, what counts, what is made of it, and that no engine's end is the study's."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BadRequest
from engines.sizes import parsed, size
from probes import study
from probes.studies import performance_results as said_of
from probes.studies.base import Rows
from probes.studies.performance import Performance
from tests.tiny import tiny


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny("llama")[0]


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    Performance.add_options(parser)
    return parser.parse_args(arguments)


def make(model: Any, *arguments: str) -> Performance:
    made = Performance(options(*arguments))
    made.model = model
    return made


SMALL = ("--contexts", "40,80", "--max-new-tokens", "3", "--rounds", "2", "--link", "pcie4")


def measured(made: Performance) -> Rows:
    return [row for cell in made.cells() for row in made.measure(cell)]


def test_engines_take_turns_and_those_without_a_budget_go_once() -> None:
    cells = Performance(options(*SMALL, "--budgets", "0.2,0.5", "--rates", "3", "--engines", "vllm,h2o")).cells()
    in_turn = [("vllm", None), ("h2o", 0.2), ("h2o", 0.5)]
    assert [(cell["engine"], cell["budget"]) for cell in cells] == in_turn * 6
    assert [cell["round"] for cell in cells] == [1, 1, 1, 2, 2, 2] * 3
    assert [cell.get("context") for cell in cells] == [40] * 6 + [80] * 6 + [None] * 6
    assert [cell.get("rate_per_s") for cell in cells] == [None] * 12 + [3.0] * 6


def test_each_size_is_warmed_up_by_all_and_the_warm_up_is_no_row(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(model, *SMALL, "--engines", "vllm,infinigen", "--contexts", "40")
    runs: list[tuple[str, int]] = []
    served = made._served

    def noting(variant: Any, requests: Any, *, say: bool = False) -> Any:
        runs.append((variant["engine"], len(requests[0].token_ids)))
        return served(variant, requests, say=say)

    monkeypatch.setattr(made, "_served", noting)
    rows = measured(made)
    assert runs == [("vllm", 40), ("infinigen", 40)] * 3  # once to warm up, then two rounds
    assert [(row["engine"], row["round"]) for row in rows] == [(e, r) for r in (1, 2) for e in ("vllm", "infinigen")]
    # Where an interrupted study goes on, in another process, it warms up again.
    runs.clear()
    again = make(model, *SMALL, "--engines", "vllm,infinigen", "--contexts", "40")
    monkeypatch.setattr(again, "_served", noting)
    again.measure(again.cells()[-1])
    assert [engine for engine, _ in runs] == ["vllm", "infinigen", "infinigen"]


def test_a_row_has_what_was_asked_for(model: Any) -> None:
    made = make(model, *SMALL, "--engines", "vllm,h2o,infinigen", "--batches", "2", "--rounds", "1", "--contexts", "64")
    paged, h2o, infinigen = measured(made)
    for row in (paged, h2o, infinigen):
        assert (row["outcome"], row["requests"], row["answered"], row["preemptions"]) == ("ok", 2, 2, 0)
        assert 0 <= row["queue_s"] < row["ttft_s"] <= row["ttft_p95_s"] < row["latency_p95_s"]
        assert row["tok_s"] == pytest.approx(6 / row["latency_p95_s"], rel=0.2)  # both end at nearly the same time
        assert row["device_peak_bytes"] > model.weights_bytes
    # 64 + 2 tokens are five blocks for each of the two: their prompts share nothing.
    assert paged["device_kv_peak_bytes"] == 2 * 5 * 16 * model.kv_bytes_per_token
    assert h2o["device_kv_peak_bytes"] < paged["device_kv_peak_bytes"]
    assert (paged["h2d_bytes"], paged["modelled"]) == (0, False)
    assert infinigen["h2d_bytes"] > 0
    assert infinigen["host_peak_bytes"] >= 2 * 67 * model.kv_bytes_per_token
    assert infinigen["modelled"] is True
    assert [link.measured for link in made.links()] == [False]
    assert make(model, "--engines", "vllm,h2o").links() == ()


def test_peaks_are_those_of_the_cell(model: Any) -> None:
    made = make(model, *SMALL, "--engines", "vllm", "--contexts", "160,16", "--rounds", "1")
    long, short = measured(made)
    assert long["device_kv_peak_bytes"] == 11 * 16 * model.kv_bytes_per_token
    assert short["device_kv_peak_bytes"] == 2 * 16 * model.kv_bytes_per_token


def test_out_of_memory_is_a_row_and_so_is_what_is_too_long(model: Any) -> None:
    cap = model.weights_bytes + 100 * model.kv_bytes_per_token
    made = make(model, *SMALL, "--engines", "vllm", "--contexts", "40,200,1023", "--device-memory", str(cap))
    short, long, beyond = made.results(measured(made))
    assert short["outcome"] == "ok"
    assert (long["outcome"], long["reached_tokens"], long["answered"]) == ("device_oom", 200, 0)
    assert "out of device memory at 200 tokens" in long["detail"]
    assert all(long[name] is None for name in ("ttft_s", "tpot_s", "tok_s", "device_peak_bytes"))
    assert beyond["outcome"] == "too_long"
    reading = made.reading([short, long, beyond])
    assert "Paged (vLLM-style) ran out of device memory at 200 tokens of context." in reading
    assert "longer than the model's context: 1,023 tokens" in reading
    assert reading.endswith(f"capped at {size(cap)}.")
    assert [point.x for point in made.charts([short, long, beyond])[0].series["Paged (vLLM-style)"]] == [40]


def test_an_engine_that_cannot_even_be_made_is_a_row(model: Any) -> None:
    made = make(model, *SMALL, "--engines", "vllm", "--contexts", "40", "--rounds", "1", "--device-memory", "1kB")
    (row,) = measured(made)
    assert (row["outcome"], row["device_peak_bytes"], row["goodput"]) == ("device_oom", None, 0)
    assert "for weights" in row["detail"]
    (fine,) = measured(make(model, *SMALL, "--engines", "vllm", "--contexts", "40", "--rounds", "1"))
    assert list(row) == list(fine)
    assert said_of.brief(made.results([row]))[0]["outcome"] == "device_oom"


def test_a_full_machine_is_a_row_and_the_next_cell_begins_anew(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(model, *SMALL, "--engines", "vllm", "--contexts", "40")
    first, second = made.cells()
    made.measure(first)
    engine = made._engines["vllm", None]

    def full(observe: bool = False) -> list:
        engine.cancel()
        raise MemoryError

    monkeypatch.setattr(engine, "advance", full)
    (row,) = made.measure(second)
    assert (row["outcome"], row["ttft_s"]) == ("host_oom", None)
    (row,) = made.measure(second)
    assert row["outcome"] == "ok"
    assert made._engines["vllm", None] is not engine


def test_a_stream_is_the_same_for_all_engines_and_another_in_each_round(model: Any) -> None:
    made = make(model, *SMALL, "--rates", "2,4", "--requests", "30", "--seed", "5", "--contexts", "40,80,1023")
    streams = {
        (cell["rate_per_s"], cell["round"], cell["engine"]): made._requests(cell)
        for cell in made.cells()
        if "rate_per_s" in cell
    }
    assert streams[2, 1, "vllm"] == streams[2, 1, "h2o"]
    assert streams[2, 1, "vllm"] != streams[2, 2, "vllm"]
    assert {len(request.token_ids) for request in streams[2, 1, "vllm"]} == {40, 80}
    assert len({tuple(request.token_ids[:16]) for request in streams[2, 1, "vllm"]}) == 30  # no beginning is shared
    slow, fast = (
        [(request.arrival_s, len(request.token_ids)) for request in streams[rate, 1, "vllm"]] for rate in (2, 4)
    )
    assert fast == [(arrival_s / 2, length) for arrival_s, length in slow]


def test_a_stream_through_every_engine(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.tokenizer, "decode", lambda ids, **options: "Tell me a story", raising=False)
    made = make(
        model,
        *("--engines", "vllm,h2o,h2o+,infinigen,infinigen+,hybrid", "--link", "pcie4", "--contexts", "24,48"),
        *("--max-new-tokens", "3", "--rounds", "1", "--rates", "1000", "--requests", "5"),
        *("--slo-ttft", "1000", "--slo-tpot", "1000"),
    )
    made._batches = []
    rows = measured(made)
    assert [row["engine"] for row in rows] == made._engine_ids
    assert all((row["outcome"], row["good"], row["goodput"]) == ("ok", 5, 1.0) for row in rows)
    assert all(row["tok_s"] == pytest.approx(3 * row["good_per_s"]) for row in rows)


def row(**given: Any) -> dict[str, Any]:
    told = dict.fromkeys(Performance.keys) | {"context": 512, "new_tokens": 32, "batch": 1, "engine": "vllm"}
    came = dict.fromkeys((*said_of.TIMES, *said_of.ACCOUNTS), 1.0) | {"outcome": "ok", "detail": "", "modelled": False}
    counts = {"reached_tokens": None, "requests": 1, "answered": 1, "good": 1, "goodput": 1.0, "round": 1}
    return told | came | counts | {"h2d_bytes": 0, "d2h_bytes": 0, "preemptions": 0} | given


def test_medians_and_their_spread_by_hand() -> None:
    rounds = [row(tpot_s=tpot_s, round=n, good=n % 2, goodput=n % 2) for n, tpot_s in enumerate((0.05, 0.03, 0.09), 1)]
    other = [row(engine="h2o", budget=0.3, tpot_s=None, outcome="device_oom", detail="full", reached_tokens=512)]
    paged, h2o = said_of.grouped([*rounds, *other], Performance.keys)
    assert (paged["tpot_s"], paged["tpot_s_low"], paged["tpot_s_high"], paged["rounds"]) == (0.05, 0.03, 0.09, 3)
    assert (paged["requests"], paged["good"], paged["goodput"]) == (3, 2, 2 / 3)
    assert (h2o["tpot_s"], h2o["outcome"], h2o["detail"], h2o["reached_tokens"]) == (None, "device_oom", "full", 512)
    shown = said_of.brief([paged, h2o])
    assert shown[0]["TPOT ms"] == "50 (30–90)"
    assert "rate/s" not in shown[0]
    (point,) = said_of.charts([paged])[0].series["Paged (vLLM-style)"]
    assert (point.x, point.y, point.low, point.high) == (512, 50, 30, 90)


def test_the_reading_says_who_is_fastest_what_is_modelled_and_what_was_met() -> None:
    slow = {"engine": "infinigen", "budget": 0.3, "h2d_bytes": 9, "modelled": True}
    stream = {"context": None, "new_tokens": None, "batch": None, "requests": 20}
    rows = [
        row(tpot_s=0.04, ttft_s=1.0, device_kv_peak_bytes=100, device_peak_bytes=400),
        row(tpot_s=0.10, ttft_s=1.5, device_kv_peak_bytes=25, device_peak_bytes=300, **slow),
        row(context=2048, tpot_s=0.08, ttft_s=4.0, device_kv_peak_bytes=400, device_peak_bytes=700),
        row(context=2048, tpot_s=0.04, ttft_s=4.0, device_kv_peak_bytes=80, device_peak_bytes=350, **slow),
        row(**stream, rate_per_s=0.5, good=19, goodput=0.95),
        row(**stream, rate_per_s=2.0, good=5, goodput=0.25, preemptions=3),
    ]
    words = said_of.reading(said_of.grouped(rows, Performance.keys), 5.0, 0.2)
    assert "At 512 tokens of context Paged (vLLM-style) decodes fastest, 40 ms a token: InfiniGen 2.50 times" in words
    assert "At 2,048 tokens of context InfiniGen decodes fastest, 40 ms a token: Paged (vLLM-style) 2.00 times" in words
    assert (
        "At 2,048 tokens of context Paged (vLLM-style) has the first token soonest, 4 s: InfiniGen 1.00 times" in words
    )
    assert "(their spreads overlap)" in words
    assert "KV on the device at 2,048 tokens" in words
    assert "InfiniGen 0.20 (0.50)" in words
    assert "The times of InfiniGen include those of a modelled link." in words
    assert (
        "(first token within 5 s of arrival, 0.2 s a token): at 0.5 requests a second Paged (vLLM-style) 95%" in words
    )
    assert "at 2 requests a second Paged (vLLM-style) 25% (3 preempted)" in words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--engines", "vllm,tgi"), "--engines has no 'tgi': choose from vllm, h2o"),
        (("--engines", "vllm-server"), "--engines has no 'vllm-server'"),
        (
            ("--contexts", "512,x"),
            "--contexts takes numbers from 1 to 16,777,216 such as 512, 4k or 1M, or 1k..128k, not 'x'",
        ),
        (("--batches", "0"), "--batches takes numbers from 1"),
        (("--budgets", "0.3,1.5"), "--budgets is numbers above 0 and at most 1"),
        (("--rates", "nan"), "--rates is numbers above 0"),
        (("--rounds", "0"), "--rounds is 1 or more"),
        (("--requests", "0"), "--requests is 1 or more"),
        (("--slo-ttft", "nan"), "--slo-ttft and --slo-tpot are seconds above 0"),
        (("--device-memory", "much"), "--device-memory is a size such as 512MiB or 2GB, not 'much'"),
    ],
)
def test_refusals_are_one_line(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadRequest) as refused:
        Performance(options(*arguments))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("512MiB", 512 << 20),
        ("2GB", 2_000_000_000),
        ("1.5 kib", 1536),
        ("7", 7),
        ("0", None),
        ("-1", None),
        ("2XB", None),
    ],
)
def test_sizes_are_read_as_they_are_written(text: str, size_bytes: int | None) -> None:
    assert parsed(text) == size_bytes


def test_the_command_goes_on_where_it_was_interrupted(
    model: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(Performance, "model", model)
    measure, count = Performance.measure, 0

    def interrupted(self: Performance, cell: Any) -> Rows:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return measure(self, cell)

    monkeypatch.setattr(Performance, "measure", interrupted)
    there = str(tmp_path / "there")
    command = ["performance", *SMALL, "--engines", "vllm,infinigen", "--contexts", "24"]
    assert study.main([*command, "--out", there]) == study.INTERRUPTED
    assert study.main(["performance", "--resume", there]) == 0
    out = capsys.readouterr().out
    assert "TPOT ms" in out
    assert "modelled link" in out
    assert count == 5
    kept = json.loads((tmp_path / "there/record.json").read_text())
    assert [(one["cell"]["round"], one["cell"]["engine"]) for one in kept["measured"]] == [
        (1, "vllm"),
        (1, "infinigen"),
        (2, "vllm"),
        (2, "infinigen"),
    ]
    assert kept["link_modelled"] is True
    assert {file.name for file in (tmp_path / "there").glob("*.svg")} == {"tpot.svg", "ttft.svg", "device-peak.svg"}
    with (tmp_path / "there/results.csv").open() as file:
        assert [line["rounds"] for line in csv.DictReader(file)] == ["2", "2"]
