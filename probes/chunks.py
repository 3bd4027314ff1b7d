"""Improvement 2, importance across chunks: device memory that does not grow with the prompt."""

from __future__ import annotations

from dataclasses import dataclass

import engines
from engines.errors import KvtuiError
from probes.prefetch import small_model


@dataclass(frozen=True)
class Peak:
    """Device peak of one prefill, and how long it took on the engine's clock."""

    tokens: int
    device_peak_bytes: int
    ttft_s: float | None


def flat(lengths: tuple[int, ...], budget_tokens: int = 2048, chunk_tokens: int = 512) -> list[Peak]:
    """Prefills of a small random-weight model by H2O with bounded chunks. Raises KvtuiError when one fails."""
    model = small_model(max(lengths) + 1024)
    peaks = []
    for tokens in lengths:
        engine = engines.create_engine(
            "h2o", model, prefill="chunked", budget_tokens=budget_tokens, chunk_tokens=chunk_tokens
        )
        result = engine.generate([1 + i % 500 for i in range(tokens)], 1, ignore_eos=True)
        if result.outcome != "ok":
            raise KvtuiError(result.detail)
        peaks.append(Peak(tokens, result.device_peak_bytes, result.ttft_s))
    return peaks
