"""The improvements that can be switched on in the live app, from the next run on: each a key, a name and a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.commands import SetImprovements, WorkerConfig
from engines.knobs import ANCHORS

Knob = str | float | int | bool | None


@dataclass(frozen=True)
class Improvement:
    """`id` is also the name of the knob by which `engine`, the baseline that it improves, tells whether it has it."""

    id: str
    key: str
    engine: str
    short: str
    name: str
    effect: str
    on: SetImprovements
    off: SetImprovements

    def wanted(self, config: WorkerConfig) -> bool:
        """Whether the worker starts with it."""
        value = getattr(config, self.id)
        return bool(value) and value == getattr(self.on, self.id)

    def told(self, knobs: Mapping[str, Knob]) -> bool | None:
        """Whether the engine that has these knobs has it; None where they do not say: scoring is flash by itself
        where no prompt's scores are there at once."""
        if self.id not in knobs or (self.id == "scoring" and str(knobs.get("prefill")).startswith("chunked")):
            return None
        return knobs[self.id] == getattr(self.on, self.id)


IMPROVEMENTS = (
    Improvement(
        "anchors",
        "a",
        "h2o",
        "anchors",
        "H2O's anchor protection",
        "sinks, system prompt, early turns and surprising tokens are never evicted",
        SetImprovements(anchors=ANCHORS),
        SetImprovements(anchors=0.0),
    ),
    Improvement(
        "scoring",
        "f",
        "h2o",
        "flash scoring",
        "H2O's flash scoring",
        "importance from FlashAttention's log-sum-exps, without the n×n scores",
        SetImprovements(scoring="flash"),
        SetImprovements(scoring=""),
    ),
    Improvement(
        "prefill",
        "k",
        "h2o",
        "chunked prefill",
        "H2O's chunked prefill",
        "importance is carried from chunk to chunk, memory is flat",
        SetImprovements(prefill="chunked"),
        SetImprovements(prefill=""),
    ),
    Improvement(
        "prefetch",
        "v",
        "infinigen",
        "predictive prefetch",
        "InfiniGen's predictive prefetch",
        "what the last steps fetched stays on the device, only the difference moves",
        SetImprovements(prefetch="predictive"),
        SetImprovements(prefetch=""),
    ),
)
