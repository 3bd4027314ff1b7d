"""Moving bytes between host and device: a modelled link for a stand-in device, a measured one on CUDA.

A modelled transfer copies at once, outside the engine's clock, and then occupies the link on that clock for
latency + bytes / bandwidth; only a consumer that comes too early waits. So overlap is modelled as it would happen, and
nothing ever sleeps. Everything shown of it is marked as modelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engines import machines
from engines.clock import Clock
from engines.errors import BadRequest
from engines.events import LinkInfo
from engines.machines import GB, LATENCY_S


@dataclass(frozen=True)
class Profile:
    """A machine's link and device-memory bandwidth, bytes a second, one direction (see engines.machines)."""

    description: str
    link_bytes_per_s: float
    device_bytes_per_s: float


def _profile(link: machines.LinkKind) -> Profile:
    gpu = machines.gpu(link.gpu)
    return Profile(f"{gpu.label}:{link.label}", link.bytes_per_s, gpu.bytes_per_s)


PROFILES = {name: _profile(link) for name, link in machines.links().items()}
DEFAULT_PROFILE = "pcie4"


_seen_bytes_per_s: list[float] = []


def memory_bytes_per_s() -> float:
    """Read bandwidth of this machine's memory with torch's threads: the best that was seen in this process."""
    return max(_seen_bytes_per_s) if _seen_bytes_per_s else look_again()


def look_again() -> float:
    """Measures it anew, for it may have been measured on a busy machine: the best of a few sums over 128 MiB. Returns
    the best of all."""
    block = torch.ones(32 << 20, dtype=torch.float32)
    best_s = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        block.sum()
        best_s = min(best_s, time.perf_counter() - start)
    _seen_bytes_per_s.append(block.nbytes / best_s)
    return max(_seen_bytes_per_s)


def modelled(name: str | None) -> LinkInfo:
    """The link that a profile name stands for: its ratio of link to device memory bandwidth, applied to this machine's
    memory; `unscaled:<GB/s>` takes the figure as it is. Raises BadRequest for other names."""
    name = name or DEFAULT_PROFILE
    if name.startswith("unscaled:"):
        try:
            rate = float(name.removeprefix("unscaled:")) * GB
        except ValueError:
            rate = 0.0
        if not 0 < rate < float("inf"):
            raise BadRequest(f"link {name!r}: write unscaled:<GB/s>, for example unscaled:12.5")
        description = f"{rate / GB:g} GB/s"
    elif name in PROFILES:
        profile = PROFILES[name]
        rate = memory_bytes_per_s() * profile.link_bytes_per_s / profile.device_bytes_per_s
        description = profile.description
    else:
        raise BadRequest(f"unknown link profile {name!r}: choose one of {', '.join(PROFILES)}, unscaled:<GB/s>")
    return LinkInfo(profile=name, measured=False, bytes_per_s=rate, latency_s=LATENCY_S, description=description)


def _nothing() -> float:
    return 0.0


@dataclass
class Traffic:
    """What went over the link: bytes by direction, seconds it was busy, and seconds of it that somebody waited for.
    Where entries stay on the device: the bytes that did not have to move, and how many of the `wanted` entries were
    `found` there."""

    h2d_bytes: int = 0
    d2h_bytes: int = 0
    busy_s: float = 0.0
    stalled_s: float = 0.0
    saved_bytes: int = 0
    wanted: int = 0
    found: int = 0

    @property
    def hidden_s(self) -> float:
        return max(0.0, self.busy_s - self.stalled_s)


