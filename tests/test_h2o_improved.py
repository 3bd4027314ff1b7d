"""H2O's improvements: flash scoring, importance across chunks, anchors; alone and together."""

from __future__ import annotations

import pytest
import torch

import engines
from engines import events
from engines.caches.h2o import H2OCache
from engines.errors import BadRequest
from tests.tiny import CONFIGS, prompt, tiny


def kept_sets(engine: engines.Engine) -> list[list[set[int]]]:
    return [[set(row.tolist()) for row in engine.kept_positions(layer)] for layer in range(engine.model.layers)]


def overlap(one: list[list[set[int]]], other: list[list[set[int]]]) -> float:
    pairs = [(a, b) for rows, others in zip(one, other, strict=True) for a, b in zip(rows, others, strict=True)]
    return sum(len(a & b) for a, b in pairs) / sum(len(a) for a, _ in pairs)


def made(engine: str = "h2o", family: str = "llama", **knobs) -> engines.Engine:
    return engines.create_engine(engine, tiny(family)[0], **knobs)


@pytest.mark.parametrize("family", CONFIGS)
def test_flash_scoring_keeps_what_eager_scoring_keeps(family: str) -> None:
    ids = prompt(300)
    eager, flash = made(family=family), made(family=family, scoring="flash")
    first, second = eager.generate(ids, 8, ignore_eos=True), flash.generate(ids, 8, ignore_eos=True)
    assert overlap(kept_sets(eager), kept_sets(flash)) >= 0.995
    assert first.tokens == second.tokens
    assert "scores" not in flash.device_pool.peak_by_kind


def test_flash_scoring_of_a_later_turn() -> None:
    eager, flash = made(), made(scoring="flash")
    for engine in (eager, flash):
        engine.generate(prompt(160), 4, ignore_eos=True)
        engine.generate(prompt(120, seed=8), 4, follow_up=True, ignore_eos=True)
    assert overlap(kept_sets(eager), kept_sets(flash)) >= 0.995


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt"])
@pytest.mark.parametrize("chunk", [16, 33, 128, 1000])
@pytest.mark.parametrize("scoring", ["eager", "flash"])
def test_exact_chunks_keep_what_one_shot_keeps(family: str, chunk: int, scoring: str) -> None:
    ids = prompt(260)
    whole = made(family=family)
    pieces = made(family=family, prefill="chunked-exact", chunk_tokens=chunk, scoring=scoring)
    first, second = whole.generate(ids, 8, ignore_eos=True), pieces.generate(ids, 8, ignore_eos=True)
    assert overlap(kept_sets(whole), kept_sets(pieces)) >= 0.995
    assert first.tokens == second.tokens
    assert whole.memory().device_bytes["kv"] == pieces.memory().device_bytes["kv"]


@pytest.mark.parametrize("scoring", ["eager", "flash", "sampled"])
@pytest.mark.parametrize("prefill", ["chunked", "chunked-exact"])
@pytest.mark.parametrize("anchors", [0.0, 0.4])
def test_budget_one_gives_the_paged_tokens(scoring: str, prefill: str, anchors: float) -> None:
    paged = made("vllm").generate(prompt(100), 24, ignore_eos=True)
    knobs = {"scoring": scoring, "prefill": prefill, "anchors": anchors, "chunk_tokens": 40}
    engine = made(budget=1.0, **knobs)
    assert engine.generate(prompt(100), 24, ignore_eos=True).tokens == paged.tokens
    everything = set(range(123))  # the last token is not in the cache yet
    assert all(head == everything for heads in kept_sets(engine) for head in heads)


@pytest.mark.parametrize("prefill", ["eager", "flash", "chunked", "chunked-exact"])
def test_pictures_can_be_taken_while_a_later_turn_is_read(prefill: str) -> None:
    engine = made(prefill=prefill, anchors=0.4 if prefill == "chunked" else 0.0, chunk_tokens=16)
    engine.generate(prompt(200), 4, ignore_eos=True)
    engine.submit(2, prompt(40, seed=2), 4, ignore_eos=True, follow_up=True)
    taken = 0
    while engine.has_work:
        engine.advance()
        if (view := engine.view(2)) is not None:
            heads = engine.heads(2, 1)
            assert heads is not None
            assert view.cells.shape == (engine.model.layers, view.tokens)
            assert heads.states.shape == (engine.model.kv_heads, view.tokens)
            taken += 1
    assert taken > 3


