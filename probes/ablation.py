"""What each improvement does alone, and what all do together: memory, time to the first token, time a token, retention.

Everything is taken from the same prompt and the same conversations; times are those of the fair clock, over a modelled
link unless there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import engines
from engines.errors import KvtuiError
from engines.model import Model
from probes.prefetch import prose_ids
from probes.retention import measure as retention
from probes.variants import VARIANTS

ROUNDS = 3


def measure(
    model: Model,
    *,
    budget: float = 0.3,
    tokens: int = 2048,
    new_tokens: int = 24,
    layout: str = "first",
    context: int = 1000,
    cases: int = 12,
    link: str | None = None,
    said: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """A row a variant. Times and memory: a prompt of `tokens` tokens, the medians of a few rounds in turns. Retention:
    `cases` conversations of `context` tokens, four questions each. Bytes are peaks. Raises KvtuiError if one fails."""
    ids = prose_ids(model, tokens)
    made = {
        name: engines.create_engine(id, model, budget=budget, link=link, **knobs)
        for name, (id, knobs) in VARIANTS.items()
    }
    rounds: dict[str, list[engines.Result]] = {name: [] for name in VARIANTS}
    for turn in range(ROUNDS + 1):  # the first warms up
        for name, engine in made.items():
            engine.reset()
            result = engine.generate(ids, new_tokens, ignore_eos=True)
            if result.outcome != "ok":
                raise KvtuiError(f"{name}: {result.detail}")
            if turn:
                rounds[name].append(result)
            said(f"round {turn}: {name}")
    rows = []
    for name, engine in made.items():
        kept = retention(engine, layout, context, cases)
        said(f"retention: {name} {kept.share:.2f}")
        taken = rounds[name]
        rows.append(
            {
                "variant": name,
                "device_kv_bytes": taken[0].device_kv_peak_bytes,
                "device_peak_bytes": taken[0].device_peak_bytes,
                "device_transient_bytes": taken[0].device_peak_bytes
                - model.weights_bytes
                - taken[0].device_kv_peak_bytes,
                "host_kv_bytes": taken[0].host_kv_peak_bytes,
                "ttft_s": median(result.ttft_s or 0.0 for result in taken),
                "tpot_ms": 1e3 * median(result.tpot_s or 0.0 for result in taken),
                "retention": kept.share,
                "retention_context": context,
                "right_answers": kept.right,
                "questions": kept.asked,
                "low_95": kept.interval[0],
                "high_95": kept.interval[1],
            }
        )
    return rows
