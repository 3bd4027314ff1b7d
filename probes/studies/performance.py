"""Speed and memory of the engines: over context, answer, batch and budget, and under requests that keep arriving."""

from __future__ import annotations

import argparse
import random
from typing import TYPE_CHECKING

from engines import sizes
from engines.errors import BadRequest, OutOfMemory
from engines.events import ENGINE_LABELS, SERVER
from probes.studies import performance_results
from probes.studies.base import Cell, Chart, Measure, ModelStudy, Row, Rows
from probes.studies.lists import counts, numbers, size, words

if TYPE_CHECKING:
    from engines.events import LinkInfo
    from engines.hybrid import AnyEngine
    from probes.load import Objective, Request

ENGINES = tuple(id for id in ENGINE_LABELS if id != SERVER)
NO_BUDGET = ("vllm",)
OVER_THE_LINK = ("infinigen", "infinigen+", "hybrid")
STARTS = 4096  # prompts begin at different places of the prose, or a paged cache would share their beginnings
REST_S = 60.0  # of the engine's clock between two cells: nothing of the last one is on the link any more
MAX_RUNNING = 64


class Performance(ModelStudy):
    name = "performance"
    summary = "TTFT, TPOT, throughput, latency, peaks and bytes moved, over context, batch, budget and request rate."
    keys = ("context", "new_tokens", "batch", "rate_per_s", "engine", "budget")
    measures = (
        Measure("ttft_s", "lower"),
        Measure("tpot_s", "lower"),
        Measure("latency_p50_s", "lower"),
        Measure("tok_s", "higher"),
        Measure("device_peak_bytes", "lower"),
        Measure("goodput", "higher", right="good", asked="requests"),
    )

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--engines", default="vllm,h2o,infinigen", help=f"of {', '.join(ENGINES)}")
        parser.add_argument("--contexts", default="512,1024,2048", help="prompts' lengths, tokens")
        parser.add_argument(
            "--max-new-tokens", dest="new_tokens", default="32", help="answers' lengths, tokens; exactly so many"
        )
        parser.add_argument("--batches", default="1", help="requests that are submitted at once")
        parser.add_argument("--budgets", default="0.3", help="shares of KV entries kept or fetched")
        parser.add_argument("--rounds", type=int, default=3, help="repeats of everything, after a warm-up")
        parser.add_argument("--link", help="link profile; the real link where there is a GPU, else pcie4, modelled")
        parser.add_argument("--device-memory", help="cap of each engine's device pool, such as 512MiB")
        load = parser.add_argument_group("load", "a stream of requests, with lengths drawn from those above")
        load.add_argument("--rates", default="", help="requests a second; arrivals are a Poisson process")
        load.add_argument("--requests", type=int, default=20, help="of each stream")
        load.add_argument("--slo-ttft", type=float, default=5.0, help="objective: seconds until the first token")
        load.add_argument("--slo-tpot", type=float, default=0.2, help="objective: seconds a token after it")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self._engine_ids = words("--engines", options.engines, ENGINES)
        self._contexts = counts("--contexts", options.contexts)
        self._new_tokens = counts("--max-new-tokens", options.new_tokens)
        self._batches = counts("--batches", options.batches)
        self._budgets = numbers("--budgets", options.budgets, most=1)
        self._rates = numbers("--rates", options.rates) if options.rates.strip() else []
        if options.rounds < 1:
            raise BadRequest(f"--rounds is 1 or more, not {options.rounds}")
        if options.requests < 1:
            raise BadRequest(f"--requests is 1 or more, not {options.requests}")
        if not (options.slo_ttft > 0 and options.slo_tpot > 0):
            raise BadRequest("--slo-ttft and --slo-tpot are seconds above 0")
        self._cap = size("--device-memory", options.device_memory)
        self._engines: dict[tuple[str, float | None], AnyEngine] = {}
        self._warm: Cell | None = None
        self._prose: list[int] = []

    def links(self) -> tuple[LinkInfo, ...]:
        moves = any(id in OVER_THE_LINK for id in self._engine_ids)
        return self.links_of(self.options.link) if moves else ()

    def cells(self) -> list[Cell]:
        """Engines innermost: they take turns, so that what slows the machine down for a while slows all of them."""
        grid: list[Cell] = [
            {"context": context, "new_tokens": new_tokens, "batch": batch}
            for context in self._contexts
            for new_tokens in self._new_tokens
            for batch in self._batches
        ]
        streams: list[Cell] = [{"rate_per_s": rate} for rate in self._rates]
        return [
            {**group, "round": turn, **variant}
            for group in [*grid, *streams]
            for turn in range(1, self.options.rounds + 1)
            for variant in self._variants()
        ]

    def measure(self, cell: Cell) -> Rows:
        group = {name: value for name, value in cell.items() if name not in ("round", "engine", "budget")}
        if group != self._warm:  # also where an interrupted study goes on: it is a new process
            for variant in self._variants():
                self.said(f"warming up {variant['engine']}")
                self._served(variant, self._warm_up(group))
            self._warm = group
        told = {name: cell.get(name) for name in self.keys}
        return [{**told, "round": cell["round"], **self._served(cell, self._requests(cell), say=True)}]

    def results(self, rows: Rows) -> Rows:
        return performance_results.grouped(rows, self.keys)

    def shown(self, results: Rows) -> Rows:
        return performance_results.brief(results)

    def reading(self, results: Rows) -> str:
        said = performance_results.reading(results, self.options.slo_ttft, self.options.slo_tpot)
        return said if self._cap is None else f"{said} Each engine's device pool was capped at {sizes.size(self._cap)}."

    def charts(self, results: Rows) -> list[Chart]:
        return performance_results.charts(results)

    def _variants(self) -> list[Cell]:
        """An engine without a budget once, the others with each."""
        return [
            {"engine": id, "budget": budget}
            for id in self._engine_ids
            for budget in ([None] if id in NO_BUDGET else self._budgets)
        ]

    def _requests(self, cell: Cell) -> list[Request]:
        """A batch is the same in every round; a stream is another one in each, and the same for all engines. Faster
        streams are slower ones compressed."""
        from probes.load import Request, poisson

        if "batch" in cell:
            rng = random.Random(f"{self.options.seed} batch")
            return [
                Request(self._prompt(start, cell["context"]), cell["new_tokens"])
                for start in rng.sample(range(max(STARTS, cell["batch"])), cell["batch"])
            ]
        count, lengths = self.options.requests, self._that_fit()
        rng = random.Random(f"{self.options.seed} stream {cell['round']}")
        arrivals = poisson(cell["rate_per_s"], count, rng)
        starts = rng.sample(range(max(STARTS, count)), count)
        return [
            Request(self._prompt(start, rng.choice(lengths)), rng.choice(self._new_tokens), arrival_s)
            for start, arrival_s in zip(starts, arrivals, strict=True)
        ]

    def _warm_up(self, group: Cell) -> list[Request]:
        """The batch itself; before a stream, one request of each length."""
        from probes.load import Request

        if "batch" in group:
            return self._requests(group)
        return [Request(self._prompt(0, context), min(self._new_tokens)) for context in self._that_fit()]

    def _that_fit(self) -> list[int]:
        """Contexts that streams are made of: those that leave room for any answer, if there are such."""
        room = self.model.context_limit - max(self._new_tokens)
        return [context for context in self._contexts if context <= room] or self._contexts

    def _prompt(self, start: int, tokens: int) -> list[int]:
        from probes.prefetch import prose_ids

        if len(self._prose) < start + tokens:
            self._prose = prose_ids(self.model, start + tokens + STARTS)
        return self._prose[start : start + tokens]

    def _served(self, variant: Cell, requests: list[Request], *, say: bool = False) -> Row:
        """What an engine made of a load: its figures, its peaks and what it moved."""
        from probes import load

        key = (variant["engine"], variant["budget"])
        try:
            engine = self._engines.get(key) or self._made(*key)
        except (OutOfMemory, MemoryError, RuntimeError) as fault:
            outcome = f"{fault.tier}_oom" if isinstance(fault, OutOfMemory) else load.ran_out(fault)
            if outcome is None:
                raise
            nothing = [load.Served(request, outcome, load.first_line(fault)) for request in requests]
            return {**load.figures(nothing, self._objective()), **performance_results.NO_ACCOUNTS}
        self._engines[key] = engine
        engine.start_clock_at(engine.clock_s + REST_S)
        engine.reset()
        engine.transfer()

        def ended(count: int) -> None:
            if say and len(requests) > 1:
                self.said(f"{engine.label}: {count} of {len(requests)} requests")

        served = load.serve(engine, requests, ended)
        moved, memory = engine.transfer(), engine.memory()
        figures = load.figures(served, self._objective())
        if figures["outcome"] == "host_oom" or (figures["outcome"] == "device_oom" and self._cap is None):
            del self._engines[key]  # the machine itself was full: what that left behind is not the next cell's affair
        if "batch" in variant and figures["outcome"] != "ok":
            # Of the rest alone, or on the way to where it ended, they would flatter.
            return figures | dict.fromkeys(performance_results.TIMES) | performance_results.NO_ACCOUNTS
        return {
            **figures,
            "device_peak_bytes": memory.device_peak_bytes,
            "device_kv_peak_bytes": memory.device_kv_peak_bytes,
            "host_peak_bytes": memory.host_peak_bytes,
            "h2d_bytes": moved.h2d_bytes,
            "d2h_bytes": moved.d2h_bytes,
            "preemptions": memory.preemptions,
            "modelled": bool(moved.h2d_bytes or moved.d2h_bytes) and not moved.measured,
        }

    def _made(self, engine_id: str, budget: float | None) -> AnyEngine:
        import engines

        model = self.model
        arena_tokens = self._most_tokens()
        if self._cap is not None:
            arena_tokens = min(arena_tokens, max(16, (self._cap - model.weights_bytes) // model.kv_bytes_per_token))
        self.said(f"making {ENGINE_LABELS[engine_id]}")
        return engines.create_engine(
            engine_id,
            model,
            budget=budget or 1.0,
            link=self.options.link,
            device_memory_bytes=self._cap,
            arena_tokens=arena_tokens,
        )

    def _most_tokens(self) -> int:
        """KV slots for the largest batch, and for all of a stream that can run at once: the same for all engines, as
        what a GPU has left would be less for each that is made later."""
        together = max([*self._batches, min(self.options.requests, MAX_RUNNING) if self._rates else 1])
        return together * (max(self._contexts) + max(self._new_tokens) + 32)

    def _objective(self) -> Objective:
        from probes.load import Objective

        return Objective(self.options.slo_ttft, self.options.slo_tpot)
