"""A vLLM server's /metrics: how full its KV cache is and how busy it is, in the names of today and of before 0.10."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

# Gauges are of each engine behind the address, counters too: usage is their mean, all else their sum.
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_PREEMPTIONS = ("vllm:num_preemptions_total",)
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_WANTED = frozenset((*_USAGE, *_RUNNING, *_WAITING, *_PREEMPTIONS, *_HITS, *_QUERIES))


@dataclass(frozen=True)
class Reading:
    """One look; None is not told. `kv_usage` is 0..1, hits and queries are tokens since the server began."""

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
        if 0 <= value < 1 << 53:
            samples.setdefault(name, []).append(value)
    if not samples:
        return None

    def values(names: tuple[str, ...]) -> list[float]:
        return next((samples[name] for name in names if name in samples), [])

    def total(names: tuple[str, ...]) -> int | None:
        found = values(names)
        return round(sum(found)) if found else None

    usage = values(_USAGE)
    return Reading(
        kv_usage=min(1.0, sum(usage) / len(usage)) if usage else None,
        running=total(_RUNNING),
        waiting=total(_WAITING),
        preemptions=total(_PREEMPTIONS),
        prefix_hits=total(_HITS),
        prefix_queries=total(_QUERIES),
    )


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            yield sample.name, sample.value
