"""From logits to a token: greedy, or temperature and nucleus sampling (Holtzman et al., ICLR 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.sequence import Forced, Sequence


def sample(logits: Tensor, sequences: list[Sequence]) -> list[tuple[int, float]]:
    """logits float32 [B, vocab], a row for each sequence -> (token id, its log-probability under the model's own
    distribution) of each: a forced one where there is one. The device is read once where all are greedy, else once a
    row."""
    if all(sequence.sampling.temperature <= 0 and sequence.forced is None for sequence in sequences):
        return _greedy(logits)
    return [_one(*pair) for pair in zip(logits, sequences, strict=True)]


def _greedy(logits: Tensor) -> list[tuple[int, float]]:
    best, tokens = logits.max(-1)
    told = torch.stack([tokens.double(), (best - logits.logsumexp(-1)).double()]).tolist()
    return [(int(token), logprob) for token, logprob in zip(*told, strict=True)]


def _one(logits: Tensor, sequence: Sequence) -> tuple[int, float]:
    sampling = sequence.sampling
    if sequence.forced is not None:
        return _next(sequence.forced, logits)
    if sampling.temperature <= 0:
        return _greedy(logits.unsqueeze(0))[0]
    probabilities = torch.softmax(logits / sampling.temperature, dim=-1)
    if sampling.top_p < 1:
        ranked, order = probabilities.sort(descending=True)
        beyond = ranked.cumsum(0) - ranked >= sampling.top_p
        probabilities = torch.zeros_like(ranked).scatter(0, order, ranked.masked_fill(beyond, 0.0))
    told = torch.stack([probabilities, logits.log_softmax(0)]).cpu().numpy()
    token = int(torch.multinomial(torch.from_numpy(told[0]), 1, generator=sequence.generator))
    return token, float(told[1, token])


def _next(forced: Forced, logits: Tensor) -> tuple[int, float]:
    token = forced.to_come[0]
    logprob = logits[token] - logits.unsqueeze(0).logsumexp(-1).squeeze(0)
    greedy, told = torch.stack([logits.max(-1).indices.double(), logprob.double()]).tolist()
    forced.greedy.append(int(greedy))
    forced.last = logits
    return token, told