@dataclass
class ModelledLink:
    """Two directions, each one transfer at a time, on the engine's clock."""

    info: LinkInfo
    clock: Clock
    traffic: Traffic = field(default_factory=Traffic)
    _h2d_free_s: float = 0.0
    _d2h_free_s: float = 0.0

    def to_device(self, size_bytes: int, copy: Callable[[], None], before_s: Callable[[], float] = _nothing) -> float:
        """Copies, and returns when (on the engine's clock) the bytes are there. `before_s`, asked after the copy, tells
        how much of it passed before the bytes came to the link: reading a disk is not modelled."""
        with self.clock.excluded():
            copy()
        duration_s = self._duration_s(size_bytes) + before_s()
        self._h2d_free_s = max(self.clock.now_s, self._h2d_free_s) + duration_s
        self.traffic.h2d_bytes += size_bytes
        self.traffic.busy_s += duration_s
        return self._h2d_free_s

    def to_host(self, size_bytes: int, copy: Callable[[], None], sources: Iterable[Tensor] = ()) -> float:
        """`sources`, what is copied from, may be let go of at once."""
        with self.clock.excluded():
            copy()
        duration_s = self._duration_s(size_bytes)
        self._d2h_free_s = max(self.clock.now_s, self._d2h_free_s) + duration_s
        self.traffic.d2h_bytes += size_bytes
        self.traffic.busy_s += duration_s
        return self._d2h_free_s

    def wait(self, arrival_s: float) -> None:
        self.traffic.stalled_s += self.clock.wait_until(arrival_s)

    def settle(self) -> None:
        """Nothing to collect: modelled times are known at once."""

    def renew(self) -> None:
        """Takes the memory's bandwidth as it is known now."""
        self.info = modelled(self.info.profile)

    def _duration_s(self, size_bytes: int) -> float:
        return self.info.latency_s + size_bytes / self.info.bytes_per_s if size_bytes else 0.0


class CudaLink:
    """The real link: copies on side streams from and to pinned memory, timed by CUDA events.

    Nothing here synchronises the device; `settle` is called after a step, when the clock has done so anyway."""

    def __init__(self, info: LinkInfo, device: torch.device) -> None:
        self.info = info
        self.traffic = Traffic()
        self._device = device
        self._h2d, self._d2h = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._busy: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._stalls: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def to_device(
        self, size_bytes: int, copy: Callable[[], None], before_s: Callable[[], float] = _nothing
    ) -> torch.cuda.Event:
        """Here all of it is measured; `before_s` is part of that."""
        self.traffic.h2d_bytes += size_bytes
        return self._on(self._h2d, copy)

    def to_host(self, size_bytes: int, copy: Callable[[], None], sources: Iterable[Tensor] = ()) -> torch.cuda.Event:
        self.traffic.d2h_bytes += size_bytes
        arrival = self._on(self._d2h, copy)
        for source in sources:  # their memory serves nobody else before the copy has read it
            source.record_stream(self._d2h)
        return arrival

    def wait(self, arrival: torch.cuda.Event) -> None:
        """The compute stream waits for the copy, and only for it."""
        compute = torch.cuda.current_stream(self._device)
        before, after = self._timer(), self._timer()
        before.record(compute)
        compute.wait_event(arrival)
        after.record(compute)
        self._stalls.append((before, after))

    def settle(self) -> None:
        """Adds the times of finished copies and waits to the traffic."""
        self.traffic.busy_s += sum(start.elapsed_time(end) for start, end in self._busy) / 1e3
        self.traffic.stalled_s += sum(start.elapsed_time(end) for start, end in self._stalls) / 1e3
        self._busy.clear()
        self._stalls.clear()

    def renew(self) -> None:
        """Nothing: it is measured as it goes."""

    def _on(self, stream: torch.cuda.Stream, copy: Callable[[], None]) -> torch.cuda.Event:
        # The copy reads or overwrites tensors of the compute stream: it starts after what that has queued so far.
        stream.wait_stream(torch.cuda.current_stream(self._device))
        start, end = self._timer(), self._timer()
        with torch.cuda.stream(stream):
            start.record(stream)
            copy()
            end.record(stream)
        self._busy.append((start, end))
        return end

    @staticmethod
    def _timer() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)


Link = ModelledLink | CudaLink


def measured(device: torch.device) -> LinkInfo:
    """The host-to-device bandwidth of a CUDA device, from a few pinned copies of 64 MiB."""
    source = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    best_s = float("inf")
    for _ in range(5):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - start)
    name = torch.cuda.get_device_name(device)
    return LinkInfo(
        profile="measured", measured=True, bytes_per_s=source.nbytes / best_s, latency_s=0.0, description=name
    )


def open_link(name: str | None, device: torch.device, clock: Clock) -> Link:
    """A measured link on CUDA unless a profile is asked for by name; a modelled one elsewhere."""
    if device.type == "cuda" and name is None:
        return CudaLink(measured(device), device)
    return ModelledLink(modelled(name), clock)


def renew(links: Iterable[Link]) -> None:
    """Looks at the memory again. All links of a race at one time, as they must be equally fast."""
    look_again()
    for link in links:
        link.renew()
