"""Plans: seconds worked out by hand, what must rise when, the paper's claims as the arithmetic has them, refusals."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from engines import link as engines_link
from engines.errors import BadRequest
from engines.machines import gpu, gpus, links
from probes import study
from probes.plan import calibration
from probes.plan.footprint import Request, footprint
from probes.plan.forecast import RESERVED_BYTES, Planner, cells
from probes.plan.here import settled
from probes.plan.planned_model import of_config, planned_model
from probes.plan.rates import Link, Rates, link_of, of_gpu
from probes.plan.roofline import decode_s, prefill_s, times
from probes.studies.lists import counts, size
from probes.studies.plan import Plan
from tests.test_imports import modules_after

MODEL = planned_model("llama-2-7b")
FREE = dict.fromkeys(("vllm", "h2o", "infinigen"), 0.0)
# A round machine: a byte a nanosecond, nothing but bytes.
ROUND = Rates(1e9, 1e9, 1e9, 1e18, 1e18, 1e30, 1e30, 1e30, FREE, FREE, FREE)
TOY = of_config(
    "toy",
    {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    2,
)
LAYER_BYTES = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128 + 2 * 64)
HEAD_BYTES, KV_BYTES = 2 * 64_000, 2 * 2 * 16 * 2  # of a token in a layer


def planner(name: str = "a100-80g", link: str = "pcie4", new_tokens: int = 512) -> Planner:
    on = gpu(name)
    usable = on.memory_bytes - RESERVED_BYTES
    return Planner(MODEL, on, of_gpu(on), link_of(link), usable, None, 0.3, new_tokens)


def row(plan: Planner, engine: str, prefill: str, context: int, batch: int = 1) -> dict:
    return plan.row({"engine": engine, "prefill": prefill, "context": context, "batch": batch})


def test_a_paged_step_is_its_bytes() -> None:
    """Weights once for all sequences, the KV of each and the token that it adds."""
    request = Request("vllm", 100, 10, batch=3)
    expected = 4 * (LAYER_BYTES + 3 * 101 * KV_BYTES) + HEAD_BYTES
    assert decode_s(TOY, request, ROUND, Link(1.0, 0.0), 100) == pytest.approx(expected * 1e-9)


def test_h2o_reads_the_slots_that_it_keeps_however_long_the_answer() -> None:
    request = Request("h2o", 160, 10, budget=0.3)  # three blocks
    expected = 4 * (LAYER_BYTES + 48 * KV_BYTES) + HEAD_BYTES
    for context in (160, 1000):
        assert decode_s(TOY, request, ROUND, Link(1.0, 0.0), context) == pytest.approx(expected * 1e-9, rel=1e-6)


def test_transfers_of_infinigen_queue_up_on_the_link() -> None:
    """A link so slow that nothing else counts: all of the first layer, a budget of the others, one after the other."""
    request, link = Request("infinigen", 100, 10, batch=2, budget=0.25), Link(1e3, 0.5)
    expected = 2 * (4 * 0.5 + (100 + 3 * 25) * KV_BYTES / 1e3)
    assert decode_s(TOY, request, ROUND, link, 100) == pytest.approx(expected, rel=1e-3)
    moved = times(TOY, replace(request, context=95), ROUND, link).h2d_bytes
    assert moved == pytest.approx(2 * (100 + 3 * 25) * KV_BYTES)


def test_what_computing_covers_of_a_transfer_costs_nothing() -> None:
    """A layer's transfer that takes half of what a layer computes is hidden, but for the first layer's."""
    slow = replace(ROUND, layer_s={**FREE, "infinigen": 1.0})
    request = Request("infinigen", 100, 10, budget=0.25)
    link = Link(25 * KV_BYTES / 0.5, 0.0)
    assert decode_s(TOY, request, slow, link, 100) == pytest.approx(4 + (100 / 25 * 0.5 - 1), rel=1e-3)


def test_prefill_by_operations() -> None:
    """Two operations a parameter and row, four a head dimension and pair of positions, half of them in the past."""
    flops = replace(ROUND, linear_flops=1e6, attention_flops=1e6, weights_bytes_per_s=1e18, kv_bytes_per_s=1e18)
    linear = 2 * (4 * 100 * LAYER_BYTES / 2 + HEAD_BYTES / 2)
    attention = 4 * 4 * 64 * 100 * 101 / 2
    link = Link(1e18, 0.0)
    flash = prefill_s(TOY, Request("infinigen", 100, 10), flops, link)
    assert flash == pytest.approx((linear + attention) / 1e6)
    scored = prefill_s(TOY, Request("h2o", 100, 10), flops, link)
    assert scored == pytest.approx((linear + 1.5 * attention) / 1e6)
    assert prefill_s(TOY, Request("infinigen", 100, 10, batch=2), flops, link) == pytest.approx(2 * flash)


@pytest.mark.parametrize(("engine", "prefill"), [("vllm", "flash"), ("h2o", "eager"), ("infinigen", "published")])
def test_more_takes_more(engine: str, prefill: str) -> None:
    rates, link = of_gpu(gpu("a100-80g")), link_of("pcie4")
    request = Request(engine, 1000, 100, 2, 0.3, prefill)
    least, first = footprint(MODEL, request).device_bytes, times(MODEL, request, rates, link)
    for more in ({"context": 4000}, {"batch": 5}, {"budget": 0.6}):
        other = replace(request, **more)
        takes, then = footprint(MODEL, other).device_bytes, times(MODEL, other, rates, link)
        assert takes >= least, more
        assert then.tpot_s >= first.tpot_s, more
        assert then.ttft_s >= first.ttft_s, more
    faster = times(MODEL, request, rates, link_of("pcie4*7"))
    assert faster.tpot_s <= first.tpot_s


def test_the_parts_are_the_step() -> None:
    at = times(MODEL, Request("infinigen", 4096, 512, 4), of_gpu(gpu("a100-80g")), link_of("pcie4"))
    assert sum(at.parts.values()) == pytest.approx(at.tpot_s)
    assert at.bound == "link"


def test_eager_prefill_ends_near_10k_tokens_and_flash_goes_on() -> None:
    """arXiv 2604.05012. The published code on 40 GB by itself, or on 80 GB with four prompts together."""
    one = planner("a100-40g")
    assert 9_000 < row(one, "h2o", "published", 4096)["most_tokens"] < 11_000
    assert 12_000 < row(one, "infinigen", "published", 4096)["most_tokens"] < 16_000
    four = planner()
    assert 7_000 < row(four, "h2o", "published", 4096, 4)["most_tokens"] < 9_000
    assert 10_000 < row(four, "infinigen", "published", 4096, 4)["most_tokens"] < 12_000
    assert row(four, "h2o", "flash", 4096, 4)["most_tokens"] > 90_000
    assert row(four, "infinigen", "flash", 4096, 4)["most_tokens"] > 130_000


def test_where_memory_ends_is_where_it_ends() -> None:
    plan = planner()
    request = plan.request({"engine": "h2o", "prefill": "eager", "context": 1, "batch": 2})
    most = plan.most_tokens(request)
    assert plan.fits(replace(request, context=most))
    assert not plan.fits(replace(request, context=most + 1))


def test_h2o_saves_what_its_budget_leaves_out() -> None:
    plan = planner(new_tokens=16)
    paged, h2o = row(plan, "vllm", "flash", 32_768), row(plan, "h2o", "flash", 32_768)
    assert 1 - h2o["kv_bytes"] / paged["kv_bytes"] == pytest.approx(0.7, abs=0.005)


def test_infinigen_falls_behind_up_to_17_times_and_a_faster_link_closes_most_of_it() -> None:
    """Four long generations that fill an A100. Were there only KV to move: (1 + 31 · 0.3) / 32 of it over 25 GB/s,
    against all of it at 0.8 · 2,039 GB/s, would be 21 times."""
    gap = row(planner(new_tokens=4096), "infinigen", "flash", 28_672, 4)
    assert 15 < gap["slowdown"] < 18
    assert gap["bound"] == "link"
    assert row(planner(new_tokens=4096), "infinigen", "flash", 1024, 1)["slowdown"] < 4
    assert row(planner(link="pcie4*7", new_tokens=4096), "infinigen", "flash", 28_672, 4)["slowdown"] < 3


def test_what_does_not_fit_has_no_times() -> None:
    found = row(planner(), "vllm", "flash", 1 << 20)
    assert (found["fits"], found["tpot_s"], found["bound"], found["beyond_model"]) == (False, None, None, True)
    assert found["modelled"] is True


def test_every_machine_has_a_source_and_plausible_figures() -> None:
    for known in gpus().values():
        assert "NVIDIA" in known.source
        assert 20e9 < known.memory_bytes < 200e9
        assert known.bytes_per_s < known.float32_flops < known.flops
    assert {name: profile.link_bytes_per_s for name, profile in engines_link.PROFILES.items()} == {
        name: link.bytes_per_s for name, link in links().items()
    }


def test_ranges() -> None:
    assert counts("--context", "1k..8k") == [1024, 2048, 4096, 8192]
    assert counts("--context", "1k..3k,1M,512") == [1024, 2048, 3072, 1 << 20, 512]
    assert size("--device-memory", "24GiB") == 24 << 30
    assert size("--device-memory", "1.5GB") == 1_500_000_000
    assert link_of("pcie4*7").bytes_per_s == 175e9
    assert link_of("unscaled:10").bytes_per_s == 10e9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "b300"], "unknown GPU 'b300': known are a100-40g, a100-80g"),
        (["--model", "gpt-5"], "known are smollm2-135m"),
        (["--link", "usb"], "known are pcie3, pcie4"),
        (["--link", "pcie4*x"], "unknown link 'pcie4*x'"),
        (["--link", "pcie4*0"], "unknown link"),
        (["--context", "0"], "--context takes numbers from 1"),
        (["--context", "8k..1k"], "ends before it begins"),
        (["--context", "many"], "not 'many'"),
        (["--batch", "1..99999999999"], "--batch takes numbers"),
        (["--dtype", "int3"], "unknown dtype 'int3': choose from bfloat16"),
        (["--prefill", "lazy"], "--prefill has no 'lazy': choose from flash, eager"),
        (["--engines", "h2o", "--prefill", ""], "--prefill has no ''"),
        (["--engines", "infinigen", "--prefill", "chunked"], "none of infinigen has a prefill called chunked"),
        (["--budget", "0"], "--budget is a share"),
        (["--device-memory", "lots"], "--device-memory is a size such as 512MiB"),
        (["--new-tokens", "1,2"], "--new-tokens is one number"),
    ],
)
def test_refusals_are_one_line(arguments, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert study.main(["plan", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_config_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for content in ("", "[]", "{}", '{"model_type": "llama"}'):
        path.write_text(content)
        with pytest.raises(BadRequest, match=r"config\.json"):
            planned_model(str(path))


def test_the_study(capsys, tmp_path: Path) -> None:
    asked = ["plan", "--context", "4k,16k", "--batch", "4", "--out", str(tmp_path / "there"), "--json"]
    assert study.main(asked) == 0
    kept = json.loads(capsys.readouterr().out)
    assert kept["link_modelled"] is True
    assert len(kept["results"]) == 2 * (1 + 2 + 2)
    assert {row["modelled"] for row in kept["results"]} == {True}
    assert "h2o published 7,826" in kept["reading"]
    assert "itself ends at 4,096 tokens" in kept["reading"]
    assert sorted(path.name for path in (tmp_path / "there").glob("*.svg")) == ["memory.svg", "tpot.svg"]


def test_paged_is_always_there_to_compare_with() -> None:
    assert {cell["engine"] for cell in cells(["vllm", "h2o"], ["eager"], [1024], [1])} == {"vllm", "h2o"}


def test_planning_takes_no_torch() -> None:
    assert "torch" not in modules_after("import probes.studies.plan")


def test_what_is_odd_in_a_calibration_is_not_what_is_reported() -> None:
    assert settled([9.0, 1.0, 2.0, 1.5]) == 1.5
    ratios = (1.1, 1.2, 0.5)
    rows = [
        {
            "engine": "h2o",
            "context": 512,
            "predicted_tpot_s": ratio,
            "measured_tpot_s": 1.0,
            "ratio": ratio,
            "link_modelled": True,
        }
        for ratio in ratios
    ]
    (found,) = calibration.results(rows)
    assert found["error"] == pytest.approx(0.1)
    assert (found["least_ratio"], found["greatest_ratio"]) == (0.5, 1.2)
    assert "1 are within 25%" in calibration.reading([found])
    assert "0 are within 25%" in calibration.reading([{**found, "error": 0.26}])


@pytest.mark.slow
def test_here_the_prediction_has_the_right_size(tmp_path: Path) -> None:
    """Not a timed claim: a factor of three on a machine with other work."""
    options = study._parser(Plan).parse_args(["--gpu", "here", "--context", "256", "--rounds", "3"])
    here = Plan(argparse.Namespace(**vars(options)))
    results = here.results([row for cell in here.cells() for row in here.measure(cell)])
    assert [row["engine"] for row in results] == ["vllm", "h2o", "infinigen"]
    assert all(1 / 3 < row["ratio"] < 3 for row in results)
