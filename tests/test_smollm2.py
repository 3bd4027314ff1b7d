"""The engines on the default model, a real one: parity with transformers, and the figures that the papers promise."""

from __future__ import annotations

import math

import pytest
import torch

import engines
from engines.caches.infinigen import InfiniGenCache

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a lighthouse far from any harbour, there lived a keeper who could not sleep. " * 3,
]


@pytest.fixture(scope="module")
def reference(smollm2):
    """64 greedy tokens a prompt, by transformers in float32."""
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(smollm2.path, dtype=torch.float32).eval()
    answers = []
    with torch.inference_mode():
        for text in PROMPTS:
            ids = torch.tensor([smollm2.tokenizer.encode(text)])
            answer = theirs.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
            answers.append(answer[0, ids.shape[1] :].tolist())
    return answers


@pytest.mark.parametrize("chunk_tokens", [2048, 13])
def test_greedy_tokens_equal_transformers(smollm2, reference, chunk_tokens: int) -> None:
    engine = engines.create_engine("vllm", smollm2, chunk_tokens=chunk_tokens)
    for text, expected in zip(PROMPTS, reference, strict=True):
        assert engine.generate(smollm2.tokenizer.encode(text), 64).tokens == expected


@pytest.mark.parametrize(
    ("engine_id", "knobs"), [("h2o", {"budget": 1.0}), ("infinigen", {"budget": 1.0, "alpha": math.inf})]
)
def test_without_a_limit_the_others_give_the_paged_tokens(smollm2, reference, engine_id: str, knobs: dict) -> None:
    engine = engines.create_engine(engine_id, smollm2, **knobs)
    assert engine.generate(smollm2.tokenizer.encode(PROMPTS[2]), 64).tokens == reference[2]


def test_16_bit_engines_without_a_limit_agree(smollm2_bf16) -> None:
    ids = smollm2_bf16.tokenizer.encode(PROMPTS[2])
    paged = engines.create_engine("vllm", smollm2_bf16).generate(ids, 32).tokens
    assert engines.create_engine("h2o", smollm2_bf16, budget=1.0).generate(ids, 32).tokens == paged
    full = engines.create_engine("infinigen", smollm2_bf16, budget=1.0, alpha=math.inf)
    assert full.generate(ids, 32).tokens == paged


@pytest.mark.slow
def test_selected_keys_carry_most_of_the_true_attention_mass(smollm2_bf16, monkeypatch, prose) -> None:
    """At r = 0.2, averaged over layers 1 and up, KV heads and steps: at least 0.9 (InfiniGen, 4.3)."""
    model = smollm2_bf16
    covered: dict[int, list[float]] = {}
    original = InfiniGenCache._selected

    def spy(self, span, layer, q, k, v, x):
        host, slots = span.sequence.held.host, self._pending[span.sequence].slots
        own = self.to_storage(k).float()
        keys = torch.cat([host.keys[layer, :, : host.filled].float(), own], 1)
        grouped = q.float().view(model.kv_heads, -1, model.shape.head_dim)
        shares = torch.softmax(grouped @ keys.mT * model.shape.scale, -1).mean(1)
        picked = shares.gather(1, slots).sum(1) + shares[:, -1]
        covered.setdefault(layer, []).append(float(picked.mean()))
        if layer:
            assert slots.shape[1] <= 0.2 * host.filled
        return original(self, span, layer, q, k, v, x)

    monkeypatch.setattr(InfiniGenCache, "_selected", spy)
    ids = model.tokenizer.encode(prose)[:2048]
    assert len(ids) == 2048
    engines.create_engine("infinigen", model, budget=0.2).generate(ids, 5, ignore_eos=True)
    assert set(covered) == set(range(model.layers))
    means = [sum(shares) / len(shares) for layer, shares in covered.items() if layer > 0]
    assert sum(means) / len(means) >= 0.9
