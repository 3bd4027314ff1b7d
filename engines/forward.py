"""One step through the decoder, with a cache's attention."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from engines import kernels
from engines.caches.base import Cache
from engines.errors import OutOfMemory
from engines.model import Model
from engines.sequence import Span, Step
from engines.upload import upload

SURPRISAL_ROWS = 128  # logits at a time: a vocabulary is wide


def forward(cache: Cache, step: Step) -> Generator[int, None, Tensor]:
    """Yields each layer's number after it; returns the hidden states [rows, hidden]."""
    model = cache.model
    ids = upload(step.ids, torch.int64, model.device)
    positions = upload(step.positions, torch.int64, model.device)
    return model.decoder.forward(ids, positions, cache)


def at_once(cache: Cache, step: Step) -> Tensor:
    """A whole step, from the cache's `begin` to its `end`. Raises OutOfMemory, with the step aborted."""
    cache.begin(step)
    try:
        hidden = whole(forward(cache, step))
    except OutOfMemory:
        cache.abort(step)
        raise
    cache.end(step)
    return hidden


def whole(layers: Generator[int, None, Tensor]) -> Tensor:
    """What a forward pass leaves, without a stop between the layers."""
    try:
        while True:
            next(layers)
    except StopIteration as ended:
        return ended.value


def surprisal(model: Model, span: Span, hidden: Tensor) -> Tensor:
    """-log p of the prompt tokens that follow each row of the span, as far as the prompt goes: float32 [rows]. `hidden`
    is the step's [rows, hidden]."""
    following = span.sequence.tokens[span.position + 1 : span.position + span.count + 1]
    targets = torch.tensor(following, dtype=torch.int64, device=hidden.device)
    parts = []
    for start in range(0, len(targets), SURPRISAL_ROWS):
        chosen = targets[start : start + SURPRISAL_ROWS]
        rows = hidden[span.row + start : span.row + start + len(chosen)]
        logits = model.decoder.logits(rows).float()
        parts.append(logits.logsumexp(-1) - logits.gather(1, chosen.unsqueeze(1)).squeeze(1))
    return torch.cat(parts) if parts else torch.zeros(0)


def threads(model: Model, step: Step | None) -> AbstractContextManager[None]:
    """Decode steps on 16-bit or 8-bit CPU weights leave torch only small things to do."""
    lean = model.device.type == "cpu" and (model.dtype == torch.bfloat16 or model.decoder.int8)
    return kernels.torch_alone() if lean and step is not None and step.decodes else nullcontext()
