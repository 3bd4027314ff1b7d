"""The forward pass against transformers': every family, one-shot and chunked."""

from __future__ import annotations

import pytest
import torch

import engines
from engines.errors import ModelUnavailable
from engines.parameters import context_limit
from engines.shape import read_shape
from tests.tiny import CONFIGS, prompt, tiny


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("chunk_tokens", [4096, 37])
def test_logits_equal_transformers(family: str, chunk_tokens: int) -> None:
    model, theirs = tiny(family)
    ids, more = prompt(150), prompt(20, seed=1)
    engine = engines.create_engine("vllm", model, chunk_tokens=chunk_tokens)
    result = engine.generate(ids, 1)
    ours = engine.continue_logits(more)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids + more])).logits[0]
    assert (ours - expected[-1]).abs().max() < 1e-3
    assert result.tokens == [int(expected[len(ids) - 1].argmax())]


@pytest.mark.parametrize("family", CONFIGS)
def test_greedy_tokens_equal_transformers(family: str) -> None:
    model, theirs = tiny(family)
    ids = prompt(40)
    result = engines.create_engine("vllm", model).generate(ids, 24, ignore_eos=True)
    running = list(ids)
    with torch.no_grad():
        for _ in range(24):
            running.append(int(theirs(torch.tensor([running])).logits[0, -1].argmax()))
    assert result.tokens == running[len(ids) :]


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_other_families_are_refused_with_the_list(family: str) -> None:
    with pytest.raises(ModelUnavailable, match=rf"{family}.*llama.*mistral.*qwen2.*qwen3.*opt"):
        read_shape({"model_type": family})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_variants_that_are_not_built_are_refused(change: dict, words: str) -> None:
    with pytest.raises(ModelUnavailable, match=words):
        read_shape({**CONFIGS["llama"], **change})


def test_a_sliding_window_bounds_the_context() -> None:
    assert context_limit({"model_type": "mistral", "max_position_embeddings": 32768, "sliding_window": 4096}) == 4096
    qwen = {"model_type": "qwen2", "max_position_embeddings": 32768, "sliding_window": 4096}
    assert context_limit({**qwen, "use_sliding_window": False}) == 32768
