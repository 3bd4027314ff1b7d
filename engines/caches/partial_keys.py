"""InfiniGen's partial key cache: every key in the few skewed dimensions in which queries have most of their energy.

Lee et al., "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management",
OSDI 2024, 4.3. It stays on the device, and says which of the entries in host memory a query will want.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engines.hostpool import HostKv, HostKvShape
from engines.memory import Pool
from engines.upload import upload

KIND = "partial keys"
WEIGHTS_KIND = "partial weights"


class PartialKeys:
    """Of one sequence: `keys` [layers, G, p, capacity], slot for slot of its host pool; and what makes them, `columns`
    [layers, G, d, p] of the skewing matrix, in the dtype that queries are computed in."""

    def __init__(
        self, pool: Pool, shape: HostKvShape, width: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`width` is p. Raises OutOfMemory, and takes nothing, when there is no room."""
        self._pool = pool
        heads = shape.layers, shape.kv_heads
        self.keys = pool.tensor(KIND, (*heads, width, capacity), shape.dtype, device)
        try:
            self.columns = pool.tensor(WEIGHTS_KIND, (*heads, shape.head_dim, width), dtype, device)
        except Exception:
            pool.drop(KIND, self.keys)
            raise

    @staticmethod
    def size_bytes(shape: HostKvShape, width: int, capacity: int, dtype: torch.dtype) -> int:
        heads = shape.layers * shape.kv_heads
        return heads * width * (capacity * shape.dtype.itemsize + shape.head_dim * dtype.itemsize)

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    def choose(self, layer: int, q: Tensor, keys: Tensor, rotation: Tensor) -> None:
        """Of the layer's skewing matrix [G, d, d], the columns with the largest sum of |q| + |k| over a prompt: q
        [T, H, d], keys [G, T, d]."""
        weight = skewed(q, rotation).abs().sum((1, 2)) + torch.matmul(keys.float(), rotation).abs().sum(1)
        head_dim, width = self.columns.shape[2:]
        best = weight.topk(width, dim=-1).indices.unsqueeze(1).expand(-1, head_dim, -1)
        self.columns[layer] = rotation.gather(2, best)

    def keep(self, layer: int, keys: Tensor, host: HostKv) -> None:
        """Those of the step's own keys [G, T, d], where `host` is about to store them."""
        slots = host.incoming(layer)
        count = slots.shape[1]
        rotated = torch.bmm(keys.to(self.columns.dtype), self.columns[layer])
        partial = self.keys[layer]
        if not host.capped:
            partial[:, :, host.filled : host.filled + count] = rotated.mT
        else:
            heads = torch.arange(len(rotated), device=rotated.device).unsqueeze(1)
            kept = rotated[:, rotated.shape[1] - count :].to(partial.dtype)
            partial[heads, :, upload(slots, torch.int64, rotated.device)] = kept

    def compared(self, layer: int, q: Tensor, filled: int) -> tuple[Tensor, Tensor]:
        """For queries q [T, H, d]: partial ones [G, group, T, p], and the partial keys [G, p, filled] that they are to
        be compared with."""
        return skewed(q, self.columns[layer]), self.keys[layer, :, :, :filled]

    def take_over(self, old: PartialKeys) -> None:
        self.columns.copy_(old.columns)
        self.keys[..., : old.capacity] = old.keys

    def close(self) -> None:
        self._pool.drop(KIND, self.keys)
        self._pool.drop(WEIGHTS_KIND, self.columns)


def skewed(q: Tensor, rotation: Tensor) -> Tensor:
    """q [T, H, d] by each KV head's rotation [G, d, p] -> [G, group, T, p]."""
    groups, head_dim, width = rotation.shape
    grouped = q.view(q.shape[0], groups, -1, head_dim).permute(1, 2, 0, 3)
    rotated = torch.bmm(grouped.flatten(1, 2), rotation.to(q.dtype))
    return rotated.view(*grouped.shape[:3], width)
