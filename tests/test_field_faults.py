"""Faults that others shipped, a test each. The names say what went wrong elsewhere; the tests hold what is right."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import engines
from engines import events, kernels
from engines.clock import Clock
from engines.link import ModelledLink, modelled
from tests.test_h2o import masked_reference
from tests.tiny import prompt, tiny


def evicted_engine(length: int = 160, new_tokens: int = 12):
    model, theirs = tiny("llama")
    engine = engines.create_engine("h2o", model, budget=0.3)
    ids = prompt(length)
    return engine, model, theirs, ids, engine.generate(ids, new_tokens, ignore_eos=True).tokens


def test_storage_index_used_as_position() -> None:
    """Keys keep the rotation of their true position: what is stored equals what the full model computes there."""
    engine, model, _, ids, _ = evicted_engine(new_tokens=1)
    full = engines.create_engine("vllm", model)
    full.generate(ids, 1)
    sequence, paged = engine._ended, full._ended
    for head in range(model.kv_heads):
        positions = sequence.held.positions[0, head]
        for slot in (positions >= 0).nonzero().flatten().tolist():
            position = int(positions[slot])
            mine = engine.cache.blocks.keys[0, sequence.table[slot // 16], head, slot % 16]
            theirs = full.cache.blocks.keys[0, paged.table[position // 16], head, position % 16]
            assert torch.allclose(mine, theirs, atol=1e-5)


def test_cache_length_doubled_as_position_offset() -> None:
    """Two numbers: the count of tokens seen is the next position, the count kept is smaller."""
    engine, _, _, ids, tokens = evicted_engine()
    sequence = engine._ended
    assert sequence.computed == len(ids) + len(tokens) - 1
    assert sequence.held.count < sequence.computed // 3
    assert int(sequence.held.positions.max()) == sequence.computed - 1


def test_evicted_before_own_chunk_attended() -> None:
    """Attend first, evict after: the prompt's last row sees all of it, so the first token is the full model's."""
    for seed in range(5):
        model, _ = tiny("llama", seed=seed)
        paged = engines.create_engine("vllm", model).generate(prompt(300, seed), 1, ignore_eos=True)
        h2o = engines.create_engine("h2o", model, budget=0.1).generate(prompt(300, seed), 1, ignore_eos=True)
        assert h2o.tokens == paged.tokens
        assert h2o.logprobs == pytest.approx(paged.logprobs, abs=1e-4)


def test_later_turn_sees_what_is_kept_and_its_own_tokens() -> None:
    engine, model, theirs, ids, tokens = evicted_engine(new_tokens=0)
    assert not tokens
    more = prompt(30, seed=7)
    expected = masked_reference(
        model, theirs, ids, more, [engine.kept_positions(layer) for layer in range(model.layers)]
    )
    assert (engine.continue_logits(more) - expected).abs().max() < 1e-3


def test_garbage_when_prompt_longer_than_cache(smollm2_bf16, prose) -> None:
    """Only filler is dropped here: the last record stays among the recent tokens, and stays answerable."""
    model = smollm2_bf16
    filler = model.tokenizer.encode(prose)[:700]
    record = model.tokenizer.encode("\n\nNote: the code word of the day is lantern.\n\nQuestion: what is it?\nAnswer:")
    question = model.tokenizer.encode(" the code word of the day is")
    answer = model.tokenizer.encode(" lantern")[0]
    for budget in (0.5, 0.3, 0.2):
        engine = engines.create_engine("h2o", model, budget=budget)
        engine.generate(filler + record, 0)
        assert int(engine.continue_logits(question).argmax()) == answer


@pytest.mark.parametrize("engine_id", ["vllm", "h2o", "infinigen"])
def test_chunk_looked_only_at_itself(engine_id: str) -> None:
    """With everything kept, text fed in two parts gives the logits of the text fed at once."""
    model, _ = tiny("llama")
    knobs = {"budget": 1.0, **({"alpha": float("inf")} if engine_id == "infinigen" else {})}
    ids, more = prompt(90), prompt(30, seed=1)
    parts, once = (engines.create_engine(engine_id, model, **knobs) for _ in range(2))
    parts.generate(ids, 0)
    once.generate(ids + more[:-1], 0)
    assert torch.allclose(parts.continue_logits(more), once.continue_logits(more[-1:]), atol=1e-3)


def test_old_tokens_favoured_for_age() -> None:
    """A late heavy hitter survives the cut although few queries could see it."""
    torch.manual_seed(0)
    length, late = 400, 330
    q, k, v = torch.randn(2, length, 16) * 0.1, torch.randn(1, length, 16) * 0.1, torch.randn(1, length, 16)
    q[..., 0], k[:, late, 0] = 1.0, 40.0
    _, mass = kernels.eager_attention(q, k, v, torch.empty(2, length, length), 0.25)
    assert late in mass[0].topk(40).indices.tolist()
    expected = torch.zeros(length)
    for row in range(length):
        expected[: row + 1] += torch.softmax(q[:, row] @ k[0, : row + 1].T * 0.25, -1).sum(0)
    assert torch.allclose(mass[0], expected, atol=1e-4)


def test_scores_by_query_head_cache_by_kv_head() -> None:
    engine, model, _, _, _ = evicted_engine()
    assert model.shape.heads == 3 * model.kv_heads
    assert engine._ended.held.mass.shape[1] == engine.kept_positions(0).shape[0] == model.kv_heads


def test_eviction_masked_a_full_cache() -> None:
    """Freed means freed: fewer blocks, fewer slots to attend to, smaller tables."""
    engine, model, _, ids, _ = evicted_engine(640, 4)
    paged = engines.create_engine("vllm", model)
    paged.generate(ids, 4, ignore_eos=True)
    assert engine.memory().blocks_used <= 0.32 * paged.memory().blocks_used
    assert engine._ended.held.slots == 16 * engine.memory().blocks_used


def test_device_synchronised_in_the_decode_loop() -> None:
    """Only the clock may wait for the device, at the ends of a slice; and a prefetch overlaps with computing."""
    for file in Path(engines.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr == "synchronize":
                assert file.name in ("clock.py", "link.py"), f"{file.name}:{node.lineno}"
    clock = Clock()
    link = ModelledLink(modelled("unscaled:0.001"), clock)
    ready = link.to_device(300_000, lambda: None)
    clock.wait_until(1.0)
    link.wait(ready)
    assert clock.now_s == pytest.approx(1.0)
    assert link.traffic.hidden_s == pytest.approx(link.traffic.busy_s)


class Largest(TorchDispatchMode):
    """Elements of the largest bool tensor, and of the largest one whose last extent is the vocabulary."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab, self.mask, self.logits = vocab, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                if tensor.dtype == torch.bool:
                    self.mask = max(self.mask, tensor.untyped_storage().nbytes())
                if tensor.dim() > 1 and tensor.shape[-1] == self.vocab:
                    self.logits = max(self.logits, tensor.numel())
        return out


@pytest.mark.parametrize("engine_id", ["vllm", "h2o", "infinigen"])
def test_dense_masks_and_logits_of_all_positions(engine_id: str) -> None:
    """No mask tensor larger than chunk x n, and logits of the last position only."""
    model, _ = tiny("llama")
    engine = engines.create_engine(engine_id, model)
    with Largest(model.shape.vocab) as largest:
        engine.generate(prompt(256), 2, ignore_eos=True)
    assert largest.mask <= 256 * 256
    assert 0 < largest.logits <= model.shape.vocab


def test_bytes_and_kibibytes_confused() -> None:
    """Sizes in events are bytes: a decode step of InfiniGen moves what its entries weigh."""
    model, _ = tiny("llama")
    engine = engines.create_engine("infinigen", model, budget=1.0, alpha=float("inf"))
    result = engine.generate(prompt(50), 2, ignore_eos=True)
    assert result.h2d_bytes == 50 * model.kv_bytes_per_token
    assert result.d2h_bytes == 51 * model.kv_bytes_per_token
    assert isinstance(engine.transfer(), events.Transfer)
