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
Fact = tuple[int, list[list[Piece]]]  # the greater, the sooner it gets room; what it says, in more words and in fewer


class MachineLine(Lines):
    """Not there before anything is known. When the worker has ended, nobody measures any more."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._sample: Sample | None = None
        self._over = False

    def show(self, state: RunState) -> None:
        self._sample, self._over = state.machine.latest, state.over
        self.set_class(self._sample is not None, "-known")
        self.redraw()

    def key(self) -> Any:
        return id(self._sample), self._over, palette.now.name

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        sample = self._sample
        if sample is None:
            return []
        facts = [*_gpu_facts(sample), *_host_facts(sample)]
        if self._over:
            facts = [(weight, _unknown(words[0])) for weight, words in facts]
        said: dict[int, list[Piece]] = {}  # by place in the line
        room = width - 2 + len(GAP)
        for at in sorted(range(len(facts)), key=lambda at: -facts[at][0]):
            fits = (words for words in facts[at][1] if pieces_len(words) + len(GAP) <= room)
            if (words := next(fits, None)) is not None:
                said[at] = words
                room -= pieces_len(words) + len(GAP)
        line: list[Piece] = [(" ", palette.style())]
        for number, at in enumerate(sorted(said)):
            line += [(GAP, palette.style()), *said[at]] if number else said[at]
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


def _gpu_facts(sample: Sample) -> list[Fact]:
    bad = palette.style(palette.now.error, bold=True)
    worded = [f"✖ {lost(sample)}", "✖ GPU driver lost, looking again", "✖ GPU lost"]
    facts: list[Fact] = [(100, [[(words, bad)] for words in worded])] if lost(sample) else []
    gpu = together(sample.gpus)
    if gpu is None:
        return facts
    count = sum(gpu.slice_of is None for gpu in sample.gpus)
    watts = "n/a" if gpu.power_w is None else f"{gpu.power_w:.0f}"
    heat = "n/a" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f}"
    up_bytes, down_bytes = gpu.pcie_rx_bytes_per_s, gpu.pcie_tx_bytes_per_s
    up, down = rate(up_bytes), rate(down_bytes)
    terse = f"↑{_gb(up_bytes)} ↓{_gb(down_bytes)} GB/s"
    return [
        *facts,
        (90, _fact(f"{count} GPUs" if count > 1 else "GPU", f"{percent(gpu.busy_percent):>5}")),
        (80, _fact("", f"{held(gpu.used_bytes, gpu.total_bytes):>12}")),
        (20, _fact("", f"{watts:>3} W")),
        (10, _fact("", f"{heat:>2} °C")),
        (60, [*_fact(pcie(gpu), f"↑ {up:>9} ↓ {down:>9}"), *_fact("PCIe", terse)]),
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


def _unknown(words: list[Piece]) -> list[list[Piece]]:
    """The label without its figure; what has no label was a figure alone, or says what became of the driver."""
    label = [words[0], ("–", palette.style(palette.now.dim))]
    return [label] if len(words) > 1 else [words] if words[0][0].startswith("✖") else []


def _gb(size_bytes: int | None) -> str:
    return " n/a" if size_bytes is None else f"{size_bytes / 1e9:4.1f}"


def _size(size_bytes: int) -> str:
    return f"{figures.size(size_bytes):>7}"


def _fact(label: str, value: str) -> list[list[Piece]]:
    dim, plain = palette.style(palette.now.dim), palette.style(palette.now.foreground)
    return [[(f"{label} ", dim), (value, plain)] if label else [(value, plain)]]
