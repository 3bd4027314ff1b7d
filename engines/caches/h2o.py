"""H2O: static sparsification. Heavy hitters and recent tokens stay; all else is evicted, and its memory freed.

Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models", NeurIPS 2023.

Each layer and KV head chooses for itself, so slot s of a block holds another position in every head; `positions` says
which. Keys keep the rotation of their true position. With grouped queries, mass is summed over the group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import Cache, CacheView, HeadsView, Surroundings, head_shares, normalised
from engines.errors import BadRequest
from engines.events import KvState
from engines.memory import BLOCK_TOKENS, BlockPool, blocks_for
from engines.sequence import Sequence, Span, Step


@dataclass
class H2OKnobs:
    """`budget`: share of the context's KV entries that stay (1.0 evicts nothing). `heavy_share` of the budget goes to
    heavy hitters, the rest to the most recent tokens. `prefill`: "eager", the paper's, needs all scores at once."""

    budget: float
    arena_tokens: int
    heavy_share: float = 0.5
    prefill: str = "eager"


@dataclass
class _Held:
    """One sequence's entries, `count` in every layer and head of `slots` slots. `positions` int64 [layers, G, slots]
    (-1: empty), `mass` float32 the same shape, `hole` int64 [layers, G]: the slot that the next token takes."""

    slots: int
    count: int
    positions: Tensor
    mass: Tensor
    hole: Tensor

    def recent(self, heavy_share: float) -> int:
        return self.slots - 1 - int((self.slots - 1) * heavy_share)


