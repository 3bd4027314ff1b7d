"""InfiniGen's speculation: what a layer's query will want, judged by the input of the layer before.

Lee et al., "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management",
OSDI 2024, 4.3: residual streams change slowly, so that a query made from them one layer early is nearly the real one.
Partial, skewed queries are scored against the partial keys; the keys within `alpha` of the maximum are wanted, at most
`budget` of the context. With grouped queries, each KV head selects by its group's summed softmax.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engines import kernels
from engines.caches.host_entries import HostEntries
from engines.memory import Pool
from engines.model import Model


class Speculation:
    """`x` [T, hidden] are rows of the input of the layer before `layer`, `positions` int64 [T] their true positions."""

    def __init__(self, model: Model, pool: Pool, budget: float, alpha: float) -> None:
        self._model, self._pool = model, pool
        self.budget, self.alpha = budget, alpha

    def most(self, entries: int) -> int:
        """How many of so many entries may be selected."""
        return max(1, math.floor(self.budget * entries + 1e-9))

    def select(self, held: HostEntries, layer: int, x: Tensor, positions: Tensor) -> Tensor:
        """For one row: slots of the host pool, int64 [G, m], ascending. Raises OutOfMemory."""
        if math.isinf(self.alpha) and self.budget == 1:
            return held.host.occupied()
        q, keys = self._compared(held, layer, x, positions)
        groups, _, entries = keys.shape
        with self._pool.transient("speculation", 2 * groups * entries * 4):
            return kernels.speculate(q[:, :, 0], keys, self._model.shape.scale, self.alpha, self.most(entries))

    def visible(self, held: HostEntries, layer: int, x: Tensor, positions: Tensor) -> Tensor:
        """For rows that follow each other, each selecting for itself: bool [G, T, n + T], what each of them sees of the
        host pool's n entries and of the rows themselves."""
        q, keys = self._compared(held, layer, x, positions)
        groups, _, entries = keys.shape
        rows = len(x)
        chosen, count = kernels.speculated(q, keys, self._model.shape.scale, self.alpha, self.most(entries))
        place = chosen.argsort(-1, descending=True).argsort(-1)
        seen = torch.ones(groups, rows, entries + rows, dtype=torch.bool, device=x.device)
        seen[:, :, :entries] = place < count.unsqueeze(-1)
        seen[:, :, entries:].tril_()
        return seen

    def _compared(self, held: HostEntries, layer: int, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Partial queries [G, group, T, p], and the partial keys [G, p, n] of what is in the host."""
        return held.partial.compared(layer, self._model.decoder.queries(layer, x, positions), held.host.filled)
