"""Plans for models and machines that are not here, and the same arithmetic held against this machine."""

from __future__ import annotations

import argparse
from functools import cached_property
from typing import TYPE_CHECKING

from engines.errors import BadRequest
from engines.events import LinkInfo
from engines.machines import gpu, gpus, links
from probes.plan import forecast
from probes.plan.footprint import ENGINES, PREFILLS
from probes.plan.forecast import Planner
from probes.plan.planned_model import DTYPE_BYTES, planned_model
from probes.plan.rates import BANDWIDTH_SHARE, FLOPS_SHARE, link_of, of_gpu
from probes.studies.base import Cell, Chart, Measure, Rows, Study
from probes.studies.lists import counts, size, words

if TYPE_CHECKING:
    from probes.plan.calibration import Calibration

HERE = "here"
DEFAULT_LINK = "pcie4"
WAYS = tuple(dict.fromkeys(way for ways in PREFILLS.values() for way in ways))
# Elsewhere, and here.
MODELS, CONTEXTS, NEW_TOKENS = ("llama-2-7b", "smollm2-135m"), ("2k,8k,32k,128k", "512,1k,2k"), (512, 8)


class Plan(Study):
    name = "plan"
    summary = (
        "Memory, TTFT, TPOT and where memory ends, modelled for a GPU and a link; --gpu here: against this machine."
    )
    keys = ("engine", "prefill", "context", "batch")
    measures = (Measure("device_gb", "lower"), Measure("ttft_s", "lower"), Measure("tpot_s", "lower"))

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        absent = argparse.SUPPRESS  # what is said of defaults is in the help itself
        parser.add_argument(
            "--gpu", default="a100-80g", help=f"{', '.join(gpus())}; or here: calibrate on this machine"
        )
        parser.add_argument(
            "--link",
            default=absent,
            help=f"{', '.join(links())}, unscaled:<GB/s>; pcie4*7 is 7-fold (default: pcie4; here: as of kvtui)",
        )
        parser.add_argument(
            "--model", default=absent, help=f"short name, or a config.json (default: {MODELS[0]}; here: {MODELS[1]})"
        )
        parser.add_argument("--dtype", default="bfloat16", help=", ".join(DTYPE_BYTES))
        parser.add_argument(
            "--context",
            default=absent,
            help=f"tokens of prompt: 1k..128k doubles (default: {CONTEXTS[0]}; here: {CONTEXTS[1]})",
        )
        parser.add_argument("--batch", default="1,4,16", help="sequences at once; here: one")
        parser.add_argument(
            "--max-new-tokens",
            "--new-tokens",
            dest="new_tokens",
            default=absent,
            help=f"of each sequence (default: {NEW_TOKENS[0]}; here: {NEW_TOKENS[1]} a round)",
        )
        parser.add_argument("--budget", type=float, default=0.3, help="share of KV entries kept or fetched")
        parser.add_argument("--engines", default=",".join(ENGINES), help="which")
        parser.add_argument(
            "--prefill",
            default="published,flash",
            help=f"{', '.join(WAYS)}: those of kvtui, and the published code's: eager, a batch together",
        )
        parser.add_argument("--device-memory", default=absent, help="to use, such as 24GiB; else the GPU's less 1 GiB")
        parser.add_argument("--host-memory", default=absent, help="to use, such as 512GB; else enough")
        parser.add_argument("--bandwidth-share", type=float, default=BANDWIDTH_SHARE, help="of the data sheet's")
        parser.add_argument("--flops-share", type=float, default=FLOPS_SHARE, help="of the data sheet's, in prefill")
        parser.add_argument("--rounds", type=int, default=5, help="here: of micro-benchmarks and decode steps")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)

        def given(name: str) -> str | None:
            return getattr(options, name, None)

        self._is_here = options.gpu == HERE
        self._contexts = counts("--context", given("context") or CONTEXTS[self._is_here])
        new_tokens = counts("--new-tokens", given("new_tokens") or str(NEW_TOKENS[self._is_here]))
        if len(new_tokens) != 1:
            raise BadRequest("--new-tokens is one number")
        self._new_tokens = new_tokens[0]
        self._batches = counts("--batch", options.batch)
        self._engines = words("--engines", options.engines, ENGINES)
        self._prefills = words("--prefill", options.prefill, WAYS)
        _within(options.budget, "--budget")
        _within(options.bandwidth_share, "--bandwidth-share")
        _within(options.flops_share, "--flops-share")
        if options.rounds < 1:
            raise BadRequest(f"--rounds is 1 or more, not {options.rounds}")
        self._link = given("link") or (None if self._is_here else DEFAULT_LINK)
        self._device_bytes = size("--device-memory", given("device_memory"))
        self._host_bytes = size("--host-memory", given("host_memory"))
        self._model = given("model") or MODELS[self._is_here]
        if not self._is_here:
            _ = self._planner
            if not self.cells():
                raise BadRequest(f"none of {options.engines} has a prefill called {options.prefill}")

    def links(self) -> tuple[LinkInfo, ...]:
        if self._is_here:
            return self._calibration.links()
        link = self._planner.link
        info = LinkInfo(
            profile=str(self._link),
            measured=False,
            bytes_per_s=link.bytes_per_s,
            latency_s=link.latency_s,
            description=str(self._link),
        )
        return (info,)

    def cells(self) -> list[Cell]:
        if self._is_here:
            return [{"round": number} for number in range(self.options.rounds)]
        return forecast.cells(self._engines, self._prefills, self._contexts, self._batches)

    def measure(self, cell: Cell) -> Rows:
        return self._calibration.round(cell["round"]) if self._is_here else [self._planner.row(cell)]

    def results(self, rows: Rows) -> Rows:
        if self._is_here:
            from probes.plan import calibration

            return calibration.results(rows)
        return forecast.results(rows)

    def reading(self, results: Rows) -> str:
        if self._is_here:
            from probes.plan import calibration

            return calibration.reading(results)
        return self._planner.reading(results)

    def charts(self, results: Rows) -> list[Chart]:
        if self._is_here:
            from probes.plan import calibration

            return calibration.charts(results)
        return self._planner.charts(results)

    @cached_property
    def _planner(self) -> Planner:
        options = self.options
        on = gpu(options.gpu)
        return Planner(
            model=planned_model(self._model, options.dtype),
            gpu=on,
            rates=of_gpu(on, options.bandwidth_share, options.flops_share),
            link=link_of(str(self._link)),
            device_bytes=self._device_bytes or on.memory_bytes - forecast.RESERVED_BYTES,
            host_bytes=self._host_bytes,
            budget=options.budget,
            new_tokens=self._new_tokens,
        )

    @cached_property
    def _calibration(self) -> Calibration:
        import engines
        from probes.plan.calibration import Calibration

        model = engines.load_model(self._model, dtype=self.options.dtype)
        return Calibration(model, self._contexts, self.options.budget, self._link, self._new_tokens)


def _within(share: float, option: str) -> None:
    if not 0 < share <= 1:
        raise BadRequest(f"{option} is a share above 0 and at most 1, not {share:g}")
