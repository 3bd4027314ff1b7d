"""From logits to a token: greedy, or temperature and nucleus sampling (Holtzman et al., ICLR 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.sequence import Sampling


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator | None) -> tuple[int, float]:
    """logits float32 [vocab] -> (token id, its log-probability under the model's own distribution)."""
    if sampling.temperature <= 0:
        token = int(logits.argmax())
    else:
        probabilities = torch.softmax(logits / sampling.temperature, dim=-1)
        if sampling.top_p < 1:
            ranked, order = probabilities.sort(descending=True)
            beyond = ranked.cumsum(0) - ranked >= sampling.top_p
            probabilities = probabilities.scatter(0, order[beyond], 0.0)
        token = int(torch.multinomial(probabilities.cpu(), 1, generator=generator))
    return token, float(logits[token] - logits.logsumexp(0))