@pytest.mark.parametrize("anchors", [0.0, 0.4])
@pytest.mark.parametrize("length", [200, 600, 1000])
def test_bounded_chunks_never_hold_more_than_budget_and_chunk(length: int, anchors: float) -> None:
    engine = made(prefill="chunked", chunk_tokens=64, budget_tokens=128, anchors=anchors)
    assert engine.generate(prompt(length), 8, ignore_eos=True).outcome == "ok"
    token = engine.model.kv_bytes_per_token
    pool = engine.device_pool
    assert pool.peak_by_kind["kv"] <= (128 + (16 if anchors else 0)) * token  # a late cut makes room beforehand
    assert pool.peak_by_kind["layer KV"] <= (128 + 64) * token // engine.model.layers
    assert pool.bytes_by_kind["kv"] <= 128 * token
    kept = engine.kept_positions(0).shape[1]
    assert kept == 127 if not anchors else 111 < kept <= 127


def test_a_share_of_the_budget_holds_for_the_whole_prompt_from_its_first_chunk() -> None:
    engine = made(prefill="chunked", chunk_tokens=64, budget=0.3)
    engine.generate(prompt(640), 1)
    assert engine.device_pool.peak_by_kind["kv"] == 192 * engine.model.kv_bytes_per_token


def cache_of(engine: engines.Engine) -> H2OCache:
    assert isinstance(engine.cache, H2OCache)
    return engine.cache


def plant(engine: engines.Engine, mass_of: dict[int, float], length: int, own: float = 0.0) -> None:
    """Makes attention even but for the planted positions, each of which gets its share from every later query. With
    `own`, that share of it goes evenly to the query's own piece, and the rest evenly to all that is older."""
    cache = cache_of(engine)

    def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor):
        span = next(iter(cache.step))
        held, count = span.sequence.held, len(q)
        before = keys.shape[1] - count
        layer = attention.calls % engine.model.layers
        attention.calls += 1
        old = held.positions[layer].sort(-1).values[:, held.slots - before :] if before else None
        new = torch.arange(span.position, span.position + count).expand(len(keys), -1)
        positions = new if old is None else torch.cat([old, new], 1)
        planted = torch.zeros(positions.shape)
        for position, share in mass_of.items():
            planted[positions == position] = share
        seen = positions.unsqueeze(1) <= new[0].view(1, -1, 1)
        weights = torch.where(planted.unsqueeze(1) > 0, planted.unsqueeze(1), 0.0) * seen
        rest = (1 - weights.sum(-1, keepdim=True)).clamp_min(0)
        even = (planted.unsqueeze(1) == 0) & seen
        weights = weights + even * rest / even.sum(-1, keepdim=True).clamp_min(1)
        if own and old is not None:
            young = (positions >= span.position).unsqueeze(1) & seen
            weights = own * young / young.sum(-1, keepdim=True)
            weights = weights + (1 - own) * ~young * seen / before
        return torch.zeros_like(q), weights.sum(1)

    attention.calls = 0
    cache._attention = attention  # type: ignore[method-assign]
    engine.generate(prompt(length), 0)


def test_a_late_heavy_hitter_survives() -> None:
    engine = made(prefill="chunked", chunk_tokens=64, budget_tokens=128)
    plant(engine, {500: 0.2}, 1000)
    assert all(500 in head for heads in kept_sets(engine) for head in heads)


