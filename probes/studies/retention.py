"""Facts told early and asked for late: what each cache still knows."""

from __future__ import annotations

import argparse
from typing import Any

from engines.errors import BadRequest
from engines.knobs import ANCHORS
from probes.studies.base import Cell, Measure, ModelStudy, Rows

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paged": ("vllm", {}),
    "h2o": ("h2o", {"prefill": "flash"}),
    "h2o chunked": ("h2o", {"prefill": "chunked"}),
    "h2o anchors": ("h2o", {"prefill": "flash", "anchors": ANCHORS}),
    "h2o+": ("h2o+", {}),
    "infinigen": ("infinigen", {}),
    "infinigen+": ("infinigen+", {}),
}


class RetentionStudy(ModelStudy):
    name = "retention"
    summary = "Facts told early, asked for late: full cache, H2O, InfiniGen, and the improvements."
    keys = ("layout", "engine", "tokens")
    measures = (Measure("right", "higher", right="right_answers", asked="questions"),)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--budget", type=float, default=0.3, help="share of KV entries kept or fetched")
        parser.add_argument("--tokens", type=int, help="length of the context")
        parser.add_argument("--cases", type=int, default=50, help="conversations of --tokens, of four questions each")
        parser.add_argument("--layouts", default="first,middle,system", help="where the facts stand")
        parser.add_argument("--engines", default=",".join(VARIANTS), help="separated by commas")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        if not set(options.engines.split(",")) <= set(VARIANTS):
            raise BadRequest(f"known are the engines {', '.join(VARIANTS)}")

    def cells(self) -> list[Cell]:
        from probes.retention import LENGTHS

        plan = LENGTHS if self.options.tokens is None else ((self.options.tokens, self.options.cases),)
        return [
            {"layout": layout, "tokens": tokens, "cases": cases, "engine": engine}
            for layout in self.options.layouts.split(",")
            for tokens, cases in plan
            for engine in self.options.engines.split(",")
        ]

    def measure(self, cell: Cell) -> Rows:
        import engines
        from probes import retention

        engine_id, knobs = VARIANTS[str(cell["engine"])]
        engine = engines.create_engine(engine_id, self.model, budget=self.options.budget, **knobs)
        found = retention.measure(
            engine, str(cell["layout"]), int(cell["tokens"]), int(cell["cases"]), self.options.seed
        )
        low, high = found.interval
        return [
            {
                **cell,
                "questions": found.asked,
                "right_answers": found.right,
                "right": found.share,
                "low_95": low,
                "high_95": high,
                "device_kv_share": found.device_kv_bytes / found.tokens / self.model.kv_bytes_per_token,
                "peak_kv_share": found.peak_share,
            }
        ]

    def reading(self, results: Rows) -> str:
        said = []
        for engine in dict.fromkeys(row["engine"] for row in results):
            rows = [row for row in results if row["engine"] == engine]
            right, asked = (sum(row[name] for row in rows) for name in ("right_answers", "questions"))
            said.append(f"{engine} answered {right} of {asked} questions rightly")
        return f"{'; '.join(said)}."
