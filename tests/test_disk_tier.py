"""The disk below a capped host pool: nothing is evicted, nothing stays behind, and a full disk is one line."""

from __future__ import annotations

import errno
import os

import pytest
import torch

import engines
from engines.disktier import DiskTier
from engines.errors import BadRequest, DiskFull
from engines.events import KvState
from engines.hostpool import HostKv, HostKvShape
from engines.memory import Pool
from tests.tiny import prompt, tiny

SHAPE = HostKvShape(2, 2, 4, torch.float32)


def pool_of(memory_tokens: int, disk: DiskTier, tokens: int) -> HostKv:
    return HostKv(Pool("host", memory_tokens * SHAPE.token_bytes), SHAPE, tokens, "counter", disk)


def entries(first: int, count: int) -> torch.Tensor:
    """Entries of one layer that tell head and position: [G, count, d]."""
    positions = torch.arange(first, first + count, dtype=torch.float32)
    return (positions + torch.tensor([[0.0], [1000.0]])).unsqueeze(2).expand(-1, -1, 4).contiguous()


def store(kv: HostKv, first: int, count: int) -> None:
    kv.make_room(count)
    for layer in range(2):
        kv.store(layer, entries(first, count) + layer * 1e5, -entries(first, count) - layer * 1e5)
    kv.advance(count, first)


def check(kv: HostKv, tokens: int) -> None:
    for layer in range(2):
        expected = entries(0, tokens) + layer * 1e5
        slots = torch.stack([torch.randperm(tokens)[: tokens // 2] for _ in range(2)])
        keys, values = torch.empty(2, slots.shape[1], 4), torch.empty(2, slots.shape[1], 4)
        kv.gather(layer, slots, keys, values)
        assert torch.equal(keys, expected.gather(1, slots.unsqueeze(2).expand(-1, -1, 4)))
        assert torch.equal(values, -keys)
        keys, values = torch.empty(2, tokens, 4), torch.empty(2, tokens, 4)
        kv.gather(layer, kv.occupied(), keys, values)
        assert torch.equal(keys, expected)
        assert torch.equal(values, -expected)
        kv.gather_run(layer, 3, tokens - 3, keys[:, : tokens - 6], values[:, : tokens - 6])
        assert torch.equal(keys[:, : tokens - 6], expected[:, 3:-3])
        assert kv.kept_positions(layer).tolist() == [list(range(tokens))] * 2


def test_entries_come_back_from_either_side_of_the_cap() -> None:
    disk = DiskTier(Pool("disk"))
    kv = pool_of(40, disk, 100)
    assert (kv.memory_slots, kv.capacity, kv.capped) == (40, 104, False)
    store(kv, 0, 35)
    store(kv, 35, 20)  # across the border
    store(kv, 55, 1)
    check(kv, 56)
    assert kv.disk_s > 0
    kv = kv.wider(300)
    store(kv, 56, 200)
    check(kv, 256)
    kv.close()
    assert disk.pool.used_bytes == kv.pool.used_bytes == 0


def test_a_pool_that_fits_touches_no_disk() -> None:
    disk = DiskTier(Pool("disk"))
    kv = pool_of(300, disk, 100)
    assert kv.capacity == kv.memory_slots == 128
    kv = kv.wider(120)
    assert disk.pool.used_bytes == 0


def test_without_a_disk_a_pool_that_cannot_grow_begins_to_evict() -> None:
    kv = HostKv(Pool("host", 100 * SHAPE.token_bytes), SHAPE, 60, "fifo")
    store(kv, 0, 64)
    wider = kv.wider(200)
    assert wider is kv
    assert kv.capped
    store(kv, 64, 1)
    assert kv.kept_positions(0)[0].tolist() == list(range(1, 65))


@pytest.mark.parametrize("engine_id", ["infinigen", "infinigen+"])
def test_answers_do_not_depend_on_the_tier(engine_id: str) -> None:
    model, _ = tiny("llama")
    whole = engines.create_engine(engine_id, model, budget=0.3)
    tiered = engines.create_engine(
        engine_id, model, budget=0.3, host_memory_bytes=50 * model.kv_bytes_per_token, disk_bytes=1 << 24
    )
    for number, ids in enumerate([prompt(120), prompt(100, seed=2), prompt(30, seed=3)]):
        a, b = (e.generate(ids, 12, follow_up=number > 0, ignore_eos=True) for e in (whole, tiered))
        assert b.outcome == "ok"
        assert a.tokens == b.tokens
        assert torch.allclose(whole.continue_logits([5, 6]), tiered.continue_logits([5, 6]), atol=1e-4)
    memory = tiered.memory()
    assert memory.host_kv_peak_bytes <= 50 * model.kv_bytes_per_token
    assert memory.disk_bytes["kv"] >= 200 * model.kv_bytes_per_token
    assert tiered.view(3).evicted_tokens == 0
    tiered.reset()
    assert tiered.memory().disk_bytes == tiered.memory().host_bytes == {}


@pytest.mark.parametrize("engine_id", ["infinigen", "infinigen+"])
def test_the_picture_shows_what_lies_on_the_disk(engine_id: str) -> None:
    model, _ = tiny("llama")
    engine = engines.create_engine(
        engine_id, model, budget=0.1, host_memory_bytes=50 * model.kv_bytes_per_token, disk_bytes=1 << 24
    )
    engine.generate(prompt(200), 4, ignore_eos=True)
    for states in (engine.view(1).cells[1] & 7, engine.heads(1, 1).states[0]):
        assert KvState.DISK not in states[:50]
        assert KvState.HOST not in states[50:]
        assert (states[50:] == KvState.DISK).sum() > 75


@pytest.mark.parametrize("engine_id", ["infinigen", "infinigen+"])
def test_a_full_disk_ends_the_request_alone(engine_id: str) -> None:
    model, _ = tiny("llama")
    token = model.kv_bytes_per_token
    engine = engines.create_engine(engine_id, model, host_memory_bytes=50 * token, disk_bytes=70 * token)
    first = engine.generate(prompt(100), 4, ignore_eos=True)
    assert first.outcome == "ok"
    too_long = engine.generate(prompt(100, seed=2), 4, follow_up=True)
    assert too_long.outcome == "error"
    assert too_long.detail.startswith("out of disk space at 204 tokens: needs ")
    assert engine.memory().disk_bytes == engine.memory().host_bytes == {}
    assert engine.generate(prompt(100), 4, ignore_eos=True).tokens == first.tokens


def test_a_disk_without_room_says_so_before_anything_is_written(monkeypatch, tmp_path) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    disk = DiskTier(Pool("disk"), tmp_path)
    with pytest.raises(DiskFull, match="out of disk space"):
        pool_of(40, disk, 100)
    assert disk.pool.used_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_the_file_has_no_name(tmp_path) -> None:
    disk = DiskTier(Pool("disk"), tmp_path)
    tensor = disk.tensor((1000,), torch.bfloat16)
    tensor.fill_(3)
    assert list(tmp_path.iterdir()) == []
    assert (tensor == 3).all()
    disk.drop(tensor)


def test_bad_knobs_are_refused(tmp_path) -> None:
    model, _ = tiny("llama")
    with pytest.raises(BadRequest, match="disk_bytes"):
        engines.create_engine("infinigen", model, disk_bytes=0)
    with pytest.raises(BadRequest, match="no folder"):
        engines.create_engine("infinigen", model, disk_folder=tmp_path / "gone")
