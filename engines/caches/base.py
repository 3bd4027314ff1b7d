"""The contract between the decoder, the scheduler and a cache policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engines.caches.placement import Placement
from engines.clock import Clock
from engines.controller import Need
from engines.disktier import DiskTier
from engines.link import Link
from engines.memory import BlockPool, Pool, blocks_for
from engines.model import Model
from engines.sequence import Sequence, Span, Step


@dataclass
class Surroundings:
    """What every cache is given: the model, its engine's clock, pools and link, and a disk if it may use one. Caches
    that share them share one arena of `blocks`, made by the first that needs it."""

    model: Model
    clock: Clock
    device: Pool
    host: Pool
    link: Link
    disk: DiskTier | None = None
    blocks: BlockPool | None = None


@dataclass
class CacheView:
    """A picture of one sequence's cache. `cells` uint8 [layers, tokens] (see events.pack_cell), `mass` float32
    [layers, tokens]: share of the layer's attention mass that each position received."""

    tokens: int
    layers: int
    cells: np.ndarray
    mass: np.ndarray
    fetched_tokens: float = 0.0
    evicted_tokens: float = 0.0


@dataclass
class HeadsView:
    """One layer of one sequence: `states` uint8 [kv_heads, tokens] (events.KvState), `mass` float32 the same shape:
    shares of the layer's attention mass."""

    states: np.ndarray
    mass: np.ndarray


class Cache(ABC):
    """One policy. A step runs as: `reserve` a span at a time, `begin`, `attend` layer after layer, `end`. Attention
    comes first and eviction after it. `release` gives everything of a sequence back.

    `one_shot` policies prefill a whole prompt in one step; the others in chunks, beside decodes."""

    one_shot: bool = False
    grows_in_place: bool = True  # whether a later turn needs no second copy of what is held
    observes_in_attend: bool = False  # whether a step that is observed has more to do in its layers than another
    learns: bool = False  # whether `learn` is to be called with what surprised the model
    prefix_hit_tokens = 0  # of prompts, found where `reuse` looks

    def __init__(self, around: Surroundings) -> None:
        self.around, self.model, self.shape = around, around.model, around.model.shape
        self.step: Step | None = None
        self.placed: Placement | None = None  # in a decode step of equal kernels for equal shapes (see engines.graphs)

    def reuse(self, sequence: Sequence) -> None:  # noqa: B027 - most policies have nothing to reuse
        """Called once when a new sequence is admitted: a policy may find that it already holds its beginning."""

    def piece(self, sequence: Sequence) -> int:
        """The most tokens of a prompt that the policy wants in one step, when it takes prompts in pieces."""
        return len(sequence.tokens)

    @abstractmethod
    def reserve(self, sequence: Sequence, count: int) -> None:
        """Room for `count` more tokens. Raises OutOfMemory, and takes nothing, when there is none."""

    @abstractmethod
    def begin(self, step: Step) -> None:
        """Before the first layer of a step."""

    @abstractmethod
    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        """q [T, H, d], k and v [T, G, d], x [T, hidden] -> [T, H * d]; see decoder.Attend."""

    def learn(self, span: Span, surprisal: Tensor) -> None:  # noqa: B027 - most policies do not ask
        """Before `end`, if `learns`: -log p (nats) of the tokens that follow the span's own, as far as they are
        known, float32 [at most span.count]."""

    @abstractmethod
    def end(self, step: Step) -> None:
        """After the last layer: evict, and count the step's tokens as computed."""

    def abort(self, step: Step) -> None:
        """A step ended in the middle, out of memory: transients go back. The sequences are released by the caller."""
        self.step = None

    @abstractmethod
    def release(self, sequence: Sequence) -> None:
        """Frees all that the sequence holds."""

    def forget(self) -> None:  # noqa: B027 - most policies remember nothing
        """What could be reused of released sequences is not to be, from now on."""

    @abstractmethod
    def kept_positions(self, sequence: Sequence, layer: int) -> Tensor:
        """int64 [kv_heads, kept]: the true positions whose KV entries still exist, ascending."""

    @abstractmethod
    def view(self, sequence: Sequence) -> CacheView:
        """The picture of this moment."""

    @abstractmethod
    def heads(self, sequence: Sequence, layer: int) -> HeadsView:
        """One layer of this moment's picture, head by head."""

    @abstractmethod
    def need(self, prompt_tokens: int, new_tokens: int) -> Need:
        """What a new request would take at its peak, from the prompt to the end of its answer, transients included."""

    def kv_kinds(self) -> tuple[str, ...]:
        """The kinds in the device pool that are KV: entries, or what stands for them."""
        return ("kv",)

    def arena(self, tokens: int) -> BlockPool:
        """The blocks of these surroundings, with KV slots for so many tokens if they are yet to be made."""
        around, shape, model = self.around, self.shape, self.model
        if around.blocks is None:
            around.blocks = BlockPool(
                around.device,
                shape.layers,
                blocks_for(tokens),
                shape.kv_heads,
                shape.head_dim,
                model.dtype,
                model.device,
            )
        return around.blocks

    @property
    def layer_token_bytes(self) -> int:
        """KV of one token in one layer."""
        return self.model.kv_bytes_per_token // self.shape.layers

    def to_storage(self, rows: Tensor) -> Tensor:
        """[T, G, d] -> [G, T, d] as the cache stores it, rounded to the model's dtype: chunked and one-shot prefill
        then see the same keys and values."""
        return rows.transpose(0, 1).to(self.model.dtype)


def normalised(mass: Tensor, n: int) -> np.ndarray:
    """Mass as shares of the whole: float32 [rows, tokens] -> float32 [rows, n], each row summing to 1 (or 0). What was
    observed of fewer tokens is 0 for the rest."""
    mass = mass.float()
    shares = (mass / mass.sum(-1, keepdim=True).clamp_min(1e-20)).cpu().numpy()[:, :n]
    return np.pad(shares, ((0, 0), (0, n - shares.shape[1])))


def head_shares(mass: Tensor, n: int) -> np.ndarray:
    """The mass of one layer's heads as shares of the layer's: float32 [heads, tokens] -> float32 [heads, n]."""
    heads = len(mass)
    mass = torch.nn.functional.pad(mass.float(), (0, n - mass.shape[1]))  # also cuts, when negative
    return normalised(mass.reshape(1, -1), heads * n).reshape(heads, n)


def causal_positions(n: int, heads: int) -> Tensor:
    return torch.arange(n, dtype=torch.int64).expand(heads, n)
