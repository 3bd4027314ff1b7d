"""What the machine was like over a run: samples and the engines' own traffic, on one line of time. Pure, like the
state that it is part of."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engines.events import Event, Gpu, Sample, Transfer
from probes.history import History

NO_DRIVER = "no NVIDIA driver was found"
RATE_WINDOW_S = 1.0  # engines tell what they moved in pieces, at most ten times a second
HOST_FIGURES = (
    "worker_rss_bytes",
    "worker_cpu_percent",
    "worker_page_faults_per_s",
    "face_rss_bytes",
    "face_cpu_percent",
    "host_used_bytes",
    "host_cpu_percent",
    "pinned_bytes",
)
GPU_FIGURES = ("used_bytes", "busy_percent", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s")
LINK_FIGURES = ("h2d_bytes_per_s", "d2h_bytes_per_s")
Place = tuple[int, int]  # a GPU's index, and -1 or its slice's

_Totals = tuple[float, int, int]  # when, bytes to the device and to the host until then


def place(gpu: Gpu) -> Place:
    return (gpu.index, -1) if gpu.slice_of is None else (gpu.slice_of, gpu.index)


@dataclass
class Link:
    """One engine's traffic in the wall's time, not on its own clock: it is what a probe of the bus can be held
    against. Rates are those of the last RATE_WINDOW_S."""

    measured: bool = False
    h2d_bytes_per_s: float = 0.0
    d2h_bytes_per_s: float = 0.0
    history: History = field(default_factory=lambda: History(LINK_FIGURES))
    _totals: deque[_Totals] = field(default_factory=deque)
    _h2d_bytes: int = 0
    _d2h_bytes: int = 0

    def moved(self, event: Transfer) -> None:
        self.measured = event.measured
        self._h2d_bytes += event.h2d_bytes
        self._d2h_bytes += event.d2h_bytes

    def sample(self, at_s: float) -> None:
        totals = self._totals
        totals.append((at_s, self._h2d_bytes, self._d2h_bytes))
        while len(totals) > 2 and totals[1][0] <= at_s - RATE_WINDOW_S:
            totals.popleft()
        span_s = at_s - totals[0][0]
        if span_s > 0:
            self.h2d_bytes_per_s = (self._h2d_bytes - totals[0][1]) / span_s
            self.d2h_bytes_per_s = (self._d2h_bytes - totals[0][2]) / span_s
            self.history.add(at_s, (self.h2d_bytes_per_s, self.d2h_bytes_per_s))


@dataclass
class Machine:
    """`now_s` goes on over all runs of a session; a run's own time begins anew with each. `latest` is None before the
    first sample."""

    latest: Sample | None = None
    now_s: float = 0.0
    sampled_s: float = 0.0
    host: History = field(default_factory=lambda: History(HOST_FIGURES))
    gpus: dict[Place, History] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    _run: str = ""
    _run_began_s: float = 0.0

    def hear(self, event: Event) -> None:
        """Any event: what time it is."""
        if event.wall_s <= 0:  # it does not tell
            return
        if event.run != self._run:
            self._run, self._run_began_s = event.run, self.now_s - event.wall_s
        self.now_s = max(self.now_s, self._run_began_s + event.wall_s)

    def add_transfer(self, event: Transfer) -> None:
        self.links.setdefault(event.engine, Link()).moved(event)

    def add_sample(self, sample: Sample) -> None:
        """Samples of older recordings have no time of their own: it is that of what was said last."""
        self.latest, self.sampled_s = sample, self.now_s
        self.host.add(self.now_s, [getattr(sample, name) for name in HOST_FIGURES])
        for gpu in sample.gpus:
            history = self.gpus.setdefault(place(gpu), History(GPU_FIGURES))
            history.add(self.now_s, [getattr(gpu, name) for name in GPU_FIGURES])
        for link in self.links.values():
            link.sample(self.now_s)


def together(gpus: list[Gpu]) -> Gpu | None:
    """All GPUs as if they were one: sums, the mean of how busy they are, the highest temperature, the first one's
    kind of PCIe. Slices are parts of a GPU and not counted again. None where there is no GPU."""
    whole = [gpu for gpu in gpus if gpu.slice_of is None]
    if len(whole) <= 1:
        return whole[0] if whole else None

    def told(name: str) -> list[float]:
        return [value for gpu in whole if (value := getattr(gpu, name)) is not None]

    def total(name: str) -> int | None:
        return int(sum(told(name))) if told(name) else None

    busy, watts, heat = told("busy_percent"), told("power_w"), told("temperature_c")
    return Gpu(
        index=whole[0].index,
        name=whole[0].name,
        used_bytes=total("used_bytes"),
        total_bytes=total("total_bytes"),
        busy_percent=sum(busy) / len(busy) if busy else None,
        power_w=sum(watts) if watts else None,
        temperature_c=max(heat, default=None),
        pcie_generation=whole[0].pcie_generation,
        pcie_lanes=whole[0].pcie_lanes,
        pcie_rx_bytes_per_s=total("pcie_rx_bytes_per_s"),
        pcie_tx_bytes_per_s=total("pcie_tx_bytes_per_s"),
        nvlink_rx_bytes_per_s=total("nvlink_rx_bytes_per_s"),
        nvlink_tx_bytes_per_s=total("nvlink_tx_bytes_per_s"),
    )
