"""A vLLM server's /metrics: how full its KV cache is and how busy it is, in the names of today and of before 0.10."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from engines.server_stream import ROUNDING, plausible_count

# Gauges are of each engine behind the address, counters too: usage is their mean, all else their sum.
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_PREEMPTIONS = ("vllm:num_preemptions_total",)
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_EXACT = 1 << 53  # tokens since a server began may be very many
_WANTED = frozenset((*_USAGE, *_RUNNING, *_WAITING, *_PREEMPTIONS, *_HITS, *_QUERIES))


@dataclass(frozen=True)
class Reading:
    """One look; None is not told, or told as what cannot be. `kv_usage` is 0..1, hits and queries are tokens since the
    server began."""

    kv_usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions: int | None = None
    prefix_hits: int | None = None
    prefix_queries: int | None = None


def read(text: str) -> Reading | None:
    """What /metrics tells; None when it tells nothing of this. Raises ValueError for what is no such text."""
    # Histograms are most of the text and would take longer to parse than a token takes to come.
    wanted = "\n".join(line for line in text.splitlines() if line.split("{")[0].split(" ")[0] in _WANTED)
    samples: dict[str, list[float]] = {}
    for name, value in _samples(wanted):
        samples.setdefault(name, []).append(value)

    def values(names: tuple[str, ...]) -> list[float]:
        return next((samples[name] for name in names if name in samples), [])

    def total(names: tuple[str, ...]) -> int | None:
        found = values(names)
        return round(sum(found)) if found and all(0 <= value < _EXACT for value in found) else None

    usage = values(_USAGE)
    plausible = usage and all(0 <= share <= 1 + ROUNDING for share in usage)
    reading = Reading(
        kv_usage=min(1.0, sum(usage) / len(usage)) if plausible else None,
        running=plausible_count(total(_RUNNING)),
        waiting=plausible_count(total(_WAITING)),
        preemptions=plausible_count(total(_PREEMPTIONS)),
        prefix_hits=total(_HITS),
        prefix_queries=total(_QUERIES),
    )
    return reading if reading != Reading() else None


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            yield sample.name, sample.value
