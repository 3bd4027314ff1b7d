"""InfiniGen+: the selection of InfiniGen, with only the difference moved."""

from __future__ import annotations

import math

import pytest
import torch

import engines
from engines import events
from engines.errors import BadRequest
from engines.events import KvState
from engines.hostpool import HostKvShape
from engines.memory import Pool
from engines.prefetch import FirstLayer, WorkingSet
from probes import prefetch as probe
from tests.tiny import CONFIGS, prompt, tiny


def both(model, **knobs):
    return [engines.create_engine(id, model, **knobs) for id in ("infinigen", "infinigen+")]


def same(plain, improved, turns, new_tokens: int = 20) -> None:
    """Tokens, log-probabilities and the logits of what might come next are equal, turn after turn."""
    for number, ids in enumerate(turns):
        a, b = (e.generate(ids, new_tokens, follow_up=number > 0, ignore_eos=True) for e in (plain, improved))
        assert a.outcome == b.outcome == "ok", b.detail
        assert a.tokens == b.tokens
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
        more = prompt(5, seed=9)
        assert torch.allclose(plain.continue_logits(more), improved.continue_logits(more), atol=1e-3)
        one = prompt(1, seed=8)
        assert torch.allclose(plain.continue_logits(one), improved.continue_logits(one), atol=1e-3)


@pytest.mark.parametrize("family", CONFIGS)
def test_answers_equal_the_baselines(family: str) -> None:
    model, _ = tiny(family)
    same(*both(model, budget=0.2, alpha=4.0), [prompt(120), prompt(40, seed=2), prompt(1, seed=3)])


@pytest.mark.parametrize("victim", ["counter", "lru", "fifo"])
def test_answers_equal_under_a_host_cap(victim: str) -> None:
    model, _ = tiny("llama")
    cap = 100 * model.kv_bytes_per_token
    engines_ = both(model, budget=0.3, host_memory_bytes=cap, victim=victim)
    same(*engines_, [prompt(96), prompt(30, seed=2)], 40)
    plain, improved = engines_
    for layer in range(model.layers):
        assert torch.equal(plain.kept_positions(layer), improved.kept_positions(layer))


@pytest.mark.parametrize(
    "knobs",
    [
        {"resident": 0.05},
        {"resident_tokens": 3},
        {"resident_tokens": 1},
        {"resident_tokens": 64},
        {"resident": 1.0},
        {"budget": 1.0, "alpha": math.inf},
        {"budget": 1.0, "alpha": math.inf, "resident_tokens": 20},
    ],
)
def test_answers_equal_however_little_is_resident(knobs: dict) -> None:
    model, _ = tiny("llama")
    plain = engines.create_engine("infinigen", model, **{k: v for k, v in knobs.items() if "resident" not in k})
    same(plain, engines.create_engine("infinigen+", model, **knobs), [prompt(150), prompt(30, seed=2)])


def test_a_first_layer_beyond_its_room_streams_in_chunks(monkeypatch) -> None:
    monkeypatch.setattr("engines.caches.infinigen_plus.CHUNK_TOKENS", (16, 16))
    model, _ = tiny("llama")
    plain, improved = (
        both(model, budget=0.2)[0],
        engines.create_engine("infinigen+", model, budget=0.2, resident_tokens=64),
    )
    same(plain, improved, [prompt(200), prompt(30, seed=2)], 4)
    plain.reset()
    improved.reset()
    masses = []
    for engine in (plain, improved):
        engine.submit(0, prompt(200), 4, ignore_eos=True)
        while engine.has_work:
            engine.advance(observe=True)
        masses.append(torch.from_numpy(engine.view(0).mass))
    assert torch.allclose(masses[0], masses[1], atol=1e-4)


def test_ragged_batch_equals_each_alone() -> None:
    model, _ = tiny("llama")
    requests = {i: prompt(length, seed=i) for i, length in enumerate([9, 60, 130])}
    engine = engines.create_engine("infinigen+", model, budget=0.4)
    tokens: dict[int, list[int]] = {request: [] for request in requests}
    for request, ids in requests.items():
        engine.submit(request, ids, 16, ignore_eos=True)
    while engine.has_work:
        for event in engine.advance():
            if isinstance(event, events.Token):
                tokens[event.request].append(event.token_id)
    for request, ids in requests.items():
        assert (
            tokens[request]
            == engines.create_engine("infinigen", model, budget=0.4).generate(ids, 16, ignore_eos=True).tokens
        )


