"""The script for GPU machines, as far as it goes without one."""

from __future__ import annotations

import importlib.util
import math
import warnings

import pytest
import torch

from benchmarks import gpu_check, gpu_decode, gpu_engines
from benchmarks.gpu_engines import Decoded
from benchmarks.gpu_table import Row
from engines import importance, kernels
from engines.graphs import Graphs
from tests.recorder import Recorder
from tests.tiny import tiny

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is made for Linux only")


def test_without_a_gpu_one_line_and_status_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu_check"])
    assert gpu_check.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "no CUDA device" in err


CASES = [(9, 70, 4, 2, 16, torch.float32), (1, 33, 2, 1, 80, torch.bfloat16)]


def test_of_each_kind_the_worst_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "device", lambda: torch.device("cpu"))
    found = gpu_check.right(CASES)
    assert [row.what.partition(":")[0] for row in found] == [
        "attention",
        "log-sum-exp",
        "mass, every 1",
        "mass, every 8",
    ]
    assert not any(row.off for row in found), list(map(str, found))


@pytest.mark.parametrize(
    "fault", [lambda mass: mass * 1.01, lambda mass: mass.roll(1, 1), lambda mass: mass * math.nan]
)
def test_a_wrong_mass_is_off(monkeypatch: pytest.MonkeyPatch, fault) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(gpu_check, "device", lambda: torch.device("cpu"))
    right = importance.column_mass
    monkeypatch.setattr(importance, "column_mass", lambda *given: fault(right(*given)))
    attention, lse, exact, sampled = gpu_check.right(CASES)
    assert [row.off for row in (attention, lse, exact, sampled)] == [False, False, True, True]
    assert "OFF" in str(exact)


def test_limits_hold_in_their_direction() -> None:
    assert not Row("x", 1.0, limit=1.0).off
    assert Row("x", 1.1, limit=1.0).off
    assert Row("x", 0.0, limit=1, at_least=True).off
    assert Row("x", math.nan, limit=1.0).off
    assert not Row("for information", 1e9).off


DECODES = [((40, 1, 16), 4, 2, 16, 16, torch.float32), ((9,), 3, 1, 24, 9, torch.bfloat16)]


@needs_triton
@pytest.mark.parametrize("case", DECODES)
def test_right_decodes_are_right(monkeypatch: pytest.MonkeyPatch, case) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(gpu_decode, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(kernels, "use_native", False)
    found = gpu_decode.errors(*case)
    assert [row.what.partition(":")[0] for row in found] == ["decode", "decode in Triton", "decode's mass"]
    assert not any(row.off for row in found), list(map(str, found))


@needs_triton
@pytest.mark.parametrize("fault", [lambda out: out * 1.05, lambda out: out * math.nan])
def test_a_wrong_decode_is_off(monkeypatch: pytest.MonkeyPatch, fault) -> None:  # type: ignore[no-untyped-def]
    """Also where only one sequence of several is wrong, and not the last."""
    monkeypatch.setattr(gpu_decode, "device", lambda: torch.device("cpu"))
    right = kernels.decode_attention

    def wrong(*given):  # type: ignore[no-untyped-def]
        out = right(*given)
        out[0] = fault(out[0])
        return out

    monkeypatch.setattr(kernels, "decode_attention", wrong)
    used, ours, mass = gpu_decode.errors(*DECODES[0])
    assert [row.off for row in (used, ours, mass)] == [True, False, False]


def figures(tpot_s: float, busy_s: float = 1.0, hidden_s: float = 0.9) -> Decoded:
    return Decoded(tpot_s, 10**9, busy_s, hidden_s)


@pytest.mark.parametrize(
    ("slow", "off"),
    [
        ({}, []),
        ({"vllm": figures(6.1e-3)}, ["vllm: share"]),
        ({"h2o": figures(5.1e-3)}, ["h2o at"]),
        ({"infinigen+": figures(10.1e-3)}, ["infinigen+: time"]),
        ({"infinigen+": figures(6e-3, hidden_s=0.7)}, ["infinigen+: share"]),
        ({"infinigen+": figures(6e-3, busy_s=0.0)}, ["infinigen+: share"]),
    ],
)
def test_targets(slow: dict[str, Decoded], off: list[str]) -> None:
    """At a floor of 3.3 ms, 5 ms a token are two thirds of the bandwidth."""
    found = {
        "vllm": figures(5e-3),
        "h2o": figures(4e-3),
        "infinigen+": figures(9.9e-3),
        "infinigen": figures(50e-3),
    }
    missed = [row.what for row in gpu_engines.targets(found | slow, 3.3e-3) if row.off]
    assert len(missed) == len(off)
    assert all(what.startswith(begins) for what, begins in zip(missed, off, strict=True))


@pytest.mark.parametrize("id", list(gpu_engines.WAYS))
def test_an_engine_is_timed_and_its_steps_compared(monkeypatch: pytest.MonkeyPatch, id: str) -> None:
    monkeypatch.setattr(kernels, "use_native", False)
    monkeypatch.setattr(kernels, "_on_host", lambda lengths: False)
    model, _ = tiny("llama")
    engine = gpu_engines.build(id, model)
    engine.graphs = Graphs(Recorder(), engine.clock)
    ids = gpu_engines.prompt(model)[-300:]
    found = gpu_engines.decoded(engine, ids, 8)
    assert 0 < found.tpot_s < 10
    assert (found.h2d_bytes > 0) == id.startswith("infinigen")
    peak = engine.device_pool.peak_bytes
    assert peak <= gpu_engines.expected_peak_bytes(engine)
    if id.startswith("infinigen"):
        assert engine.cache.placed is None
        return
    arena = engine.cache.arena(0)
    assert gpu_engines.expected_peak_bytes(engine) >= model.weights_bytes + arena.blocks * arena.block_bytes
    assert gpu_engines.replayed(engine) <= 1e-5
    copied = Graphs.decode
    monkeypatch.setattr(Graphs, "decode", lambda *given: copied(*given) * 1.1)
    assert gpu_engines.replayed(engine) > gpu_engines.GRAPH_ERROR


def test_what_a_token_reads() -> None:
    """Of Llama 2 7B's 13.5 GB all but the embedding, and half a megabyte for each token before it."""
    model, _ = tiny("llama")
    apart, tied = (gpu_engines.read_bytes(tiny(family)[0], 10) for family in ("llama", "smollm2"))
    assert apart == tied == model.weights_bytes - model.decoder.embedding.nbytes + 10 * model.kv_bytes_per_token


def test_a_part_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_check", "--only", "decode,link"])
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == 2
    assert "no part 'link': choose from prefill, decode, engines" in capsys.readouterr().err


def test_a_path_that_falls_back_is_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*given):  # type: ignore[no-untyped-def]
        warnings.warn("decoding goes without Triton, more slowly: no compiler", stacklevel=2)
        yield Row("fine", 1.0, limit=1.0)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(gpu_check, "rows", rows)
    monkeypatch.setattr("sys.argv", ["gpu_check"])
    assert gpu_check.main() == 1
    out = capsys.readouterr().out
    assert "OFF: decoding goes without Triton" in out
    assert out.endswith("1 off\n")