class H2OCache(Cache):
    one_shot = True

    def __init__(self, around: Surroundings, knobs: H2OKnobs) -> None:
        super().__init__(around)
        if not 0 < knobs.budget <= 1:
            raise BadRequest(f"budget {knobs.budget:g} is outside (0, 1]")
        self.knobs = knobs
        shape, model = self.shape, self.model
        blocks = blocks_for(knobs.arena_tokens)
        self.blocks = BlockPool(
            around.device, shape.layers, blocks, shape.kv_heads, shape.head_dim, model.dtype, model.device
        )
        self._scores: Tensor | None = None

    def budget_blocks(self, context: int) -> int:
        """Blocks that a context of this many tokens may keep: the nearest whole number, at least one."""
        if self.knobs.budget == 1:
            return blocks_for(context + 1)
        return max(1, round(self.knobs.budget * context / BLOCK_TOKENS))

    def reserve(self, sequence: Sequence, count: int) -> None:
        """Prefill sets the budget; decode never grows it (unless nothing is to be evicted)."""
        if count > 1 or not sequence.table or self.knobs.budget == 1:
            missing = self.budget_blocks(sequence.computed + count) - len(sequence.table)
            if missing > 0:
                sequence.table += self.blocks.allocate(missing)
                self._grow(sequence)

    def begin(self, step: Step) -> None:
        self.step = step
        if step.decodes and step.keep:
            self._place_decodes(step)
            return
        # The paper's prefill holds every score of a layer at once; it is allocated for the step and charged.
        rows, context = max((span.count, self._count(span.sequence) + span.count) for span in step)
        self._scores = self.around.device.tensor(
            "scores", (self.shape.heads, rows, context), torch.float32, self.model.device
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        assert self.step is not None
        keys, values = self.blocks.keys[layer], self.blocks.values[layer]
        if self.step.decodes and self.step.keep:
            kernels.store_kv(keys, values, self._block[layer], self._offset[layer], k, v)
            out = kernels.decode_attention(
                q, keys, values, self._tables, self._lengths, self.shape.scale, self._mass[layer]
            )
            return out.reshape(len(q), -1)
        out = torch.cat([self._prefill(span, layer, q[span.rows], k[span.rows], v[span.rows]) for span in self.step])
        return out.reshape(len(q), -1)

    def end(self, step: Step) -> None:
        if step.decodes and step.keep:
            for index, span in enumerate(step):
                self._evict_one(span, self._mass[:, index])
        else:
            self._drop_scores()
        for span in step:
            if step.keep:
                span.sequence.computed += span.count
        self.step = None

    def abort(self, step: Step) -> None:
        self._drop_scores()
        super().abort(step)

    def release(self, sequence: Sequence) -> None:
        self.blocks.free(sequence.table)
        sequence.table, sequence.held, sequence.computed = [], None, 0

    def kept_positions(self, sequence: Sequence, layer: int) -> Tensor:
        positions = sequence.held.positions[layer].sort(-1).values
        return positions[:, positions.shape[1] - sequence.held.count :].cpu()

    def view(self, sequence: Sequence) -> CacheView:
        held, n, layers = sequence.held, sequence.computed, self.shape.layers
        row = torch.arange(layers, device=held.positions.device).view(-1, 1, 1) * n
        kept = held.positions >= 0
        flat = (held.positions + row)[kept]
        heads = torch.bincount(flat, minlength=layers * n).view(layers, n)
        mass = torch.bincount(flat, held.mass[kept].double(), minlength=layers * n).view(layers, n)
        share = (heads * 31 / self.shape.kv_heads).round().to(torch.uint8) << 3
        cells = torch.where(heads > 0, int(KvState.DEVICE), int(KvState.EVICTED)).to(torch.uint8) | share
        return CacheView(n, layers, cells.cpu().numpy(), normalised(mass, n), evicted_tokens=float(n - held.count))

    def heads(self, sequence: Sequence, layer: int) -> HeadsView:
        held, n, groups = sequence.held, sequence.computed, self.shape.kv_heads
        positions, kept = held.positions[layer], held.positions[layer] >= 0
        where = (positions + torch.arange(groups, device=positions.device).unsqueeze(1) * n)[kept]
        states = torch.full((groups * n,), int(KvState.EVICTED), dtype=torch.uint8, device=positions.device)
        mass = torch.zeros(groups * n, device=positions.device)
        states[where], mass[where] = int(KvState.DEVICE), held.mass[layer][kept]
        return HeadsView(states.view(groups, n).cpu().numpy(), head_shares(mass.view(groups, n), n))

    def _grow(self, sequence: Sequence) -> None:
        """The bookkeeping of a sequence, widened to its blocks."""
        slots = len(sequence.table) * BLOCK_TOKENS
        layers, groups, device = self.shape.layers, self.shape.kv_heads, self.model.device
        positions = torch.full((layers, groups, slots), -1, dtype=torch.int64, device=device)
        mass = torch.zeros(layers, groups, slots, device=device)
        hole = torch.zeros(layers, groups, dtype=torch.int64, device=device)
        count = 0
        if (old := sequence.held) is not None:
            positions[..., : old.slots], mass[..., : old.slots] = old.positions, old.mass
            hole, count = old.hole, old.count
        sequence.held = _Held(slots, count, positions, mass, hole)

    def _count(self, sequence: Sequence) -> int:
        return sequence.held.count if sequence.held is not None else 0

    def _place_decodes(self, step: Step) -> None:
        """Where each new token's entry goes, in all layers at once: [layers, B, G]."""
        layers, groups, device = self.shape.layers, self.shape.kv_heads, self.model.device
        blocks, offsets, lengths = [], [], []
        for span in step:
            held = span.sequence.held
            table = torch.tensor(span.sequence.table, dtype=torch.int64, device=device)
            blocks.append(table[held.hole // BLOCK_TOKENS])
            offsets.append(held.hole % BLOCK_TOKENS)
            held.positions.scatter_(2, held.hole.unsqueeze(-1), span.position)
            held.mass.scatter_(2, held.hole.unsqueeze(-1), 0.0)
            lengths.append(held.count + 1)
        self._block, self._offset = torch.stack(blocks, 1), torch.stack(offsets, 1)
        self._lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        width = max(len(span.sequence.table) for span in step)
        tables = [span.sequence.table + [0] * (width - len(span.sequence.table)) for span in step]
        self._tables = torch.tensor(tables, dtype=torch.int32, device=device)
        self._mass = torch.empty(layers, len(tables), groups, max(lengths), device=device)

    def _evict_one(self, span: Span, received: Tensor) -> None:
        """Adds this step's attention to the running mass [layers, G, slots]; if the budget is full, the smallest entry
        that is not recent gives its slot up, in each layer and head."""
        held = span.sequence.held
        held.count += 1
        held.mass[..., : held.count] += received[..., : held.count]
        if held.count < held.slots:
            held.hole.fill_(held.count)
            return
        if self.knobs.budget == 1:
            return
        oldest_recent = span.position + 1 - held.recent(self.knobs.heavy_share)
        candidates = held.mass.masked_fill(held.positions >= oldest_recent, torch.inf)
        held.hole = candidates.argmin(-1)
        held.positions.scatter_(2, held.hole.unsqueeze(-1), -1)
        held.count -= 1

    def _prefill(self, span: Span, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Eager attention of a prompt (or of a later turn over what is kept), then the cut to the budget: the layer's
        whole KV lives only within this call. q [T, H, d] -> [T, H, d]."""
        held = span.sequence.held
        before = self._count(span.sequence)
        keys, values = self.to_storage(k), self.to_storage(v)
        mass = torch.zeros(self.shape.kv_heads, before + span.count, device=q.device)
        positions = torch.arange(span.position, span.position + span.count, device=q.device)
        positions = positions.expand(self.shape.kv_heads, -1)
        if before:
            order = held.positions[layer].argsort(-1)[:, -before:]
            table = torch.tensor(span.sequence.table, dtype=torch.int64, device=q.device)
            keys = torch.cat([_pick(kernels.gather_blocks(self.blocks.keys[layer], table, held.slots), order), keys], 1)
            values = torch.cat(
                [_pick(kernels.gather_blocks(self.blocks.values[layer], table, held.slots), order), values], 1
            )
            positions = torch.cat([held.positions[layer].gather(1, order), positions], 1)
            mass[:, :before] = held.mass[layer].gather(1, order)
        assert self._scores is not None
        size = self.shape.heads * span.count * keys.shape[1]
        scores = self._scores.view(-1)[:size].view(self.shape.heads, span.count, keys.shape[1])
        with self.around.device.transient("layer KV", keys.nbytes + values.nbytes):
            out, received = kernels.eager_attention(q.transpose(0, 1), keys, values, scores, self.shape.scale)
            if self.step is not None and self.step.keep:
                self._store(span, layer, keys, values, positions, mass.add_(received))
        return out.transpose(0, 1)

    def _store(self, span: Span, layer: int, keys: Tensor, values: Tensor, positions: Tensor, mass: Tensor) -> None:
        """Keeps the heaviest and the most recent of keys, values [G, n, d]; one slot stays free for the next token."""
        held = span.sequence.held
        total, room = keys.shape[1], held.slots - 1
        if total > room:
            recent = held.recent(self.knobs.heavy_share)
            heavy = mass[:, : total - recent].topk(room - recent, dim=1).indices.sort(dim=1).values
            tail = torch.arange(total - recent, total, device=mass.device).expand(len(mass), -1)
            kept = torch.cat([heavy, tail], dim=1)
            keys, values = _pick(keys, kept), _pick(values, kept)
            positions, mass = positions.gather(1, kept), mass.gather(1, kept)
        count = keys.shape[1]
        held.positions[layer].fill_(-1)
        held.positions[layer, :, :count] = positions
        held.mass[layer, :, :count] = mass
        held.hole[layer] = count
        if layer == self.shape.layers - 1:
            held.count = count
        table = torch.tensor(span.sequence.table, dtype=torch.int64, device=keys.device)
        for arena, rows in ((self.blocks.keys[layer], keys), (self.blocks.values[layer], values)):
            padded = torch.nn.functional.pad(rows, (0, 0, 0, held.slots - count))
            arena[table] = padded.view(len(rows), len(table), BLOCK_TOKENS, -1).transpose(0, 1)

    def _drop_scores(self) -> None:
        if self._scores is not None:
            self.around.device.drop("scores", self._scores)
            self._scores = None


def _pick(rows: Tensor, index: Tensor) -> Tensor:
    """rows [G, n, d] at index [G, m] -> [G, m, d]."""
    heads = torch.arange(len(rows), device=rows.device).unsqueeze(1)
    return rows[heads, index]
