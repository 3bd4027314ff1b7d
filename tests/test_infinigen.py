"""InfiniGen: speculation, selective fetches, host-resident KV, and victims under a cap."""

from __future__ import annotations

import math
from importlib import resources

import pytest
import torch

import engines
from engines import events
from engines.errors import BadRequest
from engines.hostpool import COUNTER_LIMIT, HostKv, HostKvShape
from engines.memory import Pool
from engines.skew import CALIBRATION_TOKENS, calibrate
from tests.tiny import CONFIGS, prompt, tiny


@pytest.mark.parametrize("family", CONFIGS)
def test_full_attention_reproduces_the_paged_tokens(family: str) -> None:
    model, _ = tiny(family)
    for length in (1, 16, 100):
        paged = engines.create_engine("vllm", model).generate(prompt(length), 24, ignore_eos=True)
        full = engines.create_engine("infinigen", model, budget=1.0, alpha=math.inf)
        assert full.generate(prompt(length), 24, ignore_eos=True).tokens == paged.tokens


@pytest.mark.parametrize("family", ["llama", "opt", "qwen3"])
def test_skewing_keeps_every_dot_product(family: str) -> None:
    model, _ = tiny(family)
    rotation = calibrate(model)
    q, k = torch.randn(model.layers, model.kv_heads, 5, model.shape.head_dim), torch.randn(rotation.shape)
    assert torch.allclose(q @ k.mT, (q @ rotation) @ (k @ rotation).mT, atol=1e-3)
    identity = torch.eye(model.shape.head_dim).expand_as(rotation)
    assert torch.allclose(rotation.mT @ rotation, identity, atol=1e-4)


def test_skewing_sorts_columns_by_their_energy() -> None:
    model, _ = tiny("llama")
    matrix = calibrate(model)
    seen: list[torch.Tensor] = []

    class Spy:
        def attend(self, layer, q, k, v, x):
            seen.append(q.view(len(q), model.kv_heads, -1, model.shape.head_dim).transpose(0, 1).flatten(1, 2).clone())
            return torch.zeros(len(q), model.shape.heads * model.shape.head_dim)

    text = resources.files("engines").joinpath("data/calibration.txt").read_text(encoding="utf-8")
    ids = torch.tensor(model.tokenizer.encode(text)[:CALIBRATION_TOKENS])
    list(model.decoder.forward(ids, torch.arange(len(ids)), Spy()))
    energy = (seen[0] @ matrix[0]).square().sum(1)
    assert (energy[:, :-1] >= energy[:, 1:]).all()
    plain = seen[0].square().sum(1).sort(-1, descending=True).values
    assert (energy.cumsum(-1) >= plain.cumsum(-1) - 1e-2).all()


def test_fetches_stay_within_the_budget_and_the_first_layer_fetches_all() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("infinigen", model, budget=0.2, alpha=math.inf)
    engine.submit(0, prompt(200), 6, ignore_eos=True)
    token_bytes = model.kv_bytes_per_token // model.layers
    while engine.has_work:
        engine.transfer()
        if any(isinstance(e, events.Token) and e.index > 0 for e in engine.advance()):
            seen = engine.view(0).tokens - 1
            fetched = seen + (model.layers - 1) * math.floor(0.2 * seen)
            moved = engine.transfer()
            assert moved.h2d_bytes == fetched * token_bytes
            assert moved.d2h_bytes == model.kv_bytes_per_token


@pytest.mark.parametrize("engine_id", ["infinigen", "infinigen+"])
def test_totals_of_the_link_begin_anew_with_a_reset(engine_id: str) -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine(engine_id, model, budget=0.3)
    totals = []
    for _ in range(2):
        engine.reset()
        engine.generate(prompt(200), 6, ignore_eos=True)
        moved = engine.transfer()
        totals.append((moved.h2d_total_bytes, moved.d2h_total_bytes))
        assert (moved.h2d_bytes, moved.d2h_bytes) == totals[-1]
    assert totals[0] == totals[1]
    assert min(totals[0]) > 0


def test_a_small_alpha_fetches_fewer() -> None:
    model, _ = tiny("llama")
    moved = [
        engines.create_engine("infinigen", model, budget=1.0, alpha=alpha)
        .generate(prompt(200), 8, ignore_eos=True)
        .h2d_bytes
        for alpha in (0.5, 2.0, math.inf)
    ]
    assert moved[0] < moved[1] < moved[2]


def test_kv_lives_on_the_host() -> None:
    model, _ = tiny("llama")
    paged = engines.create_engine("vllm", model).generate(prompt(640), 4, ignore_eos=True)
    result = engines.create_engine("infinigen", model, budget=0.2).generate(prompt(640), 4, ignore_eos=True)
    assert result.host_kv_peak_bytes >= 640 * model.kv_bytes_per_token
    assert result.device_kv_peak_bytes < 0.8 * paged.device_kv_peak_bytes  # 3 layers: staging weighs much here


def test_everything_is_given_back() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("infinigen", model)
    engine.generate(prompt(100), 4)
    engine.reset()
    assert engine.memory().device_bytes.keys() == {"weights", "skew matrices"}
    assert engine.memory().host_bytes == {}


def test_ragged_batch_equals_each_alone() -> None:
    model, _ = tiny("llama")
    requests = {i: prompt(length, seed=i) for i, length in enumerate([9, 60, 130])}
    engine = engines.create_engine("infinigen", model, budget=0.4)
    tokens: dict[int, list[int]] = {request: [] for request in requests}
    for request, ids in requests.items():
        engine.submit(request, ids, 16, ignore_eos=True)
    while engine.has_work:
        for event in engine.advance():
            if isinstance(event, events.Token):
                tokens[event.request].append(event.token_id)
    for request, ids in requests.items():
        single = engines.create_engine("infinigen", model, budget=0.4).generate(ids, 16, ignore_eos=True)
        assert tokens[request] == single.tokens


