"""A plan: for each engine, prefill, context and batch, what it would take of a machine, and how fast it would be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from engines.machines import Gpu
from engines.sizes import size
from probes.plan.footprint import PREFILLS, Request, footprint
from probes.plan.planned_model import PlannedModel
from probes.plan.rates import Link, Rates
from probes.plan.roofline import times
from probes.studies.base import Cell, Chart, Point, Row, Rows

RESERVED_BYTES = 1 << 30  # assumed: the CUDA context, cuBLAS's workspaces and what an allocator cannot use
FASTER = 7  # NVLink-C2C against PCIe 5.0 x16, by NVIDIA's GH200 data sheet
MOST_TOKENS = 1 << 26
SHOWN = 8  # times what there is: a chart's upper end


@dataclass(frozen=True)
class Planner:
    """`device_bytes` and `host_bytes` (None: enough) are what may be used."""

    model: PlannedModel
    gpu: Gpu
    rates: Rates
    link: Link
    device_bytes: int
    host_bytes: int | None
    budget: float
    new_tokens: int

    def row(self, cell: Cell) -> Row:
        """Times are None where memory does not suffice."""
        request = self.request(cell)
        takes = footprint(self.model, request)
        fits = self.fits(request)
        at = times(self.model, request, self.rates, self.link) if fits else None
        paged = replace(request, engine="vllm", prefill="flash")
        base = times(self.model, paged, self.rates, self.link).tpot_s if self.fits(paged) else None
        counted = takes.device
        transient = sum(counted.get(kind, 0) for kind in ("scores", "layer KV", "score tiles", "speculation"))
        return {
            **cell,
            "fits": fits,
            "most_tokens": self.most_tokens(request),
            "device_bytes": takes.device_bytes,
            "weights_bytes": counted["weights"],
            "kv_bytes": takes.kv_bytes,
            "transient_bytes": transient,
            "activations_bytes": counted.get("activations", 0),
            "host_bytes": takes.host_bytes,
            "ttft_s": at and at.ttft_s,
            "tpot_s": at and at.tpot_s,
            "tok_s": at and request.batch / at.tpot_s,
            "slowdown": at and base and at.tpot_s / base,
            "h2d_bytes": at and at.h2d_bytes,
            "bound": at and at.bound,
            "beyond_model": request.context + request.new_tokens > self.model.shape.context,
            "modelled": True,
        }

    def request(self, cell: Cell) -> Request:
        return Request(cell["engine"], cell["context"], self.new_tokens, cell["batch"], self.budget, cell["prefill"])

    def fits(self, request: Request) -> bool:
        takes = footprint(self.model, request)
        return takes.device_bytes <= self.device_bytes and (
            self.host_bytes is None or takes.host_bytes <= self.host_bytes
        )

    def most_tokens(self, request: Request) -> int:
        """The longest prompt that fits, by bisection; 0 where none does."""
        low, high = 0, MOST_TOKENS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(replace(request, context=middle)) else (low, middle)
        return low

    def reading(self, rows: Rows) -> str:
        return " ".join(
            [
                f"Modelled, nothing here was measured: {self.model.name} in {self.model.width * 8} bits on "
                f"{self.gpu.name} with {size(self.device_bytes)} to use, {self.link.bytes_per_s / 1e9:g} GB/s to the "
                "host.",
                *self._said_of_memory(rows),
                *self._said_of_speed(rows),
                *self._said_of_length(rows),
            ]
        )

    def _said_of_memory(self, rows: Rows) -> list[str]:
        said = []
        for batch in dict.fromkeys(row["batch"] for row in rows):
            ends: dict[str, str] = {}
            for row in rows:
                if row["batch"] == batch:
                    ends[named(row)] = f"{row['most_tokens']:,}"
            many = ", ".join(f"{name} {tokens}" for name, tokens in ends.items())
            said.append(f"At batch {batch} device memory ends beyond so many tokens of prompt: {many}.")
        saved = []
        for row in rows:
            paged = _paged(rows, row)
            if row["engine"] == "h2o" and paged:
                saved.append(1 - row["kv_gb"] / paged["kv_gb"])
        if saved:
            said.append(
                f"H2O at a budget of {self.budget:g} holds {median(saved):.0%} less KV on the device than paged."
            )
        return said

    def _said_of_speed(self, rows: Rows) -> list[str]:
        slow = [row for row in rows if row["engine"] == "infinigen" and row["slowdown"]]
        if not slow:
            return []
        worst = max(slow, key=lambda row: row["slowdown"])
        request = self.request(worst)
        faster = Link(FASTER * self.link.bytes_per_s, self.link.latency_s)
        then = times(self.model, request, self.rates, faster)
        gap = worst["slowdown"] * then.tpot_s / worst["tpot_s"]
        return [
            f"InfiniGen takes up to {worst['slowdown']:.1f} times as long a token as paged ({named(worst)}, batch "
            f"{worst['batch']}, {worst['context']:,} tokens and {self.new_tokens:,} new ones), bound by "
            f"{worst['bound']}; over a link {FASTER} times as fast {gap:.1f} times, "
            f"bound by {then.bound}."
        ]

    def _said_of_length(self, rows: Rows) -> list[str]:
        if not any(row["beyond_model"] for row in rows):
            return []
        limit = self.model.shape.context
        return [f"{self.model.name} itself ends at {limit:,} tokens: what is beyond that is arithmetic only."]

    def charts(self, rows: Rows) -> list[Chart]:
        """Of the largest batch: bytes on the device, and TPOT, by context."""
        batch = max(row["batch"] for row in rows)
        taken: dict[str, list[Point]] = {}
        speed: dict[str, list[Point]] = {}
        for row in rows:
            if row["batch"] != batch:
                continue
            if row["device_gb"] * 1e9 < SHOWN * self.device_bytes:
                taken.setdefault(named(row), []).append(Point(row["context"], row["device_gb"]))
            if row["tpot_s"]:
                speed.setdefault(named(row), []).append(Point(row["context"], row["tpot_s"] * 1e3))
        contexts = sorted({row["context"] for row in rows})
        if len(contexts) == 1:
            return []
        taken["there is"] = [Point(context, self.device_bytes / 1e9) for context in contexts]
        about = f"{self.model.name}, {self.gpu.name}, batch {batch}, modelled"
        memory = Chart(
            "memory", f"Device memory: {about}", "context, tokens", "GB at the peak", taken, log_x=True, log_y=True
        )
        if not speed:
            return [memory]
        return [
            memory,
            Chart("tpot", f"TPOT: {about}", "context, tokens", "ms a token", speed, log_x=True, log_y=True),
        ]


def results(rows: Rows) -> Rows:
    """What a table has room for. The rows have all kinds, in bytes."""
    found = []
    for row in rows:
        short = {name: row[name] for name in ("engine", "prefill", "context", "batch", "fits", "most_tokens")}
        for kind in ("device", "kv", "transient", "host"):
            short[f"{kind}_gb"] = row[f"{kind}_bytes"] / 1e9
        names = ("ttft_s", "tpot_s", "tok_s", "slowdown", "bound", "beyond_model", "modelled")
        found.append(short | {name: row[name] for name in names})
    return found


def cells(engines: list[str], prefills: list[str], contexts: list[int], batches: list[int]) -> list[Cell]:
    """Paged has one prefill only, and is what the others are held against."""
    return [
        {"engine": engine, "prefill": way, "context": context, "batch": batch}
        for batch in batches
        for context in contexts
        for engine in engines
        for way in PREFILLS[engine]
        if way in prefills or engine == "vllm"
    ]


def named(row: Row) -> str:
    """Paged has one prefill only."""
    return "paged" if row["engine"] == "vllm" else f"{row['engine']} {row['prefill']}"


def _paged(rows: Rows, row: Row) -> Row | None:
    same = (row["context"], row["batch"])
    return next((one for one in rows if one["engine"] == "vllm" and (one["context"], one["batch"]) == same), None)
