"""What NVML says, and everything that it can do wrong."""

from __future__ import annotations

from itertools import pairwise

import pynvml
import pytest

from engines.events import Gpu
from probes.gpu import RETRY_MOST_S, GpuProbe, GpuReading
from tests.fake_nvml import ERRORS, KIB, FakeNvml

CALLS = [
    *("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetName", "nvmlDeviceGetMigMode"),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage"),
    *("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo"),
    *("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetPcieThroughput"),
    "nvmlDeviceGetFieldValues",
]
FIGURES = [
    name for name in Gpu.__struct_fields__ if name.rpartition("_")[2] in ("bytes", "percent", "w", "c", "hz", "s")
]
FIGURES += ["pcie_generation", "pcie_lanes"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def probe_of(nvml: FakeNvml) -> tuple[GpuProbe, Clock]:
    clock = Clock()
    return GpuProbe(nvml, clock), clock


def test_all_figures_in_their_units() -> None:
    nvml = FakeNvml()
    probe, clock = probe_of(nvml)
    probe.read()
    clock.now_s += 2
    nvml.nvlink_kib += 5_000
    reading = probe.read()
    assert reading.driver == "ok"
    assert reading.gpus == [
        Gpu(
            index=0,
            name="GPU 0",
            used_bytes=41_000_000_000,
            total_bytes=80_000_000_000,
            busy_percent=62.0,
            power_w=310.5,
            power_limit_w=700.0,
            temperature_c=61.0,
            sm_clock_hz=1_980_000_000,
            memory_clock_hz=3_201_000_000,
            pcie_generation=4,
            pcie_lanes=16,
            pcie_rx_bytes_per_s=12_000_000 * KIB,
            pcie_tx_bytes_per_s=400_000 * KIB,
            nvlink_rx_bytes_per_s=2_500 * KIB,
            nvlink_tx_bytes_per_s=2_500 * KIB,
        )
    ]


@pytest.mark.parametrize("number", [number for number, _ in ERRORS], ids=[name for _, name in ERRORS])
def test_any_error_of_any_call_is_borne_and_passes(number: int) -> None:
    for call in CALLS:
        check_borne(call, number)


def check_borne(call: str, number: int) -> None:
    nvml = FakeNvml()
    probe, clock = probe_of(nvml)
    whole = probe.read()
    nvml.faults = {call: number}
    for _ in range(3):
        clock.now_s += RETRY_MOST_S
        reading = probe.read()
        assert isinstance(reading, GpuReading)
        assert reading.driver
        assert all(gpu.name for gpu in reading.gpus)
        if reading.driver != "ok":  # it says why
            assert reading.driver == str(pynvml.NVMLError(number)).rstrip(".")
            assert reading.gpus == []
    nvml.faults = {}
    for _ in range(2):  # NVLink counts from one reading to the next
        clock.now_s += RETRY_MOST_S
        after = probe.read()
    assert after.driver == "ok"
    assert [gpu.used_bytes for gpu in after.gpus] == [gpu.used_bytes for gpu in whole.gpus]
    probe.close()
    assert nvml.initialised == 0


@pytest.mark.parametrize(("number", "name"), ERRORS, ids=[name for _, name in ERRORS])
def test_a_driver_that_fails_everywhere_is_lost_and_comes_back(number: int, name: str) -> None:
    nvml = FakeNvml(devices=2)
    probe, clock = probe_of(nvml)
    assert len(probe.read().gpus) == 2
    nvml.faults = {"*": number}
    clock.now_s += 1
    reading = probe.read()
    refused = name.removeprefix("NVML_ERROR_") in {
        *("NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT", "NO_DATA", "NOT_FOUND")
    }
    assert (reading.driver == "ok") == refused  # a device that tells nothing is there, and has nothing to tell
    assert len(reading.gpus) == 2 * refused
    nvml.faults = {}
    clock.now_s += RETRY_MOST_S
    assert [gpu.busy_percent for gpu in probe.read().gpus] == [62.0, 62.0]
    assert probe.read().driver == "ok"


def test_a_device_that_supports_nothing_is_there_all_the_same() -> None:
    nvml = FakeNvml()
    nvml.faults = {call: pynvml.NVML_ERROR_NOT_SUPPORTED for call in CALLS if call not in CALLS[:4]}
    (gpu,) = probe_of(nvml)[0].read().gpus
    assert {name: getattr(gpu, name) for name in FIGURES} == dict.fromkeys(FIGURES)
    assert (gpu.index, gpu.name, gpu.mig) == (0, "GPU 0", False)


@pytest.mark.parametrize("number", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_where_there_never_was_a_driver_none_is_lost(number: int) -> None:
    nvml = FakeNvml()
    nvml.faults = {"nvmlInit": number}
    probe, clock = probe_of(nvml)
    assert probe.read() == GpuReading()
    nvml.faults = {}
    clock.now_s += RETRY_MOST_S
    assert probe.read().driver == "ok"
    nvml.faults = {"*": number}
    clock.now_s += 1
    probe.read()
    clock.now_s += RETRY_MOST_S
    assert probe.read().driver  # now one has been there


def test_it_is_looked_for_ever_more_seldom() -> None:
    nvml = FakeNvml()
    probe, clock = probe_of(nvml)
    nvml.faults = {"nvmlInit": pynvml.NVML_ERROR_UNKNOWN}
    tried = []
    for _ in range(1200):
        nvml.asked.clear()
        probe.read()
        tried += [clock.now_s] * nvml.asked.count("nvmlInit")
        clock.now_s += 0.25
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[:4] == [1.0, 2.0, 4.0, 8.0]
    assert gaps[-1] == RETRY_MOST_S


def test_one_of_two_gpus_is_lost_and_the_other_goes_on() -> None:
    nvml = FakeNvml(devices=2)
    probe, clock = probe_of(nvml)
    probe.read()
    nvml.lost = {1}
    clock.now_s += 0.25
    for _ in range(5):
        reading = probe.read()
        assert [gpu.index for gpu in reading.gpus] == [0]
        assert reading.driver == "GPU 1: GPU is lost"
        clock.now_s += RETRY_MOST_S
    nvml.lost = set()
    clock.now_s += RETRY_MOST_S
    assert [gpu.index for gpu in probe.read().gpus] == [0, 1]
    assert probe.read().driver == "ok"


def test_slices_are_told_with_the_gpu_that_they_are_on() -> None:
    probe, _ = probe_of(FakeNvml(devices=2, slices=2))
    gpus = probe.read().gpus
    assert [(gpu.index, gpu.slice_of, gpu.mig) for gpu in gpus] == [
        *[(0, None, False), (0, 0, True), (1, 0, True)],
        *[(1, None, False), (0, 1, True), (1, 1, True)],
    ]
    part = gpus[1]
    assert (part.used_bytes, part.power_w, part.pcie_rx_bytes_per_s) == (5_000_000, None, None)
    assert part.name == "GPU 0 MIG 1g.0"


def test_a_counter_that_begins_anew_gives_no_rate() -> None:
    nvml = FakeNvml()
    probe, clock = probe_of(nvml)
    nvml.nvlink_kib = 9_000_000
    probe.read()
    nvml.nvlink_kib = 10
    clock.now_s += 1
    assert probe.read().gpus[0].nvlink_rx_bytes_per_s is None