def test_continue_logits_leaves_the_cache_as_it_was() -> None:
    model, theirs = tiny("llama")
    ids, more = prompt(90), prompt(6, seed=3)
    engine = engines.create_engine("infinigen", model, budget=1.0, alpha=math.inf)
    engine.generate(ids, 1)
    first = engine.continue_logits(more)
    engine.continue_logits(prompt(12, seed=4))
    assert torch.equal(engine.continue_logits(more), first)
    with torch.no_grad():
        expected = theirs(torch.tensor([ids + more])).logits[0, -1]
    assert (first - expected).abs().max() < 1e-3
    assert engine.kept_positions(2).tolist() == [list(range(90))] * model.kv_heads


def test_continue_logits_selects_as_decoding_would() -> None:
    model, _ = tiny("llama")
    token = prompt(1, seed=3)
    looked, decoded, full = (
        engines.create_engine(engine_id, model, budget=0.3, alpha=4.0)
        for engine_id in ("infinigen", "infinigen", "vllm")
    )
    for engine in (looked, decoded, full):
        engine.generate(prompt(120), 0)
    logits = looked.continue_logits(token)
    next_token = decoded.generate(token, 1, follow_up=True, ignore_eos=True)
    assert next_token.tokens == [int(logits.argmax())]
    assert next_token.logprobs == pytest.approx([float(logits.log_softmax(-1).max())], abs=1e-4)
    assert not torch.allclose(logits, full.continue_logits(token), atol=1e-2)


def test_a_later_turn_attends_to_everything_as_the_first_does() -> None:
    model, theirs = tiny("llama")
    engine = engines.create_engine("infinigen", model, budget=0.1)
    engine.generate(prompt(100), 0)
    engine.generate(prompt(30, seed=2), 1, follow_up=True, ignore_eos=True)
    with torch.no_grad():
        expected = theirs(torch.tensor([prompt(100) + prompt(30, seed=2)])).logits[0, -1]
    assert engine._ended.tokens[-1] == int(expected.argmax())
    assert "layer KV" not in engine.memory().device_bytes


def test_a_follow_up_moves_to_larger_buffers() -> None:
    model, theirs = tiny("llama")
    engine = engines.create_engine("infinigen", model, budget=1.0, alpha=math.inf)
    first, second = prompt(50), prompt(200, seed=3)
    answer = engine.generate(first, 4, ignore_eos=True).tokens
    follow_up = engine.generate(second, 6, follow_up=True, ignore_eos=True).tokens
    running = first + answer + second
    with torch.no_grad():
        for _ in range(6):
            running.append(int(theirs(torch.tensor([running])).logits[0, -1].argmax()))
    assert follow_up == running[-6:]


@pytest.mark.parametrize("victim", ["counter", "lru", "fifo"])
def test_a_capped_host_pool_stays_under_its_cap(victim: str) -> None:
    model, _ = tiny("llama")
    cap = 100 * model.kv_bytes_per_token
    engine = engines.create_engine("infinigen", model, host_memory_bytes=cap, victim=victim, budget=0.5)
    result = engine.generate(prompt(96), 40, ignore_eos=True)
    assert len(result.tokens) == 40
    assert result.host_kv_peak_bytes <= cap
    kept = engine.kept_positions(1)
    assert kept.shape == (model.kv_heads, 100)
    assert (kept.max(1).values == 96 + 38).all()
    view = engine.view(1)
    assert view.evicted_tokens == 35
    if victim == "fifo":
        assert kept.min() == 35


def test_a_prompt_longer_than_the_host_pool_keeps_its_last_entries() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("infinigen", model, host_memory_bytes=50 * model.kv_bytes_per_token)
    engine.generate(prompt(80), 1)
    assert engine.kept_positions(0).tolist() == [list(range(30, 80))] * model.kv_heads


def host_kv(victim: str, capacity: int = 4) -> HostKv:
    shape = HostKvShape(1, 1, 2, torch.float32)
    kv = HostKv(Pool("host", capacity * shape.token_bytes), shape, 100, victim)
    for position in range(capacity):
        put(kv, position)
    return kv


def put(kv: HostKv, position: int) -> None:
    kv.make_room(1)
    kv.store(0, torch.full((1, 1, 2), float(position)), torch.full((1, 1, 2), float(position)))
    kv.advance(1, position)


@pytest.mark.parametrize(
    ("victim", "gone"),
    [("fifo", 0), ("lru", 1), ("counter", 3)],
)
def test_the_victim_is_the_one_the_policy_names(victim: str, gone: int) -> None:
    kv = host_kv(victim)
    for slots in ([1, 1, 1, 2], [2, 3], [0], [0]):  # 1 is used least recently, 3 least often
        for slot in slots:
            kv.used(0, torch.tensor([[slot]]))
        kv._steps += 1
    put(kv, 4)
    assert set(kv.kept_positions(0)[0].tolist()) == {0, 1, 2, 3, 4} - {gone}
    assert kv.keys[0, 0, gone].tolist() == [4.0, 4.0]


def test_a_saturated_counter_halves_them_all() -> None:
    kv = host_kv("counter")
    kv.rank[0, 0] = torch.tensor([COUNTER_LIMIT, 9, 4, 7])
    put(kv, 4)
    assert kv.rank[0, 0].tolist() == [COUNTER_LIMIT // 2, 4, 0, 3]


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"victim": "random"}, "victim"),
        ({"budget": 2.0}, "budget"),
        ({"link": "usb"}, "usb"),
    ],
)
def test_bad_knobs_are_refused(knobs: dict, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        engines.create_engine("infinigen", tiny("llama")[0], **knobs)
