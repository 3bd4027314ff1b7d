"""What GPUs say of themselves, through NVML (the `pynvml` module of nvidia-ml-py): every figure, or None.

NVML gives MHz, milliwatts and KiB/s; here all is Hz, watts and bytes a second. Its PCIe counters are looked at over a
window of about 20 ms and block for as long, each direction: reading one GPU takes 40 ms, during which nothing is
computed. Call it in a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engines.events import Gpu

RETRY_S, RETRY_MOST_S = 1.0, 60.0  # after the driver was lost; doubled after each try in vain
_KIB = 1024
_ALL_LINKS = 0xFFFFFFFF
# After these the handles are of no use any more: NVML has to be initialised anew.
_LOST = (
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "GPU_IS_LOST",
    "GPU_NOT_FOUND",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
)
_NEVER_THERE = ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED")
_NOT_TOLD = ("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "NO_DATA", "NOT_FOUND")


@dataclass(frozen=True)
class GpuReading:
    """`driver` is "" where there is none, "ok", or in a few words how it was lost."""

    gpus: list[Gpu] = field(default_factory=list)
    driver: str = ""


@dataclass
class _Device:
    handle: Any
    index: int
    name: str
    slice_of: int | None = None
    counted: dict[int, tuple[float, int]] = field(default_factory=dict)  # NVLink: when, and bytes until then

    def __str__(self) -> str:
        return f"GPU {self.index}" if self.slice_of is None else f"GPU {self.slice_of}, slice {self.index}"


class _LostError(Exception):
    """In a few words."""


class GpuProbe:
    """Reads all GPUs and their MIG slices. `nvml` is for tests. Never raises what NVML raises: a figure that a device
    does not tell is None, and a driver that is lost is looked for again, ever more seldom. Not thread-safe."""

    def __init__(self, nvml: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml, self._clock = nvml, clock
        self._devices: list[_Device] = []
        self._open, self._seen = False, False
        self._lost = ""
        self._retry_at_s, self._wait_s = clock(), RETRY_S
        self._answers, self._refusal = 0, ""  # of the device that is being read

    def read(self) -> GpuReading:
        """May block, for 40 ms a GPU at least where it tells its PCIe traffic."""
        now_s = self._clock()
        if (not self._open or self._lost) and now_s >= self._retry_at_s:
            self._begin(now_s)
        gpus = []
        for device in list(self._devices):
            try:
                gpus.append(self._describe(device))
            except _LostError as fault:
                self._devices.remove(device)
                self._lose(f"{device}: {fault}" if len(self._devices) + len(gpus) else str(fault))
        if self._open and not self._lost:
            self._wait_s = RETRY_S
        return GpuReading(gpus, self._lost or ("ok" if self._open else ""))

    def close(self) -> None:
        opened, self._open, self._devices = self._open, False, []
        if opened:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # it is gone already

    def _begin(self, now_s: float) -> None:
        """Initialises NVML and finds all devices, or says why not, and when to try again."""
        self._retry_at_s, self._wait_s = now_s + self._wait_s, min(RETRY_MOST_S, 2 * self._wait_s)
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                return
            self._nvml = pynvml
        self.close()
        self._lost = ""
        try:
            self._nvml.nvmlInit()
            self._open = True
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as fault:
            self.close()
            if self._seen or not self._is(fault, _NEVER_THERE):
                self._lost = _words(fault)
            return
        for index in range(count):
            try:
                self._find(index)
            except self._nvml.NVMLError as fault:
                self._lose(f"GPU {index}: {_words(fault)}")
        self._seen = self._seen or bool(self._devices)

    def _find(self, index: int) -> None:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._devices.append(_Device(handle, index, self._try(nvml.nvmlDeviceGetName, handle) or ""))
        mode = self._try(nvml.nvmlDeviceGetMigMode, handle)
        if not mode or not mode[0]:
            return
        for number in range(self._try(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = self._try(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if part is not None:
                self._devices.append(_Device(part, number, self._try(nvml.nvmlDeviceGetName, part) or "", index))

    def _describe(self, device: _Device) -> Gpu:
        """Raises _LostError where the device is gone."""
        nvml, handle = self._nvml, device.handle
        self._answers, self._refusal = 0, ""
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        use = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        gpu = Gpu(
            index=device.index,
            name=device.name,
            mig=device.slice_of is not None,
            slice_of=device.slice_of,
            used_bytes=None if memory is None else memory.used,
            total_bytes=None if memory is None else memory.total,
            busy_percent=None if use is None else float(use.gpu),
            power_w=_times(1e-3, self._ask(nvml.nvmlDeviceGetPowerUsage, handle)),
            power_limit_w=_times(1e-3, self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
            temperature_c=_times(1.0, self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)),
            sm_clock_hz=self._clock_hz(handle, nvml.NVML_CLOCK_SM),
            memory_clock_hz=self._clock_hz(handle, nvml.NVML_CLOCK_MEM),
            pcie_generation=self._ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            pcie_lanes=self._ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            pcie_rx_bytes_per_s=self._pcie(handle, nvml.NVML_PCIE_UTIL_RX_BYTES),
            pcie_tx_bytes_per_s=self._pcie(handle, nvml.NVML_PCIE_UTIL_TX_BYTES),
            nvlink_rx_bytes_per_s=self._nvlink(device, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
            nvlink_tx_bytes_per_s=self._nvlink(device, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        )
        if not self._answers and self._refusal:
            raise _LostError(self._refusal)
        return gpu

    def _clock_hz(self, handle: Any, kind: int) -> int | None:
        mhz = self._ask(self._nvml.nvmlDeviceGetClockInfo, handle, kind)
        return None if mhz is None else mhz * 1_000_000

    def _pcie(self, handle: Any, direction: int) -> int | None:
        kib_per_s = self._ask(self._nvml.nvmlDeviceGetPcieThroughput, handle, direction)
        return None if kib_per_s is None else kib_per_s * _KIB

    def _nvlink(self, device: _Device, counter: int) -> int | None:
        """All links together, since the last reading: NVML counts KiB from the driver's start."""
        values = self._ask(self._nvml.nvmlDeviceGetFieldValues, device.handle, [(counter, _ALL_LINKS)])
        if not values or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        now_s, total = self._clock(), values[0].value.ullVal * _KIB
        before_s, before = device.counted.get(counter, (now_s, total))
        device.counted[counter] = now_s, total
        return round((total - before) / (now_s - before_s)) if now_s > before_s and total >= before else None

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where there is none. Raises _LostError."""
        try:
            answer = call(*arguments)
        except self._nvml.NVMLError as fault:
            if self._is(fault, _LOST):
                raise _LostError(_words(fault)) from None
            if not self._is(fault, _NOT_TOLD):
                self._refusal = _words(fault)
            return None
        self._answers += 1
        return answer

    def _try(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None

    def _lose(self, words: str) -> None:
        """Keeps the first reason, and what is still there."""
        self._lost = self._lost or words

    def _is(self, fault: Any, names: tuple[str, ...]) -> bool:
        return fault.value in {getattr(self._nvml, f"NVML_ERROR_{name}") for name in names}


def _words(fault: Exception) -> str:
    return str(fault).strip().rstrip(".") or type(fault).__name__


def _times(factor: float, value: int | None) -> float | None:
    return None if value is None else value * factor
