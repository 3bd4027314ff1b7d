"""Memory by tier: `Pool` keeps account under a cap, `BlockPool` hands out the fixed blocks of one arena.

Every tensor that counts is charged to a pool: weights, KV blocks, partial keys, transients such as eager scores. A pool
answers what an engine costs on a machine of its own, and refuses what would not fit there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from engines.errors import DeviceOutOfMemory, DiskFull, HostOutOfMemory, OutOfMemory
from engines.kernels import allocate

BLOCK_TOKENS = 16


class Pool:
    """The bytes of one tier ("device", "host" or "disk") by kind, with their peaks, under an optional cap."""

    def __init__(self, tier: str, cap_bytes: int | None = None) -> None:
        self.tier, self.cap_bytes = tier, cap_bytes
        self.bytes_by_kind: dict[str, int] = {}
        self.peak_bytes = 0
        self.peak_by_kind: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(self.bytes_by_kind.values())

    def charge(self, kind: str, size_bytes: int) -> None:
        """Raises the tier's OutOfMemory, and charges nothing, when the cap would be exceeded."""
        used = self.used_bytes
        if self.cap_bytes is not None and used + size_bytes > self.cap_bytes:
            raise self.fault(kind, size_bytes, used)
        self.bytes_by_kind[kind] = self.bytes_by_kind.get(kind, 0) + size_bytes
        self.peak_bytes = max(self.peak_bytes, used + size_bytes)
        self.peak_by_kind[kind] = max(self.peak_by_kind.get(kind, 0), self.bytes_by_kind[kind])

    def fault(self, kind: str, size_bytes: int, used_bytes: int) -> OutOfMemory:
        """Without a cap, what is in use is all that there was."""
        tiers = {"device": DeviceOutOfMemory, "host": HostOutOfMemory, "disk": DiskFull}
        return tiers[self.tier](kind, size_bytes, used_bytes, used_bytes if self.cap_bytes is None else self.cap_bytes)

    def release(self, kind: str, size_bytes: int) -> None:
        assert self.bytes_by_kind.get(kind, 0) >= size_bytes, f"{kind}: released more than was charged"
        self.bytes_by_kind[kind] -= size_bytes

    def tensor(self, kind: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
        """A tensor of zeros whose bytes are charged; give it back with `drop`."""
        size = dtype.itemsize
        for extent in shape:
            size *= extent
        self.charge(kind, size)
        pinned = self.tier == "host" and torch.cuda.is_available()
        try:
            return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned)
        except Exception as fault:
            self.release(kind, size)
            # What torch raises when a device or the machine is full; CPU allocators raise a plain RuntimeError.
            if isinstance(fault, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(fault):
                raise self.fault(kind, size, self.used_bytes) from fault
            raise

    def drop(self, kind: str, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self.release(kind, tensor.nbytes)

    @contextmanager
    def transient(self, kind: str, size_bytes: int) -> Iterator[None]:
        """Charges bytes that live only within the block, such as one layer's KV during a one-shot prefill."""
        self.charge(kind, size_bytes)
        try:
            yield
        finally:
            self.release(kind, size_bytes)

    def reset_peaks(self) -> None:
        self.peak_bytes = self.used_bytes
        self.peak_by_kind = dict(self.bytes_by_kind)


class BlockPool:
    """Fixed blocks of one pre-allocated arena: `keys` and `values` are [layers, blocks, kv_heads, 16, head_dim].

    Blocks are ref-counted, so that equal prefixes share them (Kwon et al., SOSP 2023, 4.3 and 4.4). A freed block
    keeps its content's hash until it is handed out again, and can be taken back from the free list by that hash.
    """

    def __init__(
        self,
        pool: Pool,
        layers: int,
        blocks: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, blocks, kv_heads, BLOCK_TOKENS, head_dim)
        # Zeros, as slots beyond a length are multiplied by a probability of 0, and garbage may be NaN.
        self.keys = allocate(shape, dtype, device)
        self.values = allocate(shape, dtype, device)
        self.pool = pool
        self.blocks = blocks
        self.block_bytes = 2 * layers * kv_heads * BLOCK_TOKENS * head_dim * dtype.itemsize
        self._free = deque(range(blocks))
        self._refs = [0] * blocks
        self._content: list[tuple[int, tuple[int, ...]] | None] = [None] * blocks
        self._by_content: dict[tuple[int, tuple[int, ...]], int] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        return self.blocks - len(self._free)

    @property
    def shared_blocks(self) -> int:
        return sum(refs > 1 for refs in self._refs)

    def references(self, block: int) -> int:
        return self._refs[block]

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with one reference each. Raises DeviceOutOfMemory, and takes none, when they do not fit."""
        if count > len(self._free):
            used, arena = self.pool.used_bytes, len(self._free) * self.block_bytes
            # The arena is cut to the cap when it is made, so the cap is what a person can do something about.
            raise DeviceOutOfMemory("KV blocks", count * self.block_bytes, used, self.pool.cap_bytes or used + arena)
        self.pool.charge("kv", count * self.block_bytes)
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            assert self._refs[block] == 0
            self._refs[block] = 1
            self._forget(block)
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        """Drops one reference a block. The last of a sequence goes first to the back, so that the beginnings of
        prefixes stay findable longest."""
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} freed twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free.append(block)
                self.pool.release("kv", self.block_bytes)

    def remember(self, block: int, parent: int, tokens: tuple[int, ...]) -> int:
        """Names a full block's content: its token ids after the prefix with hash `parent`. Returns its own hash."""
        content = (parent, tokens)
        if content not in self._by_content:
            self._forget(block)
            self._content[block] = content
            self._by_content[content] = block
        return hash(content)

    def share(self, parent: int, tokens: tuple[int, ...]) -> int | None:
        """The block that holds these tokens after that prefix, with one more reference, or None."""
        block = self._by_content.get((parent, tokens))
        if block is None:
            return None
        if self._refs[block] == 0:
            self.pool.charge("kv", self.block_bytes)
            self._free.remove(block)
        self._refs[block] += 1
        return block

    def forget_contents(self) -> None:
        """No later request shares what was cached before."""
        for block in list(self._by_content.values()):
            self._forget(block)

    def _forget(self, block: int) -> None:
        content = self._content[block]
        if content is not None:
            del self._by_content[content]
            self._content[block] = None


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
