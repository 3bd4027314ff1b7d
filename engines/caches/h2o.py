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
from engines.anchors import Anchors
from engines.caches.base import Cache, CacheView, HeadsView, Surroundings
from engines.caches.entries import Entries, pick
from engines.caches.placement import Placement, padded_tables
from engines.controller import Need
from engines.errors import BadRequest, DeviceOutOfMemory
from engines.importance import column_mass, tile_bytes
from engines.memory import BLOCK_TOKENS, blocks_for
from engines.sequence import Sequence, Span, Step
from engines.upload import upload
from engines.words import Words

SAMPLED_EVERY = 8
PIECE_BLOCKS = 4  # less would be no piece worth its step
DECODED_PIECE = 512  # so many decoded tokens count as one


@dataclass
class H2OKnobs:
    """`budget`: share of the context's KV entries that stay (1.0 evicts nothing), or `budget_tokens` of them however
    long the context. `heavy_share` of the budget goes to heavy hitters, the rest to the most recent tokens.

    `prefill`: "eager", the paper's, and "flash" take a prompt at once; "chunked" takes it in pieces and cuts back after
    each, so that memory is flat in its length; "chunked-exact" cuts at the prompt's end only. `scoring`: "eager" needs
    all scores of a piece at once; "flash" recomputes them from log-sum-exps; "sampled" does so for every eighth row.
    `anchors`: the share of the budget for protected positions (see engines.anchors); what surprised the model is known
    only after a piece's last layer, so with anchors the cut waits for it."""

    budget: float
    arena_tokens: int
    heavy_share: float = 0.5
    prefill: str = "eager"
    scoring: str = "eager"
    anchors: float = 0.0
    budget_tokens: int | None = None


class _Held(Entries):
    """A sequence's entries, its anchors, and what a typical key received: `typical` float32 [layers, G], the sum over
    all pieces of the median among the keys held before; `born` and `since` are the pieces' first positions and what
    that sum was when each had been read."""

    def __init__(self, cache: H2OCache, sequence: Sequence) -> None:
        shape, device = cache.shape, cache.model.device
        super().__init__(cache.blocks, sequence.table, shape.layers, shape.kv_heads, device)
        self.anchors = Anchors(sequence.turns)
        self.typical = torch.zeros(shape.layers, shape.kv_heads, device=device)
        self.born: list[int] = []
        self.since: list[Tensor] = []

    def begin_piece(self, position: int) -> None:
        self.born.append(position)
        self.since.append(self.typical.clone())

    def note(self, layer: int, received: Tensor) -> None:
        """What the keys [G, held] from before the piece received of all its queries."""
        if received.shape[-1]:
            self.typical[layer] += received.median(-1).values
            self.since[-1][layer] = self.typical[layer]

    def beyond_typical(self, layer: int | slice, positions: Tensor, mass: Tensor) -> Tensor:
        """What keys [..., G, n] received beyond what the typical key did of all the pieces after their own."""
        born = upload(self.born, torch.int64, positions.device)
        piece = (torch.searchsorted(born, positions.contiguous(), right=True) - 1).clamp_min(0)
        since = torch.stack([then[layer] for then in self.since], -1)
        return mass - (self.typical[layer].unsqueeze(-1) - since.gather(-1, piece))

    def recent(self, heavy_share: float, slots: int | None = None) -> int:
        room = (slots or self.slots) - 1
        return room - int(room * heavy_share)


