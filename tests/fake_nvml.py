"""NVML as a test wants it: real error classes and constants, invented devices, and calls that fail, block or refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

ERRORS = sorted(
    {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}.items()
)  # (number, name)
KIB = 1024


class FakeNvml:
    """`devices` GPUs, each with `slices` MIG slices (0: MIG is off). `faults` maps a call's name to the error that it
    raises; "*" stands for all. `hook` is called before each answer."""

    NVMLError = pynvml.NVMLError

    def __init__(self, devices: int = 1, slices: int = 0) -> None:
        self.devices, self.slices = devices, slices
        self.faults: dict[str, int] = {}
        self.lost: set[int] = set()  # devices that say so to every call
        self.initialised = 0
        self.asked: list[str] = []
        self.nvlink_kib = 0
        self.hook: Any = lambda name: None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(pynvml, name)

        def call(*arguments: Any) -> Any:
            self.asked.append(name)
            self.hook(name)
            fault = self.faults.get(name, self.faults.get("*"))
            if fault is not None and name != "nvmlShutdown":
                raise pynvml.NVMLError(fault)
            return getattr(self, "_" + name)(*arguments)

        return call

    def _nvmlInit(self) -> None:
        self.initialised += 1

    def _nvmlShutdown(self) -> None:
        if not self.initialised:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.initialised -= 1

    def _nvmlDeviceGetCount(self) -> int:
        return self.devices

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> tuple[int, int | None]:
        return self._there((index, None))

    def _there(self, handle: tuple[int, int | None]) -> tuple[int, int | None]:
        if not self.initialised:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        if handle[0] in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return handle

    def _nvmlDeviceGetName(self, handle: Any) -> str:
        index, part = self._there(handle)
        return f"GPU {index}" if part is None else f"GPU {index} MIG 1g.{part}"

    def _nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:
        self._there(handle)
        return [int(self.slices > 0)] * 2

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, number: int) -> Any:
        if number >= self.slices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle[0], number

    def _whole(self, handle: Any) -> None:
        """A slice has no power, clock or bus of its own."""
        if self._there(handle)[1] is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        _, part = self._there(handle)
        return SimpleNamespace(used=41_000_000_000 if part is None else 5_000_000, total=80_000_000_000)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        self._whole(handle)
        return SimpleNamespace(gpu=62, memory=30)

    def _nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        self._whole(handle)
        return 310_500

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        self._whole(handle)
        return 700_000

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        self._whole(handle)
        return 61

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> int:
        self._whole(handle)
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[kind]

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int:
        self._whole(handle)
        return 4

    def _nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int:
        self._whole(handle)
        return 16

    def _nvmlDeviceGetPcieThroughput(self, handle: Any, direction: int) -> int:
        self._whole(handle)
        return {pynvml.NVML_PCIE_UTIL_RX_BYTES: 12_000_000, pynvml.NVML_PCIE_UTIL_TX_BYTES: 400_000}[direction]

    def _nvmlDeviceGetFieldValues(self, handle: Any, wanted: Any) -> Any:
        self._whole(handle)
        value = SimpleNamespace(ullVal=self.nvlink_kib)
        return [SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=value) for _ in wanted]
