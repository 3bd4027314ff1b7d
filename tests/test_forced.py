"""Scoring an answer that is given: exactly what generation would have said of it, token by token."""

from __future__ import annotations

import pytest
import torch

import engines
from engines.errors import BadRequest
from engines.sequence import Forced
from tests.tiny import prompt, tiny

KNOBS = {"budget": 0.3, "prefix_sharing": False}
IDS = ["vllm", "h2o", "h2o+", "infinigen", "infinigen+", "hybrid"]
NEW = 40


@pytest.fixture(scope="module")
def models():
    return tiny("llama")


@pytest.mark.parametrize("engine_id", IDS)
def test_what_greedy_generation_gave_scores_as_it_was_generated(engine_id: str, models) -> None:
    engine = engines.create_engine(engine_id, models[0], **KNOBS)
    said = engine.generate(prompt(200), NEW, ignore_eos=True)
    forced = Forced(said.tokens)
    scored = engine.generate(prompt(200), 0, forced=forced)
    assert scored.outcome == "ok"
    assert scored.tokens == forced.greedy == said.tokens
    assert scored.logprobs == said.logprobs
    assert forced.last is not None
    assert float(forced.last.log_softmax(-1).max()) == pytest.approx(said.logprobs[-1], abs=1e-5)


@pytest.mark.parametrize("engine_id", IDS)
def test_another_token_is_told_from_the_greedy_one_and_changes_what_comes_after(engine_id: str, models) -> None:
    engine = engines.create_engine(engine_id, models[0], **KNOBS)
    said = engine.generate(prompt(200), NEW, ignore_eos=True)
    other = (said.tokens[5] + 1) % 97
    forced = Forced([*said.tokens[:5], other, *said.tokens[6:]])
    scored = engine.generate(prompt(200), 0, forced=forced)
    assert forced.greedy[:6] == said.tokens[:6]
    assert scored.logprobs[:5] == said.logprobs[:5]
    assert scored.logprobs[5] < said.logprobs[5]
    assert scored.logprobs[6:] != said.logprobs[6:]


@pytest.mark.parametrize("engine_id", ["vllm", "h2o", "infinigen", "infinigen+"])
def test_a_full_budget_scores_as_transformers_does(engine_id: str, models) -> None:
    """InfiniGen's selection takes all that lies within `alpha`: here, everything."""
    model, theirs = models
    ids, answer = prompt(60), prompt(20, seed=1)
    with torch.inference_mode():
        logprobs = theirs(torch.tensor([ids + answer])).logits[0].log_softmax(-1)
    rows = logprobs[len(ids) - 1 : -1]
    engine = engines.create_engine(engine_id, model, budget=1.0, alpha=float("inf"))
    forced = Forced(answer, of_prompt=True)
    scored = engine.generate(ids, 0, forced=forced)
    torch.testing.assert_close(
        torch.tensor(scored.logprobs), rows[torch.arange(20), torch.tensor(answer)], atol=1e-3, rtol=0
    )
    assert forced.greedy == rows.argmax(-1).tolist()
    expected = logprobs[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    torch.testing.assert_close(torch.tensor(forced.prompt), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("engine_id", ["vllm", "h2o+"])
def test_a_prompt_read_in_pieces_or_already_there_is_scored_whole(engine_id: str, models) -> None:
    model, theirs = models
    ids = prompt(150)
    with torch.inference_mode():
        logprobs = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logprobs[torch.arange(149), torch.tensor(ids[1:])]
    engine = engines.create_engine(engine_id, model, budget=1.0, chunk_tokens=64)
    engine.generate(ids, 0)
    forced = Forced([1], of_prompt=True)
    engine.generate(ids, 0, forced=forced)
    torch.testing.assert_close(torch.tensor(forced.prompt), expected, atol=1e-3, rtol=0)


def test_end_marks_do_not_end_a_forced_answer(models) -> None:
    engine = engines.create_engine("vllm", models[0])
    said = engine.generate(prompt(20), 6).tokens
    model, _ = tiny("llama")
    model.eos_ids = {said[2]}
    engine = engines.create_engine("vllm", model)
    assert len(engine.generate(prompt(20), 6).tokens) == 3
    assert engine.generate(prompt(20), 0, forced=Forced(said)).tokens == said


@pytest.mark.parametrize("engine_id", ["vllm", "hybrid"])
def test_the_last_token_may_lie_just_beyond_the_context(engine_id: str, models) -> None:
    engine = engines.create_engine(engine_id, models[0])
    scored = engine.generate(prompt(1020), 0, forced=Forced(prompt(5, seed=1)))
    assert (scored.outcome, len(scored.logprobs)) == ("ok", 5)
    with pytest.raises(BadRequest, match="6 tokens, and the context has room for 4"):
        engine.generate(prompt(1020), 0, forced=Forced(prompt(6)))
    for nonsense in ([], [97], [-1]):
        with pytest.raises(BadRequest):
            engine.generate(prompt(20), 0, forced=Forced(nonsense))
    assert len(engine.generate(prompt(20), 2, ignore_eos=True).tokens) == 2
