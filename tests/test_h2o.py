"""H2O: what stays, what goes, and that going means freed."""

from __future__ import annotations

import pytest
import torch

import engines
from engines import events
from engines.errors import BadRequest
from tests.tiny import CONFIGS, prompt, tiny


def drain(engine) -> list[events.Event]:
    happened = []
    while engine.has_work:
        happened += engine.advance()
    return happened


@pytest.mark.parametrize("family", CONFIGS)
def test_budget_one_gives_the_paged_tokens(family: str) -> None:
    model, _ = tiny(family)
    for length in (1, 15, 16, 100):
        paged = engines.create_engine("vllm", model).generate(prompt(length), 24, ignore_eos=True)
        h2o = engines.create_engine("h2o", model, budget=1.0).generate(prompt(length), 24, ignore_eos=True)
        assert h2o.tokens == paged.tokens


def reference_kept(model, theirs, ids: list[int], layer: int, room: int) -> list[set[int]]:
    """The paper's first cut, from transformers' own attention maps: half by mass, the rest the most recent."""
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        attention = theirs(torch.tensor([ids]), output_attentions=True).attentions[layer][0]
    mass = attention.sum(1).view(model.kv_heads, -1, len(ids)).sum(1)
    heavy = room // 2
    recent = room - heavy
    return [
        set(row[: len(ids) - recent].topk(heavy).indices.tolist()) | set(range(len(ids) - recent, len(ids)))
        for row in mass
    ]


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt"])
def test_the_first_cut_keeps_heavy_hitters_and_recent_tokens(family: str) -> None:
    """With H != G for two of the families: mass is summed over the group."""
    model, theirs = tiny(family)
    ids = prompt(200)
    engine = engines.create_engine("h2o", model, budget=0.32)
    engine.generate(ids, 0)
    for layer in range(model.layers):
        kept = engine.kept_positions(layer)
        assert kept.shape == (model.kv_heads, 63)
        # Layer 0 sees the same input as the full model; later layers too, as the cut comes after attention.
        assert [set(row.tolist()) for row in kept] == reference_kept(model, theirs, ids, layer, 63)


def test_decode_drops_the_smallest_that_is_not_recent() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("h2o", model, budget=0.25)
    engine.submit(0, prompt(128), 40, ignore_eos=True)
    before = None
    while engine.has_work:
        happened = engine.advance()
        if not any(isinstance(e, events.Token) for e in happened) or not engine.scheduler.running:
            continue
        sequence = engine.scheduler.running[0]
        held = sequence.held
        if before is not None:
            positions, seen = before
            gone = [
                set(a.tolist()) - set(b.tolist())
                for a, b in zip(positions.flatten(0, 1), held.positions.flatten(0, 1), strict=True)
            ]
            recent = held.slots - 1 - (held.slots - 1) // 2
            for dropped in gone:
                assert len(dropped - {-1}) <= 1
                assert all(p < seen + 1 - recent for p in dropped)
        before = (held.positions.clone(), sequence.computed)
        newest = range(sequence.computed - 16, sequence.computed)
        for head in engine.cache.kept_positions(sequence, 1):
            assert set(newest) <= set(head.tolist())


def test_after_eviction_survivors_keep_their_true_positions() -> None:
    """Keys keep the rotation of their position, and the next query's position is the count seen, not the count kept:
    the logits equal those of the full model with everything else masked away."""
    model, theirs = tiny("llama")
    ids, more = prompt(160), prompt(5, seed=2)
    engine = engines.create_engine("h2o", model, budget=0.3)
    engine.generate(ids, 0)
    logits = engine.continue_logits(more)
    expected = masked_reference(model, theirs, ids, more, [engine.kept_positions(i) for i in range(model.layers)])
    assert (logits - expected).abs().max() < 1e-3