def test_only_the_difference_moves_and_is_counted() -> None:
    model, _ = tiny("llama")
    plain, improved = both(model, budget=0.3)
    moved = [engine.generate(prompt(300), 24, ignore_eos=True) for engine in (plain, improved)]
    traffic = improved.transfer()
    assert moved[0].h2d_bytes == moved[1].h2d_bytes + traffic.saved_bytes
    assert moved[1].h2d_bytes < moved[0].h2d_bytes / 2
    assert 0.5 < traffic.hit_rate < 1
    assert moved[1].d2h_bytes == moved[0].d2h_bytes
    assert plain.transfer().hit_rate is None


def test_nothing_moves_when_everything_is_resident() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("infinigen+", model, resident=1.0)
    assert engine.generate(prompt(100), 16, ignore_eos=True).h2d_bytes == 0
    assert engine.transfer().hit_rate == 1


def test_memory_is_charged_and_given_back() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("infinigen+", model, budget=0.2)
    paged = engines.create_engine("vllm", model).generate(prompt(640), 4, ignore_eos=True)
    result = engine.generate(prompt(640), 4, ignore_eos=True)
    entry = 2 * model.kv_heads * model.shape.head_dim * model.dtype.itemsize
    capacity = 704  # 644 tokens, rounded up
    resident = entry * (capacity + 1 + (model.layers - 1) * (math.ceil(0.3 * capacity) + 1))
    assert engine.memory().device_bytes["resident KV"] == resident
    assert engine.memory().device_bytes.get("staging", 0) == 0
    assert resident < result.device_kv_peak_bytes
    assert result.device_kv_peak_bytes < paged.device_kv_peak_bytes
    engine.generate(prompt(200, seed=2), 4, follow_up=True)
    engine.reset()
    assert engine.memory().device_bytes.keys() == {"weights", "skew matrices"}
    assert engine.memory().host_bytes == {}


@pytest.mark.parametrize("room", range(0, 60, 6))
def test_too_little_device_memory_ends_the_request_alone(room: int) -> None:
    model, _ = tiny("llama")
    free = engines.create_engine("infinigen+", model)
    weights = free.memory().device_bytes
    cap = sum(weights.values()) + room * model.kv_bytes_per_token
    engine = engines.create_engine("infinigen+", model, device_memory_bytes=cap)
    result = engine.generate(prompt(100), 8, ignore_eos=True)
    assert result.outcome == "device_oom"
    assert engine.memory().device_bytes == weights
    assert engine.memory().host_bytes == {}


def test_the_picture_tells_resident_from_fetched() -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine("infinigen+", model, budget=0.2)
    engine.submit(0, prompt(200), 6, ignore_eos=True)
    while engine.has_work:
        engine.advance()
    view = engine.view(0)
    states = view.cells & 7
    assert (states[0] == KvState.DEVICE).all()
    assert (view.cells[0] >> 3 == 31).all()
    for layer in range(1, model.layers):
        heads = engine.heads(0, layer).states
        assert {KvState.DEVICE, KvState.HOST} <= set(states[layer].tolist())
        on_device = (heads == KvState.DEVICE) | (heads == KvState.FETCHED)
        assert (on_device.sum(1) <= math.ceil(0.3 * 256) + 1).all()
        assert on_device[:, -1].all(), "the newest entry needs no round trip"
        assert torch.equal(
            torch.from_numpy(view.cells[layer] >> 3), torch.from_numpy(on_device.sum(0) * 31 / 2).round().byte()
        )
    assert view.fetched_tokens < 0.2 * 200


def working_set(places: int, overflow: int = 4, capacity: int = 16) -> WorkingSet:
    return WorkingSet(
        Pool("device"), HostKvShape(2, 1, 2, torch.float32), capacity, places, overflow, torch.device("cpu")
    )


