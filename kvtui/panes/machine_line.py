"""One line about the machine: its GPUs, the worker, this process, its memory. Fewer facts where there is less room."""

from __future__ import annotations

from typing import Any

from engines.events import Gpu, Sample
from kvtui import figures, palette
from kvtui.literal import brief
from kvtui.machine import together
from kvtui.panes.lines import Lines, Piece, pieces_len
from kvtui.state import RunState

GAP = "  "
Fact = tuple[int, list[Piece]]  # how long it stays where room gets scarce, and what it says


class MachineLine(Lines):
    """Not there before anything is known."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sample: Sample | None = None

    def show(self, state: RunState) -> None:
        self._sample = state.machine.latest
        self.set_class(self._sample is not None, "-known")
        self.redraw()

    def key(self) -> Any:
        return id(self._sample), palette.now.name

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        sample = self._sample
        if sample is None:
            return []
        facts = [*_gpu_facts(sample), *_host_facts(sample)]
        while len(facts) > 1 and _width(facts) > width:
            facts.remove(min(facts, key=lambda fact: fact[0]))
        line: list[Piece] = [(" ", palette.style())]
        for number, (_, pieces) in enumerate(facts):
            line += [(GAP, palette.style()), *pieces] if number else pieces
        return [line]


def lost(sample: Sample) -> str:
    """What became of the driver, if anything did."""
    if sample.driver in ("", "ok"):
        return ""
    return f"GPU driver lost ({brief(sample.driver)}), looking again"


def percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f} %"


def held(used_bytes: int | None, total_bytes: int | None) -> str:
    """ "41.2/80.0 GB"."""
    if used_bytes is None or total_bytes is None:
        return "n/a" if used_bytes is None else figures.size(used_bytes)
    used, total = figures.size(used_bytes), figures.size(total_bytes)
    if used.split(" ")[1] == total.split(" ")[1]:
        used = used.split(" ")[0]
    return f"{used}/{total}"


def pcie(gpu: Gpu) -> str:
    """What kind: "PCIe4x16"."""
    lanes = f"x{gpu.pcie_lanes}" if gpu.pcie_lanes is not None else ""
    return f"PCIe{gpu.pcie_generation or ''}{lanes}"


def rate(bytes_per_s: float | None) -> str:
    return "n/a" if bytes_per_s is None else figures.rate(bytes_per_s)


def _width(facts: list[Fact]) -> int:
    return 2 + sum(pieces_len(pieces) for _, pieces in facts) + len(GAP) * (len(facts) - 1)


def _gpu_facts(sample: Sample) -> list[Fact]:
    bad = palette.style(palette.now.error, bold=True)
    facts: list[Fact] = [(100, [(f"✖ {lost(sample)}", bad)])] if lost(sample) else []
    gpu = together(sample.gpus)
    if gpu is None:
        return facts
    count = sum(gpu.slice_of is None for gpu in sample.gpus)
    watts = "n/a" if gpu.power_w is None else f"{gpu.power_w:.0f}"
    heat = "n/a" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}"
    up, down = rate(gpu.pcie_rx_bytes_per_s), rate(gpu.pcie_tx_bytes_per_s)
    return [
        *facts,
        (90, _fact(f"{count} GPUs" if count > 1 else "GPU", f"{percent(gpu.busy_percent):>5}")),
        (80, _fact("", f"{held(gpu.used_bytes, gpu.total_bytes):>12}")),
        (20, _fact("", f"{watts:>3} W")),
        (10, _fact("", f"{heat:>2} °C")),
        (60, _fact(pcie(gpu), f"↑ {up:>9} ↓ {down:>9}")),
    ]


def _host_facts(sample: Sample) -> list[Fact]:
    facts: list[Fact] = []
    if sample.worker_rss_bytes is not None:
        facts.append((70, _fact("worker", f"{percent(sample.worker_cpu_percent):>5} {_size(sample.worker_rss_bytes)}")))
    if sample.face_rss_bytes is not None:
        facts.append((30, _fact("UI", f"{percent(sample.face_cpu_percent):>5} {_size(sample.face_rss_bytes)}")))
    if sample.host_cpu_percent is not None:
        facts.append((40, _fact("CPU", f"{percent(sample.host_cpu_percent):>5}")))
    if sample.host_used_bytes is not None:
        facts.append((50, _fact("RAM", f"{held(sample.host_used_bytes, sample.host_total_bytes):>12}")))
    if sample.memory_limit_bytes is not None:
        limit = held(sample.memory_limit_used_bytes, sample.memory_limit_bytes)
        facts.append((55, _fact("container", f"{limit:>12}")))
    if sample.worker_page_faults_per_s:
        facts.append((45, _fact("page faults", f"{sample.worker_page_faults_per_s:,.0f}/s")))
    if sample.pinned_bytes:
        facts.append((5, _fact("pinned", _size(sample.pinned_bytes))))
    return facts


def _size(size_bytes: int) -> str:
    return f"{figures.size(size_bytes):>7}"


def _fact(label: str, value: str) -> list[Piece]:
    dim, plain = palette.style(palette.now.dim), palette.style(palette.now.foreground)
    return [(f"{label} ", dim), (value, plain)] if label else [(value, plain)]
