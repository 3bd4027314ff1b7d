"""Recorded decode steps are the steps themselves: with a recorder of CPU operators in the place of CUDA's graphs."""

from __future__ import annotations

import pytest
import torch

import engines
from engines import events, graphs, kernels
from engines.engine import Engine
from engines.graphs import Graphs, open_graphs
from tests.recorder import Recorder
from tests.tiny import prompt, tiny


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's paths, and lengths that are not read."""
    monkeypatch.setattr(kernels, "use_native", False)
    monkeypatch.setattr(kernels, "_on_host", lambda lengths: False)
    monkeypatch.setattr(graphs, "WIDTH_BLOCKS", 4)


def pair(id: str, family: str = "llama", **knobs: object) -> tuple[Engine, Engine, Recorder]:
    """One engine with graphs and one without, and what records."""
    model, _ = tiny(family)
    with_graphs, without = (engines.create_engine(id, model, **knobs) for _ in range(2))  # type: ignore[arg-type]
    assert isinstance(with_graphs, Engine)
    assert isinstance(without, Engine)
    assert with_graphs.graphs is None  # on a CPU
    recorder = Recorder()
    with_graphs.graphs = Graphs(recorder, with_graphs.clock)
    return with_graphs, without, recorder


def run(engine: Engine, lengths: list[int], new_tokens: int, *, observe: bool = False) -> list[tuple[int, int, float]]:
    """(request, token, log-probability) of all."""
    for request, length in enumerate(lengths):
        engine.submit(request, prompt(length, seed=request), new_tokens, ignore_eos=True)
    found = []
    while engine.has_work:
        for event in engine.advance(observe=observe):
            if isinstance(event, events.Token):
                found.append((event.request, event.token_id, round(event.logprob, 4)))
            elif isinstance(event, events.Outcome):
                assert event.outcome == "ok", event.detail
    return found


@pytest.mark.parametrize(
    ("id", "knobs"),
    [
        ("vllm", {}),
        ("h2o", {"budget": 0.5}),
        ("h2o", {"budget": 1.0}),
        ("h2o+", {"budget": 0.5, "chunk_tokens": 40}),
    ],
)
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_replayed_steps_equal_eager_ones(id: str, knobs: dict[str, object], family: str) -> None:
    """Over the border of a bucket, and twice: what a request left in the tensors is nothing to the next."""
    with_graphs, without, recorder = pair(id, family, **knobs)
    for lengths in ([60], [90]):
        assert run(with_graphs, lengths, 8) == run(without, lengths, 8)
        for layer in range(with_graphs.model.layers):
            assert torch.equal(with_graphs.kept_positions(layer), without.kept_positions(layer))
    assert recorder.replayed == 14  # the first token of each is the prefill's


def test_a_batch_of_ragged_lengths_is_one_recording() -> None:
    with_graphs, without, recorder = pair("vllm")
    assert run(with_graphs, [3, 20, 40], 6) == run(without, [3, 20, 40], 6)
    assert recorder.recorded == 1
    assert recorder.replayed == 5


def test_one_recording_a_batch_size_and_bucket() -> None:
    """Tables of up to 4 blocks share one, those of 5 to 8 the next."""
    with_graphs, _, recorder = pair("vllm")
    run(with_graphs, [10], 40)  # 10 to 49 entries: one bucket
    assert (recorder.recorded, len(with_graphs.graphs or ())) == (1, 1)
    run(with_graphs, [60], 8)  # 61 to 67: over the border
    assert recorder.recorded == 2
    run(with_graphs, [30], 4)
    assert recorder.recorded == 2
    run(with_graphs, [5, 5], 4)
    assert recorder.recorded == 3


def test_the_oldest_recording_goes_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST", 2)
    with_graphs, without, recorder = pair("vllm")
    for lengths in ([10], [70], [130], [12]):
        assert run(with_graphs, lengths, 3) == run(without, lengths, 3)
    assert recorder.recorded == 4
    assert len(with_graphs.graphs or ()) == 2


def test_a_reset_forgets_recordings() -> None:
    with_graphs, without, recorder = pair("vllm")
    run(with_graphs, [10], 3)
    with_graphs.reset()
    assert recorder.forgotten == 1
    assert len(with_graphs.graphs or ()) == 0
    assert run(with_graphs, [20], 3) == run(without, [20], 3)
    assert recorder.recorded == 2


def test_observed_steps_are_replayed_and_watched() -> None:
    with_graphs, without, recorder = pair("vllm")
    assert run(with_graphs, [20], 5, observe=True) == run(without, [20], 5, observe=True)
    assert recorder.replayed == 4
    for engine in (with_graphs, without):
        engine.view(0)
    ours, theirs = with_graphs.view(0), without.view(0)
    assert ours is not None
    assert theirs is not None
    assert ours.mass.sum() > 0
    torch.testing.assert_close(torch.tensor(ours.mass), torch.tensor(theirs.mass), rtol=1e-5, atol=1e-6)


def test_prefill_and_looks_are_not_recorded() -> None:
    with_graphs, without, recorder = pair("vllm")
    for engine in (with_graphs, without):
        run(engine, [20], 1)
    assert recorder.recorded == 0
    assert torch.equal(with_graphs.continue_logits([5]), without.continue_logits([5]))
    assert recorder.recorded == 0


def test_infinigen_is_eager() -> None:
    with_graphs, without, recorder = pair("infinigen+")
    assert run(with_graphs, [30], 4) == run(without, [30], 4)
    assert recorder.recorded == 0


def test_what_cannot_be_recorded_is_told_of_once_and_all_goes_on() -> None:
    with_graphs, without, _ = pair("h2o", budget=0.5)
    with_graphs.graphs = Graphs(Recorder(RuntimeError("operation not permitted")), with_graphs.clock)
    with pytest.warns(UserWarning, match="without CUDA graphs, more slowly: operation not permitted") as seen:
        found = run(with_graphs, [40], 6)
    assert found == run(without, [40], 6)
    assert len(seen) == 1


def test_a_step_that_reads_a_value_is_refused_by_the_recorder() -> None:
    with pytest.raises(RuntimeError, match="the host would have to wait"):
        Recorder().record(lambda: torch.ones(1) * torch.ones(1).item())


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("vllm", model)
    device = torch.device("cuda")
    monkeypatch.setattr(graphs, "CudaBackend", lambda device: Recorder())
    assert open_graphs(device, engine.clock, wanted=True) is not None
    assert open_graphs(device, engine.clock, wanted=False) is None
    assert open_graphs(torch.device("cpu"), engine.clock, wanted=True) is None
    monkeypatch.setenv("KVTUI_GRAPHS", "0")
    assert open_graphs(device, engine.clock, wanted=True) is None