def take(kept: WorkingSet, slots: list[int], own: int):
    return kept.take(1, torch.tensor([slots]), torch.tensor([[own]]))


def test_what_was_used_longest_ago_makes_room() -> None:
    kept = working_set(4)
    assert take(kept, [0, 1, 2], 8).slots.tolist() == [0, 1, 2]
    assert take(kept, [0, 2], 9).slots.tolist() == []  # 9 takes the place of 1 or 8
    assert take(kept, [0, 2, 9], 10).slots.tolist() == []
    assert sorted(kept.resident(1)[1].tolist()) == [0, 2, 9, 10]


def test_a_slot_that_is_written_anew_loses_its_old_copy() -> None:
    kept = working_set(6)
    rows = take(kept, [0, 1, 2], 3).rows[0].tolist()
    assert len(set(rows)) == 4
    again = take(kept, [0, 1, 2, 3], 1)  # reads slot 1 for the last time, and its victim's successor moves in
    assert again.slots.tolist() == []
    assert again.rows[0, :4].tolist() == rows
    assert again.rows[0, 4] not in rows
    after = take(kept, [1], 4)
    assert after.slots.tolist() == []
    assert after.rows[0, 0] == again.rows[0, 4]
    assert sorted(kept.resident(1)[1].tolist()) == [0, 1, 2, 3, 4]


def test_a_slot_that_is_fetched_and_written_anew_at_once() -> None:
    kept = working_set(6)
    first = take(kept, [5], 5)
    assert first.slots.tolist() == [5]
    assert first.rows[0, 0] != first.rows[0, 1]
    assert take(kept, [5], 6).rows[0, 0] == first.rows[0, 1]


def test_more_than_there_are_places_for_goes_beyond() -> None:
    kept = working_set(2, overflow=3)
    taken = take(kept, [0, 1, 2, 3], 9)
    rows = taken.rows[0].tolist()
    assert len(set(rows)) == 5
    assert sum(row >= 2 for row in rows) == 3
    assert take(kept, [9], 10).slots.tolist() == []


def test_places_and_slots_agree_at_random() -> None:
    """The map and its inverse, and the model of a cache that they stand for: rows hold what the host has."""
    generator = torch.Generator().manual_seed(0)
    kept, host = working_set(7, overflow=4, capacity=30), torch.full((30,), -1.0)
    for tokens in range(300):
        filled = min(tokens, 30)
        chosen = torch.randperm(filled, generator=generator)[: int(torch.randint(0, 10, (1,), generator=generator))]
        slots = chosen.sort().values
        own = tokens if tokens < 30 else int(torch.randint(0, 30, (1,), generator=generator))
        taken = kept.take(1, slots[None], torch.tensor([[own]]))
        kept.keys[taken.into, 0, 0, 0] = host[taken.slots]
        kept.keys[taken.rows[0, -1].long(), 0, 0, 0] = float(tokens)
        assert torch.equal(kept.keys[taken.rows[0, :-1].long(), 0, 0, 0], host[slots])
        host[own] = float(tokens)
        _, there = kept.resident(1)
        assert len(set(there.tolist())) == len(there)
        assert torch.equal(kept.slot_of[0, 0][kept.place_of[0, 0][there].long()].long(), there)
        assert int((kept.place_of[0] >= 0).sum()) == len(there)


def test_the_first_layer_knows_how_far_it_reaches() -> None:
    first = FirstLayer(Pool("device"), HostKvShape(1, 1, 2, torch.float32), 4, torch.device("cpu"))

    def keep(filled: int, slots: list[int], value: float) -> None:
        entries = torch.full((1, len(slots), 2), value)
        first.keep(filled, torch.tensor([slots]), entries, entries)

    keep(0, [0, 1, 2], 1.0)
    assert first.loaded == 3
    keep(3, [3], 2.0)
    keep(4, [4], 3.0)  # beyond
    assert first.loaded == 4
    keep(5, [1], 4.0)  # a victim's successor
    assert first.keys[0, :4, 0].tolist() == [1.0, 4.0, 1.0, 2.0]


