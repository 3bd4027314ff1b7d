"""Anchor protection: positions that a cache never evicts, found without being told where the facts are.

Protected are, in this order and within a share of the budget: the first tokens (attention sinks, Xiao et al.,
"Efficient Streaming Language Models with Attention Sinks", ICLR 2024); the system prompt and the early turns; then,
anywhere, tokens that surprised the model itself (its own -log p at prefill) and their neighbours. What does not fit
into the share is ranked by surprisal, and how many were left out is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

SINKS = 4
EARLY_TURNS = 2  # of the user's, with what was answered to them
SURPRISING_NATS = 6.0  # about one in four hundred: names, numbers, codes
BEFORE, AFTER, NEIGHBOUR = 2, 3, 0.5  # a fact is more than its one surprising token, but that comes first
_BELOW_TIERS = 1000.0


@dataclass
class Anchors:
    """One sequence's. `turns` are (role, first position), ascending; `surprisal` float32 [tokens], 0 where unknown.
    `pinned` bool [tokens] is the latest choice, `left_out` how many early or system tokens found no room in it."""

    turns: list[tuple[str, int]] = field(default_factory=list)
    surprisal: Tensor = field(default_factory=lambda: torch.zeros(0))
    pinned: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    left_out: int = 0
    settled: int = 0  # positions before this one that are not pinned may be gone

    def learn(self, start: int, surprisal: Tensor) -> None:
        """-log p (nats) of the tokens from position `start` on."""
        end = start + len(surprisal)
        if end > len(self.surprisal):
            self.surprisal = torch.nn.functional.pad(self.surprisal, (0, end - len(self.surprisal)))
        self.surprisal[start:end] = surprisal.float().cpu()

    def choose(self, tokens: int, limit: int) -> Tensor:
        """Pins at most `limit` of the first `tokens` positions: bool [tokens]."""
        known = torch.zeros(tokens)
        known[: len(self.surprisal)] = self.surprisal[:tokens]
        surprisal = _with_neighbours(known).clamp(max=_BELOW_TIERS)
        there = torch.ones(tokens, dtype=torch.bool)
        there[: self.settled] = False
        there[: len(self.pinned)] |= self.pinned[:tokens]
        # One order for all: sinks, the system prompt, the turns from the first on, and then whatever surprised.
        # Within each of them, by surprisal.
        tier = self._tiers(tokens)
        wanted = ((tier > 0) | (surprisal >= SURPRISING_NATS)) & there
        count = min(limit, int(wanted.sum()))
        chosen = (tier * _BELOW_TIERS + surprisal).masked_fill(~wanted, -1.0).topk(count).indices
        self.pinned = torch.zeros(tokens, dtype=torch.bool)
        self.pinned[chosen] = True
        self.left_out = int(((tier > 0) & ~self.pinned).sum())
        self.settled = tokens
        return self.pinned

    def covers(self, positions: Tensor) -> Tensor:
        """Whether these are pinned: bool, the shape of `positions` (-1 never is)."""
        pinned = self.pinned.to(positions.device)
        if not len(pinned):
            return torch.zeros_like(positions, dtype=torch.bool)
        return pinned[positions.clamp(0, len(pinned) - 1)] & (positions >= 0) & (positions < len(pinned))

    def _tiers(self, tokens: int) -> Tensor:
        """0 for what is neither sink, system prompt nor early; higher is more precious. Without turns, nothing is known
        to be early, and the last one never is."""
        tier = torch.zeros(tokens)
        users = 0
        for (role, start), (_, end) in pairwise(self.turns):
            users += role == "user"
            if role == "system" or users <= EARLY_TURNS:
                tier[start:end] = 1 + EARLY_TURNS - users
        tier[:SINKS] = 2 + EARLY_TURNS
        return tier


def _with_neighbours(surprisal: Tensor) -> Tensor:
    """Each position's own surprisal, or half of the largest among its neighbours."""
    if not len(surprisal):
        return surprisal
    padded = torch.nn.functional.pad(surprisal, (AFTER, BEFORE))
    return torch.maximum(surprisal, NEIGHBOUR * padded.unfold(0, BEFORE + AFTER + 1, 1).amax(-1))
