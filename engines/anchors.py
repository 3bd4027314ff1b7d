"""Anchor protection: positions that a cache never evicts, found without being told where the facts are.

Protected are, in this order and within a share of the budget: the first tokens (attention sinks, Xiao et al.,
"Efficient Streaming Language Models with Attention Sinks", ICLR 2024); the system prompt and the early turns, but for
what the model could have said itself; then, anywhere, words that surprised it (-log p of all their tokens together, at
prefill). What does not fit into the share is ranked by surprisal, and how many were left out is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from engines.upload import upload
from engines.words import by_word

SINKS = 4
EARLY_TURNS = 2  # of the user's, with what was answered to them
SURPRISING_NATS = 8.0  # one in three thousand: names, numbers, codes
PREDICTABLE_NATS = 1.0  # a token that was at least one in three
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

    def choose(self, words: Tensor, limit: int) -> Tensor:
        """Pins at most `limit` of the positions that `words` (see words.Words) has: bool [tokens]."""
        tokens = len(words)
        known = torch.zeros(tokens)
        known[: len(self.surprisal)] = self.surprisal[:tokens]
        surprisal = by_word(known, words).clamp(max=_BELOW_TIERS)
        there = torch.ones(tokens, dtype=torch.bool)
        there[: self.settled] = False
        there[: len(self.pinned)] |= self.pinned[:tokens]
        # One order for all: sinks, the system prompt, the turns from the first on, and then whatever surprised.
        # Within each of them, by surprisal.
        tier = self._tiers(tokens)
        early = (tier > 0) & (surprisal >= PREDICTABLE_NATS)
        early[:SINKS] = True
        wanted = (early | (surprisal >= SURPRISING_NATS)) & there
        count = min(limit, int(wanted.sum()))
        chosen = (tier * _BELOW_TIERS + surprisal).masked_fill(~wanted, -1.0).topk(count).indices
        self.pinned = torch.zeros(tokens, dtype=torch.bool)
        self.pinned[chosen] = True
        self.left_out = int((early & ~self.pinned).sum())
        self.settled = tokens
        return self.pinned

    def covers(self, positions: Tensor) -> Tensor:
        """Whether these are pinned: bool, the shape of `positions` (-1 never is)."""
        pinned = upload(self.pinned, torch.bool, positions.device)
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
