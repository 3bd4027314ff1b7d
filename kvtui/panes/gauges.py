"""Graphs of the machine over time: what its GPUs and its host tell, and the engines' own traffic beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engines.events import Gpu, Sample
from kvtui import figures, palette
from kvtui.literal import one_line
from kvtui.machine import NO_DRIVER, Machine, Place, place, together
from kvtui.names import name_of
from kvtui.panes.chart import Columns, Gauge, drawn, halves, legend, tops
from kvtui.panes.lines import Lines, Piece, spread, to_pieces, to_strip
from kvtui.panes.machine_line import held, lost, pcie, percent, rate
from kvtui.state import RunState
from probes.history import Bucket, History

SIDE_BY_SIDE_FROM = 100  # cells
LEGEND_FROM = 8  # lines
COMPARED_S = 2.0  # what is held against each other is averaged: the driver looks at 20 ms, engines tell in pieces
_DIRECTIONS = (
    ("to device", "pcie_rx_bytes_per_s", "h2d_bytes_per_s"),
    ("to host", "pcie_tx_bytes_per_s", "d2h_bytes_per_s"),
)


class Gauges(Lines):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._state, self._window_s = RunState(), 120.0
        self._place: Place | None = None

    def show(self, state: RunState, window_s: float, chosen: Place | None) -> None:
        """The last `window_s` seconds, and of several GPUs the `chosen` one (None: all together)."""
        self._state, self._window_s, self._place = state, window_s, chosen
        self.redraw()

    def key(self) -> Any:
        machine = self._state.machine
        links = [link.history.version for link in machine.links.values()]
        over = self._state.over
        return id(machine), over, machine.host.version, links, self._window_s, self._place, palette.now.name

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        machine = self._state.machine
        title = self._title(width)
        if machine.latest is None:
            return [title, [], [("  Nothing is known of the machine yet.", palette.style(palette.now.dim))]]
        device, host = self._device(machine, machine.latest), self._host(machine, machine.latest)
        each = self._each_link(machine)
        if self._state.over:  # nobody measures any more: the graphs are the past, and there is no present
            for gauge in (*device, *host, *each):
                gauge.now, gauge.facts = "–", []
        wide = width >= SIDE_BY_SIDE_FROM
        half = (width - 2) // 2 if wide else width
        explained = f" {legend(width - 1, half, self._window_s)}" if height >= LEGEND_FROM else ""
        below: list[list[Piece]] = [[(explained, palette.style(palette.now.dim, italic=True))]] if explained else []
        room = height - 1 - len(below)
        if not wide:
            return [title, *drawn([*device, *host], width, room, self._window_s), *below]
        ones, others = halves([*device, *each], host)
        left, right = (drawn(side, half, room, self._window_s) for side in (ones, others))
        blank = [(" " * half, palette.style())]
        lines = []
        for row in range(max(len(left), len(right))):
            begin = to_pieces(to_strip(left[row], half)) if row < len(left) else []
            begin = spread(begin, [], half) if begin else blank
            lines.append([*begin, ("  ", palette.style()), *(right[row] if row < len(right) else [])])
        return [title, *lines, *below]

    def _title(self, width: int) -> list[Piece]:
        strong, dim = palette.style(palette.now.foreground, bold=True), palette.style(palette.now.dim)
        sample = self._state.machine.latest
        right: list[Piece] = []
        if sample is not None and lost(sample):
            right = [(f"✖ {lost(sample)} ", palette.style(palette.now.error, bold=True))]
        elif self._state.over:
            right = [("not measured any more ", dim)]
        elif sample is not None and sample.gpus:
            gpu = self._gpu(sample)
            right = [(f"{_named(gpu, sample, self._place)} ", dim)] if gpu is not None else []
        elif sample is not None:
            right = [(f"{NO_DRIVER} ", dim)]
        return spread([(" machine  ", strong), (f"the last {_span(self._window_s)}", dim)], right, width)

    def _gpu(self, sample: Sample) -> Gpu | None:
        if self._place is None:
            return together(sample.gpus)
        return next((gpu for gpu in sample.gpus if place(gpu) == self._place), None)

    def _device(self, machine: Machine, sample: Sample) -> list[Gauge]:
        gauges, gpu = [], self._gpu(sample)
        if machine.gpus:
            busy = percent(gpu.busy_percent) if gpu is not None else "n/a"
            columns = self._of_gpus(machine, "busy_percent", mean=True)
            gauges.append(Gauge("GPU busy", busy, _condition(gpu), columns, 100.0, percent))
            memory = held(gpu.used_bytes, gpu.total_bytes) if gpu is not None else "n/a"
            scale = float(gpu.total_bytes or 1) if gpu is not None else 1.0
            columns = self._of_gpus(machine, "used_bytes")
            gauges.append(Gauge("GPU memory", memory, [], columns, scale, figures.size))
        for direction in _DIRECTIONS:
            gauges += self._link(machine, gpu, *direction)
        return gauges

    def _link(self, machine: Machine, gpu: Gpu | None, label: str, probed: str, told: str) -> list[Gauge]:
        """The bus as the driver sees it, the engines as they count, on one scale; and how they differ. What a modelled
        link moves is on no bus."""
        links = {id: link for id, link in machine.links.items() if link.history.version}
        rates = {id: self._recently(link.history, told, machine) for id, link in links.items()}
        measured = [rates[id] for id, link in links.items() if link.measured]
        bus = self._mean(machine, probed)
        engines = self._of_engines([link.history for link in links.values()], told)
        on_bus = self._of_gpus(machine, probed)
        scale = figures.ceiling(max([*tops(engines), *tops(on_bus)], default=0.0))
        each = [
            f"{one_line(name_of(id))} {figures.rate(value)}{'' if links[id].measured else ' modelled'}"
            for id, value in rates.items()
            if value or len(rates) == 1
        ]
        whole, mark = rate(sum(rates.values())), "modelled" if rates and not measured else ""
        movers = self._movers(machine, told)
        gauges = []
        if machine.gpus:
            kind = pcie(gpu) if gpu is not None else "PCIe"
            facts = []
            if bus is not None and measured:
                facts = [f"{_signed(bus - sum(measured))} beyond engines"]
            elif bus is not None and rates:
                facts = ["modelled traffic apart"]
            gauges.append(Gauge(f"{kind} {label}", rate(bus), facts, on_bus, scale, figures.rate, facts_first=1))
        if len(movers) == 1:  # its chart and that of all engines are the same
            (id,) = movers
            color = palette.engine_color(id)
            name = f"{one_line(name_of(id))} {label}"
            gauges.append(Gauge(name, whole, [], engines, scale, figures.rate, color, mark))
        elif links:
            each = each if len(rates) > 1 else []
            gauges.append(Gauge(f"engines {label}", whole, each, engines, scale, figures.rate, mark=mark))
        return gauges

    def _each_link(self, machine: Machine) -> list[Gauge]:
        """One engine after the other, of those that have moved anything, where they are several."""
        gauges = []
        for label, _, told in _DIRECTIONS:
            parts = self._movers(machine, told)
            if len(parts) == 1:
                continue
            scale = figures.ceiling(max((top for part in parts.values() for top in tops(part)), default=0.0))
            for id, part in parts.items():
                now = self._recently(machine.links[id].history, told, machine)
                mark = "" if machine.links[id].measured else "modelled"
                name, color = f"{one_line(name_of(id))} {label}", palette.engine_color(id)
                gauges.append(Gauge(name, figures.rate(now), [], part, scale, figures.rate, color, mark))
        return gauges

    def _movers(self, machine: Machine, told: str) -> dict[str, Columns]:
        """The engines that have moved anything in that direction."""
        parts = {id: self._of(link.history, told) for id, link in machine.links.items() if link.history.version}
        return {id: part for id, part in parts.items() if max(tops(part), default=0.0) > 0}

    def _recently(self, history: History, name: str, machine: Machine) -> float:
        return history.mean(name, machine.sampled_s - COMPARED_S, machine.sampled_s + 1e-6) or 0.0

    def _host(self, machine: Machine, sample: Sample) -> list[Gauge]:
        limit, faulted = sample.memory_limit_bytes, sample.worker_page_faults_per_s
        contained = [f"container {held(sample.memory_limit_used_bytes, limit)}"] if limit is not None else []
        pinned = [] if sample.pinned_bytes is None else [f"pinned {figures.size(sample.pinned_bytes)}"]
        used = held(sample.host_used_bytes, sample.host_total_bytes)

        def scale(name: str, least: float = 1.0) -> float:
            return figures.ceiling(max([least, *tops(self._of(machine.host, name))]))

        cores, own, rss = scale("host_cpu_percent", 100.0), scale("face_cpu_percent", 100.0), scale("worker_rss_bytes")
        total, faults = float(sample.host_total_bytes or 1), scale("worker_page_faults_per_s")
        rows: list[tuple[str, str, list[str], str, float, Callable[[float], str]]] = [
            ("CPU, all programs", percent(sample.host_cpu_percent), [], "host_cpu_percent", cores, percent),
            ("worker's CPU", percent(sample.worker_cpu_percent), [], "worker_cpu_percent", cores, percent),
            ("UI's CPU", percent(sample.face_cpu_percent), [], "face_cpu_percent", own, percent),
            ("worker's memory", _bytes(sample.worker_rss_bytes), pinned, "worker_rss_bytes", rss, figures.size),
            ("UI's memory", _bytes(sample.face_rss_bytes), [], "face_rss_bytes", rss, figures.size),
            ("memory in use", used, contained, "host_used_bytes", total, figures.size),
            ("page faults", _faults(faulted), [], "worker_page_faults_per_s", faults, _faults),
        ]
        return [
            Gauge(label, now, facts, self._of(machine.host, name), scale, unit)
            for label, now, facts, name, scale, unit in rows
        ]

    def _mean(self, machine: Machine, name: str) -> float | None:
        end_s = machine.sampled_s
        (bucket,) = _summed([h.buckets(name, end_s - COMPARED_S, end_s + 1e-6, 1) for h in self._histories(machine)])
        return None if bucket is None else bucket[1]

    def _histories(self, machine: Machine) -> list[History]:
        """Of the GPU that is chosen, or of all of them; slices are parts of one."""
        if self._place is not None:
            return [history for at, history in machine.gpus.items() if at == self._place]
        return [history for at, history in machine.gpus.items() if at[1] < 0]

    def _of(self, history: History, name: str) -> Columns:
        end_s = self._state.machine.sampled_s + 1e-6
        return lambda count: history.buckets(name, end_s - self._window_s, end_s, count)

    def _of_gpus(self, machine: Machine, name: str, mean: bool = False) -> Columns:
        parts = [self._of(history, name) for history in self._histories(machine)]
        return lambda count: _summed([part(count) for part in parts], count, mean)

    def _of_engines(self, histories: list[History], name: str) -> Columns:
        parts = [self._of(history, name) for history in histories]
        return lambda count: _summed([part(count) for part in parts], count)


def _summed(rows: list[Sequence[Bucket | None]], count: int = 1, mean: bool = False) -> list[Bucket | None]:
    """Of the same parts of time, as far as they are known."""
    found: list[Bucket | None] = []
    for column in range(count):
        known = [bucket for row in rows if (bucket := row[column]) is not None]
        share = 1 / len(known) if mean and known else 1
        parts = [share * sum(bucket[part] for bucket in known) for part in range(3)]
        found.append((parts[0], parts[1], parts[2]) if known else None)
    return found


def _condition(gpu: Gpu | None) -> list[str]:
    """What has no graph: power, heat, clocks, NVLink."""
    if gpu is None:
        return []
    limit = f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
    facts = ["power n/a" if gpu.power_w is None else f"{gpu.power_w:.0f}{limit} W"]
    facts.append("temperature n/a" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C")
    if gpu.sm_clock_hz is not None:
        facts.append(f"{gpu.sm_clock_hz / 1e6:,.0f} MHz")
    if gpu.nvlink_rx_bytes_per_s is not None or gpu.nvlink_tx_bytes_per_s is not None:
        facts.append(f"NVLink in {rate(gpu.nvlink_rx_bytes_per_s)}, out {rate(gpu.nvlink_tx_bytes_per_s)}")
    return facts


def _named(gpu: Gpu, sample: Sample, chosen: Place | None) -> str:
    count = sum(gpu.slice_of is None for gpu in sample.gpus)
    if chosen is None and count > 1:
        return f"all {count} GPUs"
    which = f"GPU {gpu.index}" if gpu.slice_of is None else f"GPU {gpu.slice_of}, slice {gpu.index}"
    return f"{which}  {one_line(gpu.name)}"


def _bytes(size_bytes: int | None) -> str:
    return "n/a" if size_bytes is None else figures.size(size_bytes)


def _faults(per_s: float | None) -> str:
    return "n/a" if per_s is None else f"{per_s:,.0f}/s"


def _signed(bytes_per_s: float) -> str:
    return f"{'−' if bytes_per_s < 0 else '+'}{figures.rate(abs(bytes_per_s))}"


def _span(window_s: float) -> str:
    for unit_s, unit in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        if window_s >= unit_s:
            return figures.counted(round(window_s / unit_s), unit)
    return f"{window_s:.0f} seconds"
