"""The improvements that can be switched on in the live app, from the next run on: each a key, a name and a command."""

from __future__ import annotations

from dataclasses import dataclass

from engines.commands import SetImprovements, WorkerConfig
from engines.knobs import ANCHORS


@dataclass(frozen=True)
class Improvement:
    id: str
    key: str
    name: str
    effect: str
    on: SetImprovements
    off: SetImprovements

    def wanted(self, config: WorkerConfig) -> bool:
        """Whether the worker starts with it."""
        value = getattr(config, self.id)
        return bool(value) and value == getattr(self.on, self.id)


IMPROVEMENTS = (
    Improvement(
        "anchors",
        "a",
        "H2O's anchor protection",
        "sinks, system prompt, early turns and surprising tokens are never evicted",
        SetImprovements(anchors=ANCHORS),
        SetImprovements(anchors=0.0),
    ),
    Improvement(
        "scoring",
        "f",
        "H2O's flash scoring",
        "importance from FlashAttention's log-sum-exps, without the n×n scores",
        SetImprovements(scoring="flash"),
        SetImprovements(scoring=""),
    ),
    Improvement(
        "prefill",
        "k",
        "H2O's chunked prefill",
        "importance is carried from chunk to chunk, memory is flat",
        SetImprovements(prefill="chunked"),
        SetImprovements(prefill=""),
    ),
    Improvement(
        "prefetch",
        "v",
        "InfiniGen's predictive prefetch",
        "what the last steps fetched stays on the device, only the difference moves",
        SetImprovements(prefetch="predictive"),
        SetImprovements(prefetch=""),
    ),
)
