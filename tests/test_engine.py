"""The engine as a library: what it refuses, and that nothing half-done stays behind."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import engines
from engines.errors import BadRequest, DeviceOutOfMemory
from engines.events import KvState
from engines.memory import Pool
from engines.sampling import sample
from engines.sequence import Sampling, Sequence
from tests.tiny import prompt, tiny

IDS = ["vllm", "h2o", "infinigen"]


@pytest.mark.parametrize("engine_id", IDS)
@pytest.mark.parametrize(
    "knobs",
    [
        {"temperature": math.nan},
        {"temperature": -1.0},
        {"temperature": 1e-45},
        {"temperature": 1.0, "top_p": 0.0},
        {"top_p": 2.0},
        {"top_p": math.nan},
        {"seed": 2**70},
        {"seed": -1},
        {"max_new_tokens": 2.5},
        {"max_new_tokens": -1},
    ],
)
def test_knobs_out_of_range_are_refused_and_leave_the_engine_usable(engine_id: str, knobs: dict) -> None:
    engine = engines.create_engine(engine_id, tiny("llama")[0])
    with pytest.raises(BadRequest):
        engine.generate(prompt(20), **{"max_new_tokens": 2, **knobs})
    assert len(engine.generate(prompt(20), 2, ignore_eos=True).tokens) == 2


@pytest.mark.parametrize("engine_id", IDS)
def test_ids_outside_the_vocabulary_are_refused_everywhere(engine_id: str) -> None:
    engine = engines.create_engine(engine_id, tiny("llama")[0])
    with pytest.raises(BadRequest, match="no conversation"):
        engine.continue_logits([1])
    engine.generate(prompt(20), 1, ignore_eos=True)
    for ids in ([], [-1], [97], [5, -98]):
        with pytest.raises(BadRequest):
            engine.generate(ids, 1)
        with pytest.raises(BadRequest):
            engine.continue_logits(ids)
    assert engine.continue_logits([1]).shape == (97,)


@pytest.mark.parametrize("engine_id", IDS)
@pytest.mark.parametrize("layer", [-1, 3, "x", None])
def test_layers_that_are_not_there_are_refused(engine_id: str, layer: object) -> None:
    engine = engines.create_engine(engine_id, tiny("llama")[0])
    engine.generate(prompt(20), 1, ignore_eos=True)
    with pytest.raises(BadRequest, match=r"0 \.\. 2"):
        engine.kept_positions(layer)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine_id", IDS)
def test_a_fault_in_the_middle_leaves_nothing_behind(engine_id: str, monkeypatch) -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine(engine_id, model)
    at_rest = engine.memory().device_bytes
    expected = engines.create_engine(engine_id, model).generate(prompt(60), 3, ignore_eos=True).tokens
    with monkeypatch.context() as patch:
        patch.setattr("engines.engine.sample", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.generate(prompt(60), 3)
    assert not engine.has_work
    assert engine.memory().device_bytes == at_rest
    assert engine.memory().host_bytes == {}
    assert engine.generate(prompt(60), 3, ignore_eos=True).tokens == expected


def test_a_prompt_longer_than_the_context_says_by_how_much() -> None:
    engine = engines.create_engine("vllm", tiny("llama")[0])
    with pytest.raises(BadRequest, match=r"1,030 tokens: 6 more than the context of 1,024"):
        engine.generate(prompt(1030), 1)
    assert engine.generate(prompt(1024), 5).tokens == []


def test_sampling_is_reproducible_by_seed() -> None:
    engine = engines.create_engine("vllm", tiny("llama")[0])

    def sampled(seed: int) -> list[int]:
        return engine.generate(prompt(20), 12, temperature=1.0, top_p=0.9, seed=seed, ignore_eos=True).tokens

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_an_allocation_that_fails_is_not_charged(monkeypatch) -> None:
    pool = Pool("device")
    pool.charge("weights", 100)

    def full(*_args, **_kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(DeviceOutOfMemory, match="scores"):
        pool.tensor("scores", (10,), torch.float32, "cpu")
    assert pool.bytes_by_kind == {"weights": 100, "scores": 0}


@pytest.mark.parametrize("engine_id", IDS)
def test_the_heads_of_a_layer_agree_with_the_picture_of_all(engine_id: str) -> None:
    model = tiny("llama")[0]
    engine = engines.create_engine(engine_id, model, budget=0.4)
    engine.submit(0, prompt(120), 8, ignore_eos=True)
    while engine.has_work:
        engine.advance(observe=True)
    view = engine.view(0)
    assert view is not None
    for layer in range(model.layers):
        heads = engine.heads(0, layer)
        assert heads is not None
        assert heads.states.shape == heads.mass.shape == (model.kv_heads, view.tokens)
        on_device = np.isin(heads.states, [KvState.DEVICE, KvState.FETCHED]).mean(0)
        np.testing.assert_array_equal(np.rint(on_device * 31), view.cells[layer] >> 3)
        np.testing.assert_allclose(heads.mass.sum(0), view.mass[layer], atol=1e-5)
        assert heads.mass.sum() == pytest.approx(1, abs=1e-4)
        if engine_id != "infinigen":
            for head, kept in enumerate(engine.kept_positions(layer)):
                assert np.flatnonzero(heads.states[head] == KvState.DEVICE).tolist() == kept.tolist()


def test_of_a_batch_some_are_greedy_and_some_are_not() -> None:
    """Each gets what it gets alone, and log-probabilities are the model's own."""
    torch.manual_seed(0)
    logits = torch.randn(3, 50)
    kinds = [Sampling(), Sampling(1.0, 0.8, 3), Sampling(2.0, 1.0, 4)]

    def sequences() -> list[Sequence]:
        found = [Sequence(0, [1], 1, 1, kind) for kind in kinds]
        for one in found:
            one.generator = torch.Generator().manual_seed(one.sampling.seed)
        return found

    together = sample(logits, sequences())
    assert together == [sample(row.unsqueeze(0), [one])[0] for row, one in zip(logits, sequences(), strict=True)]
    for row, (token, logprob) in zip(logits, together, strict=True):
        assert logprob == pytest.approx(row.log_softmax(0)[token].item(), abs=1e-5)
    assert together[0][0] == logits[0].argmax()
    assert sample(logits, sequences()[:1] * 3)[0] == together[0]
