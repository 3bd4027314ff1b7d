"""Pools and blocks: accounts that add up, and blocks that are never lost, never doubled, never freed twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engines.errors import DeviceOutOfMemory, HostOutOfMemory
from engines.memory import BLOCK_TOKENS, BlockPool, Pool, blocks_for

CPU = torch.device("cpu")


def block_pool(blocks: int = 12, cap_bytes: int | None = None) -> BlockPool:
    return BlockPool(Pool("device", cap_bytes), 2, blocks, 2, 8, torch.float32, CPU)


def test_a_pool_refuses_what_exceeds_its_cap_and_charges_nothing() -> None:
    pool = Pool("device", 1000)
    pool.charge("weights", 600)
    with pytest.raises(DeviceOutOfMemory) as caught:
        pool.charge("scores", 500)
    fault = caught.value
    assert (fault.kind, fault.needed_bytes, fault.used_bytes, fault.cap_bytes) == ("scores", 500, 600, 1000)
    assert pool.bytes_by_kind == {"weights": 600}
    with pytest.raises(HostOutOfMemory):
        Pool("host", 10).charge("kv", 11)


def test_transients_count_in_the_peak_and_go_back() -> None:
    pool = Pool("device")
    pool.charge("kv", 100)
    with pool.transient("scores", 50):
        assert pool.used_bytes == 150
    assert (pool.used_bytes, pool.peak_bytes, pool.peak_by_kind["scores"]) == (100, 150, 50)
    pool.reset_peaks()
    assert (pool.peak_bytes, pool.peak_by_kind["kv"]) == (100, 100)


def test_tensors_are_charged_by_their_bytes() -> None:
    pool = Pool("device")
    tensor = pool.tensor("kv", (3, 5), torch.bfloat16, CPU)
    assert pool.used_bytes == tensor.nbytes == 30
    pool.drop("kv", tensor)
    assert pool.used_bytes == 0
    with pytest.raises(AssertionError, match="released more"):
        pool.release("kv", 1)


def test_allocation_is_all_or_nothing() -> None:
    blocks = block_pool(4)
    held = blocks.allocate(3)
    with pytest.raises(DeviceOutOfMemory):
        blocks.allocate(2)
    assert blocks.free_blocks == 1
    assert blocks.pool.used_bytes == 3 * blocks.block_bytes
    blocks.free(held)
    assert blocks.free_blocks == 4
    assert blocks.pool.used_bytes == 0


def test_the_cap_counts_before_the_arena_does() -> None:
    tight = block_pool(8, cap_bytes=block_pool().block_bytes * 2)
    tight.allocate(2)
    with pytest.raises(DeviceOutOfMemory):
        tight.allocate(1)
    assert tight.free_blocks == 6


def test_a_block_is_never_freed_twice() -> None:
    blocks = block_pool()
    held = blocks.allocate(1)
    blocks.free(held)
    with pytest.raises(AssertionError, match="freed twice"):
        blocks.free(held)


def test_a_freed_block_is_found_by_its_content_until_it_is_handed_out() -> None:
    blocks = block_pool(2)
    content = tuple(range(BLOCK_TOKENS))
    (block,) = blocks.allocate(1)
    blocks.remember(block, 0, content)
    blocks.free([block])
    assert blocks.share(0, content) == block
    assert blocks.references(block) == 1
    blocks.free([block])
    blocks.allocate(2)
    assert blocks.share(0, content) is None


def test_equal_hashes_of_other_content_are_not_shared() -> None:
    blocks = block_pool()
    (block,) = blocks.allocate(1)
    blocks.remember(block, 0, tuple(range(BLOCK_TOKENS)))
    assert blocks.share(0, tuple(range(1, BLOCK_TOKENS + 1))) is None
    assert blocks.share(1, tuple(range(BLOCK_TOKENS))) is None


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for(tokens: int, expected: int) -> None:
    assert blocks_for(tokens) == expected


class Blocks(RuleBasedStateMachine):
    """Sequences that come, share and go, against a plain count of who holds what."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.blocks = block_pool(10)
        self.held: list[list[int]] = []
        self.contents = 0

    @rule(target=tables, count=st.integers(1, 4))
    def allocate(self, count: int) -> list[int]:
        free = self.blocks.free_blocks
        try:
            table = self.blocks.allocate(count)
        except DeviceOutOfMemory:
            assert count > free
            return []
        for block in table:
            self.contents += 1
            self.blocks.remember(block, 0, (self.contents,))
        self.held.append(table)
        return table

    @rule(target=tables, table=tables)
    def share_prefix(self, table: list[int]) -> list[int]:
        shared = []
        for block in table:
            content = self.blocks._content[block]
            found = self.blocks.share(*content) if content else None
            if found is None:
                break
            shared.append(found)
        if shared:
            self.held.append(shared)
        return shared

    @rule(table=consumes(tables))
    def free(self, table: list[int]) -> None:
        for index, mine in enumerate(self.held):
            if mine is table:
                self.blocks.free(table)
                del self.held[index]
                break

    @invariant()
    def every_reference_is_held_by_a_table(self) -> None:
        for block in range(self.blocks.blocks):
            assert self.blocks.references(block) == sum(table.count(block) for table in self.held)

    @invariant()
    def free_and_used_are_everything_once(self) -> None:
        free = list(self.blocks._free)
        used = {block for table in self.held for block in table}
        assert len(free) == len(set(free))
        assert set(free) | used == set(range(self.blocks.blocks))
        assert not set(free) & used
        assert self.blocks.pool.used_bytes == len(used) * self.blocks.block_bytes


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
