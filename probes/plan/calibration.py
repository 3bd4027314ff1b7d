"""Predicted against measured, on this machine: micro-benchmarks and decode steps of real engines, in turns.

What else the machine does changes by the second, so each round times both sides, and it is their ratio that counts.
"""

from __future__ import annotations

from functools import cached_property
from statistics import median

import engines
from engines.engine import Engine
from engines.errors import BadRequest
from engines.events import LinkInfo
from engines.model import Model
from probes.plan.footprint import ENGINES, Request
from probes.plan.here import Bench, Decoding, settled
from probes.plan.planned_model import of_config
from probes.plan.rates import Link
from probes.plan.roofline import decode_s
from probes.prefetch import prose_ids
from probes.studies.base import Chart, Point, Row, Rows

PARTIAL_RATIO = 0.3
ALLOWED = 0.25  # of a prediction's error


class Calibration:
    """One sequence in each engine and at each of `contexts` tokens; a round advances each by `steps` tokens."""

    def __init__(self, model: Model, contexts: list[int], budget: float, link: str | None, steps: int) -> None:
        """Raises BadRequest for contexts that leave no room for an answer."""
        limit = model.context_limit
        if max(contexts) >= limit:
            raise BadRequest(f"{model.name} has a context of {limit:,}: none of {max(contexts):,} can be measured")
        self.model, self.contexts, self.steps = model, contexts, steps
        self._budget, self._link = budget, link
        self._planned = of_config(model.name, model.config, model.dtype.itemsize, model.decoder.compute_dtype.itemsize)

    @cached_property
    def _bench(self) -> Bench:
        return Bench(self.model, self._planned, PARTIAL_RATIO)

    @cached_property
    def _decoding(self) -> dict[tuple[int, str], Decoding]:
        return {
            (context, engine_id): Decoding(self._engine(engine_id, context), prose_ids(self.model, context))
            for context in self.contexts
            for engine_id in ENGINES
        }

    def links(self) -> tuple[LinkInfo, ...]:
        return (self._engine("infinigen", 1).link.info,)

    def round(self, number: int) -> Rows:
        decoding = self._decoding
        rates = self._bench.rates()
        rows = []
        for (context, engine_id), each in decoding.items():
            before = each.context
            measured_s = settled(each.steps(self.steps))
            request = Request(engine_id, context, self.steps, budget=self._budget, partial_ratio=PARTIAL_RATIO)
            info = each.engine.link.info
            link = Link(info.bytes_per_s, info.latency_s)
            predicted_s = decode_s(self._planned, request, rates, link, before + self.steps / 2)
            rows.append(
                {
                    "engine": engine_id,
                    "context": context,
                    "round": number,
                    "predicted_tpot_s": predicted_s,
                    "measured_tpot_s": measured_s,
                    "ratio": predicted_s / measured_s,
                    "link_modelled": not info.measured,
                    "weights_gb_per_s": rates.weights_bytes_per_s / 1e9,
                    "kv_gb_per_s": rates.kv_bytes_per_s / 1e9,
                    "linear_gflops": rates.linear_flops / 1e9,
                    "layer_s": rates.layer_s[engine_id],
                    "step_s": rates.step_s[engine_id],
                }
            )
        return rows

    def _engine(self, engine_id: str, context: int) -> Engine:
        engine = engines.create_engine(
            engine_id,
            self.model,
            budget=self._budget,
            partial_ratio=PARTIAL_RATIO,
            prefill="flash",
            link=self._link,
            arena_tokens=min(self.model.context_limit, 2 * context + 2048),
        )
        assert isinstance(engine, Engine)
        return engine


def results(rows: Rows) -> Rows:
    """An engine and a context a row: medians over the rounds."""
    found = []
    for engine_id, context in dict.fromkeys((row["engine"], row["context"]) for row in rows):
        own = [row for row in rows if (row["engine"], row["context"]) == (engine_id, context)]
        ratios = sorted(row["ratio"] for row in own)
        found.append(
            {
                "engine": engine_id,
                "prefill": "flash",
                "context": context,
                "batch": 1,
                "rounds": len(own),
                "predicted_tpot_s": median(row["predicted_tpot_s"] for row in own),
                "measured_tpot_s": median(row["measured_tpot_s"] for row in own),
                "ratio": median(ratios),
                "least_ratio": ratios[0],
                "greatest_ratio": ratios[-1],
                "error": median(ratios) - 1,
                "link_modelled": own[0]["link_modelled"],
            }
        )
    return found


def reading(results: Rows) -> str:
    worst = max(results, key=lambda row: abs(row["error"]))
    within = sum(abs(row["error"]) <= ALLOWED for row in results)
    return (
        f"Of {len(results)} predictions of TPOT, {within} are within {ALLOWED:.0%} of what was measured in turns with "
        f"the micro-benchmarks that they are made of (medians of {results[0]['rounds']} rounds). The furthest is "
        f"{_named(worst)}: {worst['predicted_tpot_s'] * 1e3:.1f} ms predicted, {worst['measured_tpot_s'] * 1e3:.1f} ms "
        f"measured, {worst['error']:+.0%}. Single rounds lie between {min(row['least_ratio'] for row in results):.2f} "
        f"and {max(row['greatest_ratio'] for row in results):.2f} of the measured."
    )


def charts(results: Rows) -> list[Chart]:
    series = {}
    for engine_id in dict.fromkeys(row["engine"] for row in results):
        own = [row for row in results if row["engine"] == engine_id]
        for side in ("predicted", "measured"):
            points = [Point(row["context"], row[f"{side}_tpot_s"] * 1e3) for row in own]
            series[f"{engine_id}, {side}"] = points
    return [Chart("calibration", "TPOT on this machine", "context, tokens", "ms a token", series, log_x=True)]


def _named(row: Row) -> str:
    return f"{row['engine']} at {row['context']:,} tokens"