def masked_reference(model, theirs, ids: list[int], more: list[int], kept: list[torch.Tensor]) -> torch.Tensor:
    """transformers' model over the whole text, where the later rows see only each head's kept positions."""
    n, total = len(ids), len(ids) + len(more)
    group = model.shape.group
    masks = []
    for positions in kept:
        visible = torch.zeros(model.shape.heads, total, total, dtype=torch.bool)
        visible[:, :n, :n] = torch.ones(n, n, dtype=torch.bool).tril()
        for head in range(model.shape.heads):
            visible[head, n:, positions[head // group]] = True
        visible[:, n:, n:] = torch.ones(len(more), len(more), dtype=torch.bool).tril()
        masks.append(visible)
    hooks = []
    for layer, mask in zip(theirs.model.layers, masks, strict=True):

        def hook(module, args, kwargs, mask=mask):
            kwargs["attention_mask"] = torch.zeros(1, *mask.shape).masked_fill(~mask, -torch.inf)
            return args, kwargs

        hooks.append(layer.self_attn.register_forward_pre_hook(hook, with_kwargs=True))
    theirs.set_attn_implementation("sdpa")
    with torch.no_grad():
        logits = theirs(torch.tensor([ids + more])).logits[0, -1]
    for hook in hooks:
        hook.remove()
    return logits


@pytest.mark.parametrize("length", [512, 513, 527, 536, 559, 700, 1000])
def test_device_kv_at_r_03_is_30_percent_of_paged_and_flat(length: int) -> None:
    model, _ = tiny("llama")
    paged = engines.create_engine("vllm", model).generate(prompt(length), 1)
    engine = engines.create_engine("h2o", model, budget=0.3)
    engine.submit(0, prompt(length), 24, ignore_eos=True)
    sizes = set()
    while engine.has_work:
        engine.advance()
        if size := engine.memory().device_bytes.get("kv"):
            sizes.add(size)
    assert len(sizes) == 1
    assert sizes.pop() / paged.device_kv_peak_bytes == pytest.approx(0.30, abs=0.02)


def test_freed_means_freed() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("h2o", model, budget=0.3)
    total = engine.cache.blocks.free_blocks
    engine.generate(prompt(320), 4)
    assert engine.memory().blocks_used == 6
    assert engine.cache.blocks.free_blocks == total - 6
    engine.reset()
    assert engine.cache.blocks.free_blocks == total
    assert engine.memory().device_bytes.keys() == {"weights"}


def test_importance_is_charged_and_its_lack_takes_nothing() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("h2o", model, budget=0.3)
    engine.generate(prompt(320), 4)
    held = engine.memory().device_bytes
    blocks = engine.memory().blocks_used
    # A position in 8 bytes and its mass in 4, for 16 slots a block in every layer and KV head.
    assert held["importance"] == 12 * model.layers * model.kv_heads * 16 * blocks
    assert held["kv"] == model.kv_bytes_per_token * 16 * blocks
    need = engine.cache.need(320, 4).device_bytes
    assert need >= held["kv"] + held["importance"]
    engine.reset()
    assert engine.memory().device_bytes.keys() == {"weights"}

    room = (
        2 * engine.cache.blocks.block_bytes + held["importance"] // blocks
    )  # for two blocks, and for one's importance
    tight = engines.create_engine(
        "h2o", model, budget=0.3, scoring="flash", device_memory_bytes=model.weights_bytes + room
    )
    result = tight.generate(prompt(100), 4)
    assert result.outcome == "device_oom"
    assert "for importance" in result.detail
    assert tight.memory().device_bytes.keys() == {"weights"}
    assert tight.memory().blocks_used == 0


def test_eager_scores_are_charged_and_their_lack_is_an_outcome() -> None:
    model, _ = tiny("llama")
    length = 600
    scores = 4 * model.shape.heads * length**2
    engine = engines.create_engine("h2o", model, device_memory_bytes=model.weights_bytes + scores // 2)
    result = engine.generate(prompt(length), 4)
    assert result.outcome == "device_oom"
    assert "at 600 tokens: needs 8.64 MB for scores" in result.detail
    assert engine.memory().device_bytes.keys() == {"weights"}
    assert engine.generate(prompt(100), 4, ignore_eos=True).outcome == "ok"
    roomy = engines.create_engine("h2o", model).generate(prompt(length), 1)
    assert roomy.device_peak_bytes >= model.weights_bytes + scores


def test_continue_logits_leaves_the_cache_as_it_was() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("h2o", model, budget=0.3)
    engine.generate(prompt(100), 5, ignore_eos=True)
    kept = engine.kept_positions(1)
    first = engine.continue_logits(prompt(7, seed=4))
    engine.continue_logits(prompt(9, seed=5))
    assert torch.equal(engine.continue_logits(prompt(7, seed=4)), first)
    assert torch.equal(engine.kept_positions(1), kept)


def test_ragged_batch_equals_each_alone() -> None:
    model, _ = tiny("llama")
    requests = {i: prompt(length, seed=i) for i, length in enumerate([9, 60, 130])}
    engine = engines.create_engine("h2o", model, budget=0.4)
    for request, ids in requests.items():
        engine.submit(request, ids, 20, ignore_eos=True)
    tokens = {request: [] for request in requests}
    for event in drain(engine):
        if isinstance(event, events.Token):
            tokens[event.request].append(event.token_id)
    for request, ids in requests.items():
        single = engines.create_engine("h2o", model, budget=0.4).generate(ids, 20, ignore_eos=True)
        assert tokens[request] == single.tokens


def test_a_later_turn_attends_first_and_is_cut_after() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("h2o", model, budget=0.3)
    engine.generate(prompt(160), 4, ignore_eos=True)
    engine.generate(prompt(160, seed=8), 4, follow_up=True, ignore_eos=True)
    for layer in range(model.layers):
        kept = engine.kept_positions(layer)
        assert kept.shape[1] == 16 * round(0.3 * 324 / 16) - 1
        assert (kept[:, 1:] > kept[:, :-1]).all()
        assert kept.max() == 326


@pytest.mark.parametrize("budget", [0.0, -1.0, 1.01, float("nan")])
def test_budget_outside_its_range_is_refused(budget: float) -> None:
    with pytest.raises(BadRequest, match="budget"):
        engines.create_engine("h2o", tiny("llama")[0], budget=budget)
