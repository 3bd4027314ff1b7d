"""Paged: the vLLM paradigm. Fixed blocks of one pre-allocated pool, a block table a sequence, nothing evicted.

Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import Cache, CacheView, HeadsView, Surroundings, causal_positions, head_shares, normalised
from engines.caches.placement import Placement, padded_tables
from engines.controller import Need
from engines.events import KvState, pack_cell
from engines.memory import BLOCK_TOKENS, blocks_for
from engines.sequence import Sequence, Step
from engines.upload import upload


@dataclass
class PagedKnobs:
    """`arena_tokens`: KV slots in the arena. `prefix_sharing`: equal beginnings share blocks (section 4.4)."""

    arena_tokens: int
    prefix_sharing: bool = True


@dataclass
class _Held:
    """What the cache knows of a sequence beside its block table: hashes of its full blocks, and observed mass
    [layers, G, tokens]."""

    hashes: list[int] = field(default_factory=list)
    mass: Tensor | None = None


class PagedCache(Cache):
    observes_in_attend = True

    def __init__(self, around: Surroundings, knobs: PagedKnobs) -> None:
        super().__init__(around)
        self.knobs = knobs
        self.blocks = self.arena(knobs.arena_tokens)

    def reuse(self, sequence: Sequence) -> None:
        """Takes over the blocks of an equal prefix. The last token is always computed: its logits are needed."""
        sequence.held = _Held()
        if not self.knobs.prefix_sharing or sequence.reads_all:
            return
        parent = 0
        for start in range(0, len(sequence.tokens) - BLOCK_TOKENS, BLOCK_TOKENS):
            content = tuple(sequence.tokens[start : start + BLOCK_TOKENS])
            block = self.blocks.share(parent, content)
            if block is None:
                break
            parent = hash((parent, content))
            sequence.held.hashes.append(parent)
            sequence.table.append(block)
        sequence.computed = len(sequence.table) * BLOCK_TOKENS
        self.prefix_hit_tokens += sequence.computed

    def reserve(self, sequence: Sequence, count: int) -> None:
        missing = blocks_for(sequence.computed + count) - len(sequence.table)
        if missing > 0:
            sequence.table += self.blocks.allocate(missing)

    def begin(self, step: Step) -> None:
        self.step = step
        device = self.model.device
        if step.keep:
            slots = [(s.sequence.table[p // BLOCK_TOKENS], p % BLOCK_TOKENS) for s in step for p in _range(s)]
            where = upload(slots, torch.int64, device)
            self._block, self._offset = where[:, 0], where[:, 1]
        self.placed = None
        if step.decodes and step.keep:
            tables = padded_tables([span.sequence.table for span in step], device)
            lengths = upload([span.position + 1 for span in step], torch.int32, device)
            self.placed = Placement(self._block, self._offset, tables, lengths)
            if step.observe:
                longest = max(span.position + 1 for span in step)
                self._mass = torch.empty(len(tables), self.shape.kv_heads, longest, device=device)
                for span in step:
                    span.sequence.held.mass = torch.zeros(self.shape.layers, self.shape.kv_heads, span.position + 1)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        assert self.step is not None
        keys, values = self.blocks.keys[layer], self.blocks.values[layer]
        if (at := self.placed) is not None:
            kernels.store_kv(keys, values, at.block, at.offset, k, v)
            out = kernels.decode_attention(q, keys, values, at.tables, at.lengths, self.shape.scale)
            if self.step.observe:
                self._observe(layer, q, keys, values)
            return out.reshape(len(q), -1)
        # Rounded first, so that a chunk's queries see of its own keys what later chunks will see of them.
        k, v = k.to(keys.dtype), v.to(values.dtype)
        out = q.new_empty(q.shape)
        for span in self.step:
            own_keys, own_values = k[span.rows].transpose(0, 1), v[span.rows].transpose(0, 1)
            if span.position:
                table = torch.tensor(span.sequence.table, dtype=torch.int64, device=q.device)
                own_keys = torch.cat([kernels.gather_blocks(keys, table, span.position), own_keys], dim=1)
                own_values = torch.cat([kernels.gather_blocks(values, table, span.position), own_values], dim=1)
            out[span.rows] = kernels.flash_attention(q[span.rows], own_keys, own_values, self.shape.scale)[0]
        if self.step.keep:
            keys[self._block, :, self._offset] = k
            values[self._block, :, self._offset] = v
        return out.reshape(len(q), -1)

    def end(self, step: Step) -> None:
        for span in step:
            if step.keep:
                span.sequence.computed += span.count
                self._remember(span.sequence)
        self.step = None

    def release(self, sequence: Sequence) -> None:
        self.blocks.free(sequence.table)
        sequence.table, sequence.held, sequence.computed = [], None, 0

    def forget(self) -> None:
        self.blocks.forget_contents()
        self.prefix_hit_tokens = 0

    def kept_positions(self, sequence: Sequence, layer: int) -> Tensor:
        return causal_positions(sequence.computed, self.shape.kv_heads)

    def need(self, prompt_tokens: int, new_tokens: int) -> Need:
        return Need(blocks_for(max(prompt_tokens, prompt_tokens + new_tokens - 1)) * self.blocks.block_bytes)

    def view(self, sequence: Sequence) -> CacheView:
        n, layers = sequence.computed, self.shape.layers
        cells = np.full((layers, n), pack_cell(KvState.DEVICE, 1.0), dtype=np.uint8)
        seen = sequence.held.mass
        mass = normalised(seen.sum(1), n) if seen is not None else np.zeros((layers, n), np.float32)
        return CacheView(n, layers, cells, mass)

    def heads(self, sequence: Sequence, layer: int) -> HeadsView:
        n, groups = sequence.computed, self.shape.kv_heads
        seen = sequence.held.mass
        mass = head_shares(seen[layer], n) if seen is not None else np.zeros((groups, n), np.float32)
        return HeadsView(np.full((groups, n), KvState.DEVICE, np.uint8), mass)

    def _remember(self, sequence: Sequence) -> None:
        """Blocks that have become full get the hash of their tokens and their prefix, for others to find."""
        if not self.knobs.prefix_sharing:
            return
        hashes = sequence.held.hashes
        for index in range(len(hashes), sequence.computed // BLOCK_TOKENS):
            parent = hashes[-1] if hashes else 0
            content = tuple(sequence.tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
            hashes.append(self.blocks.remember(sequence.table[index], parent, content))

    def _observe(self, layer: int, q: Tensor, keys: Tensor, values: Tensor) -> None:
        assert self.step is not None
        assert self.placed is not None
        with self.around.clock.excluded():
            at, mass = self.placed, self._mass
            kernels.decode_attention(q, keys, values, at.tables, at.lengths, self.shape.scale, mass)
            for index, span in enumerate(self.step):
                span.sequence.held.mass[layer] = mass[index, :, : span.position + 1].cpu()


def _range(span) -> range:
    return range(span.position, span.position + span.count)