class H2OCache(Cache):
    def __init__(self, around: Surroundings, knobs: H2OKnobs) -> None:
        super().__init__(around)
        if not 0 < knobs.budget <= 1:
            raise BadRequest(f"budget {knobs.budget:g} is outside (0, 1]")
        if not 0 <= knobs.anchors < 1:
            raise BadRequest(f"the anchors' share {knobs.anchors:g} is outside [0, 1)")
        if knobs.budget_tokens is not None and knobs.budget_tokens < BLOCK_TOKENS:
            raise BadRequest(f"budget_tokens {knobs.budget_tokens} is less than a block of {BLOCK_TOKENS}")
        self.knobs = knobs
        self.one_shot = not knobs.prefill.startswith("chunked")
        self.learns = knobs.anchors > 0
        # Cut after the last layer instead of layer by layer, either of each piece or of the whole prompt.
        self._cut_late = self.learns or knobs.prefill == "chunked-exact"
        self._bounded = knobs.prefill == "chunked"
        self._keeps_all = knobs.budget == 1 and knobs.budget_tokens is None
        self.blocks = self.arena(knobs.arena_tokens)
        self._words = Words(self.model.tokenizer if self.learns else None, self.shape.vocab)
        self._scores: Tensor | None = None

    def budget_blocks(self, context: int) -> int:
        """Blocks that a context of this many tokens may keep: the nearest whole number, at least one."""
        if self.knobs.budget_tokens is not None:
            return min(blocks_for(self.knobs.budget_tokens), blocks_for(context + 1))
        if self._keeps_all:
            return blocks_for(context + 1)
        return max(1, round(self.knobs.budget * context / BLOCK_TOKENS))

    def piece(self, sequence: Sequence) -> int:
        """With a late cut, a piece lies in memory beside what is kept: together they are no more than the budget."""
        return self._piece(len(sequence.tokens))

    def _piece(self, whole: int) -> int:
        if not (self._bounded and self._cut_late):
            return whole
        return min(whole, max(PIECE_BLOCKS, self.budget_blocks(whole) // 3) * BLOCK_TOKENS)

    def reserve(self, sequence: Sequence, count: int) -> None:
        """Prefill sets the budget; decode never grows it (unless nothing is to be evicted)."""
        if sequence.pending == 1 and sequence.table and not self._keeps_all:
            return
        context, whole = sequence.computed + count, len(sequence.tokens)
        if self._cut_late:
            wanted = blocks_for(self._count(sequence) + count + 1)
        else:  # a piece of a prompt that will be longer may keep what the whole of it may, but not more than it has
            wanted = min(self.budget_blocks(whole), max(self.budget_blocks(context), blocks_for(context + 1)))
        if (missing := wanted - len(sequence.table)) > 0:
            taken = self.blocks.allocate(missing)
            sequence.table += taken
            try:
                if sequence.held is None:
                    sequence.held = _Held(self, sequence)
                else:
                    sequence.held.resize()
            except DeviceOutOfMemory:
                del sequence.table[-missing:]
                self.blocks.free(taken)
                raise

    def begin(self, step: Step) -> None:
        self.step, self.placed = step, None
        if self._bounded and step.keep:
            for span in step:
                if not step.decodes or span.position - span.sequence.held.born[-1] >= DECODED_PIECE:
                    span.sequence.held.begin_piece(span.position)
        if step.decodes and step.keep:
            self._place_decodes(step)
            return
        if self.knobs.scoring != "eager":
            return
        # The paper's prefill holds every score of a layer at once; it is allocated for the step and charged.
        rows, context = max((span.count, self._count(span.sequence) + span.count) for span in step)
        self._scores = self.around.device.tensor(
            "scores", (self.shape.heads, rows, context), torch.float32, self.model.device
        )

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        assert self.step is not None
        keys, values = self.blocks.keys[layer], self.blocks.values[layer]
        if (at := self.placed) is not None:
            assert at.mass is not None
            kernels.store_kv(keys, values, at.block[layer], at.offset[layer], k, v)
            scale, mass = self.shape.scale, at.mass[layer]
            out = kernels.decode_attention(q, keys, values, at.tables, at.lengths, scale, mass)
            return out.reshape(len(q), -1)
        out = torch.cat([self._prefill(span, layer, q[span.rows], k[span.rows], v[span.rows]) for span in self.step])
        return out.reshape(len(q), -1)

    def learn(self, span: Span, surprisal: Tensor) -> None:
        span.sequence.held.anchors.learn(span.position + 1, surprisal)

    def end(self, step: Step) -> None:
        decodes = self.placed is not None
        for index, span in enumerate(step):
            if not step.keep:
                continue
            if self.placed is not None:
                assert self.placed.mass is not None
                self._evict_one(span, self.placed.mass[:, index])
            span.sequence.computed += span.count
            if not decodes or span.sequence.held.slots > BLOCK_TOKENS * self.budget_blocks(len(span.sequence.tokens)):
                self._settle(span.sequence)
        self._drop_scores()
        self.step = None

    def abort(self, step: Step) -> None:
        self._drop_scores()
        super().abort(step)

    def release(self, sequence: Sequence) -> None:
        if sequence.held is not None:
            sequence.held.close()
        self.blocks.free(sequence.table)
        sequence.table, sequence.held, sequence.computed = [], None, 0

    def kept_positions(self, sequence: Sequence, layer: int) -> Tensor:
        return sequence.held.kept(layer)

    def need(self, prompt_tokens: int, new_tokens: int) -> Need:
        """The most is held at the end of the prompt's last pieces: what is kept, a piece beside it, and a layer's worth
        of both with the scores of the piece."""
        whole, budget = prompt_tokens, self.budget_blocks(prompt_tokens)
        rows = self._piece(whole)
        kept = max(PIECE_BLOCKS, budget - blocks_for(rows)) * BLOCK_TOKENS if rows < whole else 0
        length = min(whole, kept + rows)
        blocks = max(budget, blocks_for(length + 1)) if self._cut_late else budget
        if self._keeps_all:
            length, blocks = whole, blocks_for(whole + max(new_tokens, 1))
        if self.knobs.scoring == "eager":
            scores = 4 * self.shape.heads * rows * length
        else:
            scores = tile_bytes(self.shape.heads, self.shape.kv_heads, rows, length, self.model.device)
        importance = Entries.size_bytes(self.shape.layers, self.shape.kv_heads, blocks)
        return Need(blocks * self.blocks.block_bytes + importance + length * self.layer_token_bytes + scores)

    def view(self, sequence: Sequence) -> CacheView:
        return sequence.held.view(sequence.computed, self._anchors(sequence))

    def heads(self, sequence: Sequence, layer: int) -> HeadsView:
        return sequence.held.heads(layer, sequence.computed, self._anchors(sequence))

    def _anchors(self, sequence: Sequence) -> Tensor:
        """bool [tokens]."""
        return sequence.held.anchors.covers(torch.arange(sequence.computed, device=self.model.device))

    def _count(self, sequence: Sequence) -> int:
        return sequence.held.count if sequence.held is not None else 0

    def _place_decodes(self, step: Step) -> None:
        """Where each new token's entry goes, in all layers at once: [layers, B, G]."""
        layers, groups, device = self.shape.layers, self.shape.kv_heads, self.model.device
        tables = padded_tables([span.sequence.table for span in step], device)
        taken = [span.sequence.held.take(span.position, row) for span, row in zip(step, tables, strict=True)]
        lengths = [span.sequence.held.count + 1 for span in step]
        blocks, offsets = zip(*taken, strict=True)
        mass = torch.empty(layers, len(tables), groups, max(lengths), device=device)
        counted = upload(lengths, torch.int32, device)
        self.placed = Placement(torch.stack(blocks, 1), torch.stack(offsets, 1), tables, counted, mass)

    def _evict_one(self, span: Span, received: Tensor) -> None:
        """Adds this step's attention to the running mass [layers, G, slots]; if the budget is full, the smallest entry
        that is neither recent nor an anchor gives its slot up, in each layer and head."""
        held = span.sequence.held
        held.count += 1
        held.mass[..., : held.count] += received[..., : held.count]
        if self._bounded:
            held.typical += received[..., : held.count - 1].median(-1).values
        if held.count < held.slots:
            held.hole.fill_(held.count)
            return
        if self._keeps_all:
            return
        oldest_recent = span.position + 1 - held.recent(self.knobs.heavy_share)
        spared = held.positions >= oldest_recent
        if self.learns:
            spared |= held.anchors.covers(held.positions)
        held.drop(self._worth(held, slice(None), held.positions, held.mass).masked_fill(spared, torch.inf).argmin(-1))

    def _prefill(self, span: Span, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of a prompt, a piece of one, or a later turn over what is kept and itself; then the cut to the
        budget: the layer's whole KV lives only within this call, unless the cut comes late. q and out [T, H, d]."""
        held = span.sequence.held
        before = self._count(span.sequence)
        keys, values = self.to_storage(k), self.to_storage(v)
        mass = torch.zeros(self.shape.kv_heads, before + span.count, device=q.device)
        positions = torch.arange(span.position, span.position + span.count, device=q.device)
        positions = positions.expand(self.shape.kv_heads, -1)
        if before:
            old_keys, old_values, old_positions, mass[:, :before] = held.of(layer)
            keys, values = torch.cat([old_keys, keys], 1), torch.cat([old_values, values], 1)
            positions = torch.cat([old_positions, positions], 1)
        with self.around.device.transient("layer KV", keys.nbytes + values.nbytes):
            out, received = self._attention(q, keys, values)
            if received is not None:
                mass += received
                if self._bounded:
                    held.note(layer, received[:, :before])
                if not self._cut_late:
                    kept = self._chosen(held, layer, positions, mass, held.slots)
                    keys, values = pick(keys, kept), pick(values, kept)
                    positions, mass = positions.gather(1, kept), mass.gather(1, kept)
                held.store(layer, keys, values, positions, mass)
        return out

    def _attention(self, q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """q [T, H, d] over keys and values [G, n, d] -> (out [T, H, d], mass [G, n], or None if nothing is kept)."""
        scale, keep = self.shape.scale, self.step is not None and self.step.keep
        if self._scores is not None:
            size = self.shape.heads * len(q) * keys.shape[1]
            scores = self._scores.view(-1)[:size].view(self.shape.heads, len(q), keys.shape[1])
            out, mass = kernels.eager_attention(q.transpose(0, 1), keys, values, scores, scale)
            return out.transpose(0, 1), mass if keep else None
        out, lse = kernels.flash_attention(q, keys, values, scale)
        if not keep:
            return out, None
        every = SAMPLED_EVERY if self.knobs.scoring == "sampled" else 1
        size = tile_bytes(q.shape[1], len(keys), len(q), keys.shape[1], q.device)
        with self.around.device.transient("score tiles", size):
            return out, column_mass(q, keys, lse, scale, every)

    def _chosen(self, held: _Held, layer: int, positions: Tensor, mass: Tensor, slots: int) -> Tensor:
        """Indices int64 [G, kept], ascending, of the entries [G, n] that stay: anchors, the heaviest, the most recent;
        all of them while there is room. One slot stays free for the next token."""
        total, room = positions.shape[1], slots - 1
        if total <= room:
            return torch.arange(total, device=mass.device).expand(len(mass), -1)
        recent = held.recent(self.knobs.heavy_share, slots)
        worth = self._worth(held, layer, positions, mass)
        if self.learns:
            worth = worth.masked_fill(held.anchors.covers(positions), torch.inf)
        heavy = worth[:, : total - recent].topk(room - recent, dim=1).indices.sort(dim=1).values
        tail = torch.arange(total - recent, total, device=mass.device).expand(len(mass), -1)
        return torch.cat([heavy, tail], dim=1)

    def _worth(self, held: _Held, layer: int | slice, positions: Tensor, mass: Tensor) -> Tensor:
        """What entries are ranked by. The paper's is the mass itself. Where some keys were seen by many pieces and some
        by few, it is what they received beyond the typical key: none is worth more merely for being old."""
        return held.beyond_typical(layer, positions, mass) if self._bounded else mass

    def _settle(self, sequence: Sequence) -> None:
        """After the last layer of a piece: anchors are chosen, and what is beyond the budget goes, with its blocks."""
        held = sequence.held
        ended = sequence.pending == 0
        if not self._cut_late or (self.knobs.prefill == "chunked-exact" and not ended):
            return
        blocks = budget = self.budget_blocks(len(sequence.tokens))
        if not ended:  # room for the next piece
            blocks = max(PIECE_BLOCKS, blocks - blocks_for(min(sequence.pending, self.piece(sequence))))
        if self._keeps_all:
            blocks = len(sequence.table)
        blocks = min(blocks, blocks_for(held.count + 1), len(sequence.table))
        slots = blocks * BLOCK_TOKENS
        if self.learns:
            heavy = slots - 1 - held.recent(self.knobs.heavy_share, slots)
            held.anchors.turns = sequence.turns
            words = self._words.of(sequence.tokens[: sequence.computed])
            held.anchors.choose(words, min(int(self.knobs.anchors * budget * BLOCK_TOKENS), heavy))
        for layer in range(self.shape.layers):
            keys, values, positions, mass = held.of(layer)
            kept = self._chosen(held, layer, positions, mass, slots)
            positions, mass = positions.gather(1, kept), mass.gather(1, kept)
            held.store(layer, pick(keys, kept), pick(values, kept), positions, mass)
        self.blocks.free(sequence.table[blocks:])
        del sequence.table[blocks:]
        held.resize()

    def _drop_scores(self) -> None:
        if self._scores is not None:
            self.around.device.drop("scores", self._scores)
            self._scores = None