def test_transfers_hide_behind_the_layer_before(monkeypatch) -> None:
    """A timeline: each layer computes for 10 ms, and the link needs 0.05 ms an entry. The baseline waits for all of the
    first layer's."""
    model, _ = tiny("llama")
    stalled = {}
    for engine in both(model, budget=0.3, link="unscaled:1"):
        now = [0.0]
        monkeypatch.setattr("engines.clock.time.perf_counter", lambda now=now: now[0])
        entry = 2 * model.shape.head_dim * 4
        engine.link._duration_s = lambda size, entry=entry: 5e-5 * size / entry
        attend = engine.cache.attend

        def slow(layer, q, k, v, x, attend=attend, now=now):
            out = attend(layer, q, k, v, x)
            now[0] += 0.01
            return out

        monkeypatch.setattr(engine.cache, "attend", slow)
        engine.generate(prompt(300), 13, ignore_eos=True)
        stalled[engine.id] = engine.link.traffic.stalled_s
    assert stalled["infinigen"] > 12 * 0.02
    assert engine.link.traffic.h2d_bytes > 0
    assert stalled["infinigen+"] == 0
    assert engine.transfer().hidden_s == engine.link.traffic.busy_s


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"resident": 0.0}, "resident"),
        ({"resident_tokens": 0}, "resident_tokens"),
        ({"prefetch": "psychic"}, "psychic"),
    ],
)
def test_bad_knobs_are_refused(knobs: dict, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        engines.create_engine("infinigen+", tiny("llama")[0], **knobs)


def test_the_knob_turns_either_engine_into_the_other() -> None:
    model, _ = tiny("llama")
    assert engines.create_engine("infinigen", model, prefetch="predictive").knobs()["prefetch"] == "predictive"
    off = engines.create_engine("infinigen+", model, prefetch="off")
    assert (
        off.generate(prompt(64), 4).h2d_bytes
        == engines.create_engine("infinigen", model).generate(prompt(64), 4).h2d_bytes
    )


def test_the_probe_compares_the_engines() -> None:
    model, _ = tiny("llama")
    paged, plain, improved = probe.measure(model, new_tokens=8, token_ids=prompt(200), budget=0.3)
    assert (paged.engine, plain.engine, improved.engine) == probe.ENGINES
    assert paged.h2d_bytes == 0 < improved.h2d_bytes < plain.h2d_bytes
    assert plain.hit_rate is None
    assert 0 < improved.hit_rate < 1
    assert 0 <= improved.hidden_share <= 1
    assert improved.modelled
    assert improved.tpot_s > 0


def test_a_long_context_lies_on_host_and_disk_while_the_device_stays_small() -> None:
    found = probe.million(
        tokens=40_000, new_tokens=3, host_memory_bytes=4 << 20, device_memory_bytes=8 << 20, resident_tokens=8192
    )
    entry = 3 * 2 * 32 * 2
    assert found.host_bytes <= 4 << 20
    assert found.host_bytes + found.disk_bytes >= 40_000 * entry
    assert found.device_peak_bytes <= 8 << 20
    assert found.tpot_s > 0


def test_what_was_computed_elsewhere_decodes_as_if_it_had_been_here() -> None:
    model, _ = tiny("llama")
    source, plain = (engines.create_engine(id, model, budget=1.0, alpha=math.inf) for id in ("infinigen", "infinigen+"))
    answer = source.generate(prompt(90), 8, ignore_eos=True).tokens
    source.generate(prompt(90)[:-1], 0)
    host = source._ended.held.host
    blocks = []
    for rows in (slice(0, 50), slice(50, 89)):
        blocks.append([(host.keys[layer, :, rows], host.values[layer, :, rows]) for layer in range(model.layers)])
    plain.adopt(prompt(90)[:-1], blocks, room=8)
    assert plain.generate(prompt(90)[-1:], 8, follow_up=True, ignore_eos=True).tokens == answer
    with pytest.raises(BadRequest, match="vllm takes no KV"):
        engines.create_engine("vllm", model).adopt([1], [])