def test_old_tokens_are_not_favoured_merely_for_age() -> None:
    """Where each piece attends to itself as the last one did, and evenly to all that is older, the same place in any
    piece is worth the same, though the sums grow with age."""
    engine = made(prefill="chunked", chunk_tokens=64, budget_tokens=256)
    plant(engine, {}, 640, own=0.5)
    cache, held = cache_of(engine), engine._latest().held
    assert held.born == list(range(0, 640, 64))
    worths = cache._worth(held, 0, held.positions[0], held.mass[0])[0]
    worth, raw = {}, {}
    for at, beyond, mass in zip(held.positions[0, 0].tolist(), worths.tolist(), held.mass[0, 0].tolist(), strict=True):
        if at >= 64 and at % 64 == 2:
            worth[at // 64], raw[at // 64] = beyond, mass
    assert set(worth) == set(range(1, 10))  # every piece keeps that place, not only the old ones
    assert max(worth.values()) == pytest.approx(min(worth.values()), rel=1e-3)
    assert raw[1] > 1.5 * raw[9]


@pytest.mark.parametrize("prefill", ["eager", "flash", "chunked", "chunked-exact"])
def test_anchors_are_never_evicted(prefill: str) -> None:
    engine = made(prefill=prefill, anchors=0.4, chunk_tokens=64, budget=0.3)
    turns = [("system", 0), ("user", 12), ("assistant", 24), ("user", 30)]
    engine.generate(prompt(400), 60, ignore_eos=True, turns=turns)
    pinned = set(engine._latest().held.anchors.pinned.nonzero().flatten().tolist())
    assert pinned >= set(range(30))
    for heads in kept_sets(engine):
        for head in heads:
            assert pinned <= head
    view = engine.view(1)
    assert view is not None
    shown = {p for p in range(400) if view.cells[0, p] & 7 == events.KvState.ANCHOR}
    assert shown == pinned
    heads = engine.heads(1, 1)
    assert heads is not None
    assert {p for p in range(400) if heads.states[0, p] == events.KvState.ANCHOR} == pinned


def test_more_anchors_than_fit_are_ranked_by_surprisal_and_counted() -> None:
    engine = made(prefill="chunked", anchors=0.2, budget=0.3, chunk_tokens=64)
    engine.generate(prompt(320), 1, turns=[("user", 0), ("assistant", 150), ("user", 160)])
    anchors = engine._latest().held.anchors
    limit = int(0.2 * 96)
    assert int(anchors.pinned.sum()) == limit
    assert anchors.left_out == 160 - limit
    assert (engine.memory().anchors, engine.memory().anchors_left_out) == (limit, 160 - limit)
    assert made(prefill="chunked").memory().anchors is None
    assert anchors.pinned[:4].all()


def test_surprisal_is_the_models_own() -> None:
    engine = made(prefill="chunked-exact", anchors=0.4, chunk_tokens=50)
    ids = prompt(120)
    engine.generate(ids, 1)
    logits = tiny("llama")[1](torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = -logits[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(engine._latest().held.anchors.surprisal[1:], expected, rtol=1e-3, atol=1e-3)


def test_the_recommended_h2o_works_over_many_turns() -> None:
    engine = made("h2o+", budget=0.3)
    engine.generate(prompt(200), 10, ignore_eos=True)
    for seed in range(2, 6):
        result = engine.generate(prompt(90, seed=seed), 10, follow_up=True, ignore_eos=True)
        assert result.outcome == "ok"
        assert len(result.tokens) == 10
    tokens = engine._latest().computed
    assert engine.memory().device_bytes["kv"] <= 0.34 * tokens * engine.model.kv_bytes_per_token
    engine.reset()
    assert engine.memory().device_bytes.keys() == {"weights"}


def test_a_ragged_batch_of_chunked_prompts_equals_each_alone() -> None:
    requests = {i: prompt(length, seed=i) for i, length in enumerate([9, 60, 130])}
    knobs = {"budget": 0.4, "prefill": "chunked-exact", "chunk_tokens": 32}
    engine = made(**knobs)
    for request, ids in requests.items():
        engine.submit(request, ids, 12, ignore_eos=True)
    tokens: dict[int, list[int]] = {request: [] for request in requests}
    while engine.has_work:
        for event in engine.advance():
            if isinstance(event, events.Token):
                tokens[event.request].append(event.token_id)
    for request, ids in requests.items():
        assert tokens[request] == made(**knobs).generate(ids, 12, ignore_eos=True).tokens


@pytest.mark.parametrize(
    "knobs",
    [{"anchors": 1.0}, {"anchors": -0.1}, {"budget_tokens": 3}, {"scoring": "guess"}, {"prefill": "backwards"}],
)
def test_knobs_out_of_range_are_refused(knobs: dict) -> None:
    with pytest.raises(BadRequest):
        made(**knobs)
