"""The host's figures, containers, samples at a fixed cadence, and a history that stays small."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.events import Gpu, Sample
from probes import sampler as sampling
from probes.cgroup import MemoryLimit
from probes.gpu import GpuProbe, GpuReading
from probes.history import LEVELS, History
from probes.host import HostProbe
from probes.sampler import Sampler
from tests.fake_nvml import FakeNvml
from tests.test_gpu import Clock

GB = 1_000_000_000


def test_a_worker_is_measured_and_may_go() -> None:
    ready = "print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", ready], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"\n"  # it is all there
        probe = HostProbe(child.pid)
        there = Sample(**probe.read())
        assert there.worker_rss_bytes is not None
        assert there.worker_rss_bytes > 1 << 20
        assert there.face_rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
        assert there.host_total_bytes == psutil.virtual_memory().total
    finally:
        child.communicate(b"\n")
    gone = Sample(**probe.read())
    assert (gone.worker_rss_bytes, gone.worker_cpu_percent) == (None, None)
    assert gone.worker_page_faults_per_s is None
    assert gone.face_rss_bytes
    assert HostProbe(None).read()["worker_rss_bytes"] is None


def test_faults_and_pinned_memory_are_those_of_the_worker(tmp_path: Path) -> None:
    folder, clock = tmp_path / str(os.getpid()), Clock()
    folder.mkdir()
    fields = ["S", *["7"] * 8, "100", *["7"] * 40]
    (folder / "stat").write_text(f"{os.getpid()} (a) name) {' '.join(fields)}")
    (folder / "status").write_text("Name:\tx\nVmPin:\t  8 kB\nVmLck:\t  4 kB\n")
    probe = HostProbe(os.getpid(), proc=tmp_path, clock=clock)
    assert probe.read()["worker_page_faults_per_s"] is None  # of one reading there is no rate
    fields[9] = "150"
    (folder / "stat").write_text(f"{os.getpid()} (a) name) {' '.join(fields)}")
    clock.now_s += 2
    told = probe.read()
    assert told["worker_page_faults_per_s"] == 25.0
    assert told["pinned_bytes"] == 12 * 1024
    (folder / "stat").write_text("")
    (folder / "status").unlink()
    assert (probe.read()["worker_page_faults_per_s"], probe.read()["pinned_bytes"]) == (None, None)


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_the_tightest_limit_counts_in_version_2(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/pod/box\n")
    group(root, {"memory.stat": ""})  # the root group has no limit at all
    group(root / "pod", {"memory.max": f"{8 * GB}\n", "memory.current": f"{5 * GB}\n", "memory.stat": "anon 1\n"})
    inner = {"memory.max": "max\n", "memory.current": f"{GB}\n", "memory.stat": "inactive_file 7\n"}
    group(root / "pod" / "box", inner)
    assert MemoryLimit(root, own).read() == (8 * GB, 5 * GB)
    group(root / "pod" / "box", {"memory.max": f"{2 * GB}"})
    assert MemoryLimit(root, own).read() == (2 * GB, GB - 7)
    (root / "pod" / "box" / "memory.current").unlink()
    assert MemoryLimit(root, own).read() is None


def test_a_limit_of_version_1_and_none(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("4:cpu,memory:/on/the/machine\n0::/\ndamaged\n")
    files = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "9", "memory.stat": ""}
    group(root / "memory", files)
    assert MemoryLimit(root, own).read() is None
    # Inside a container its own group is at the top, whatever it is called outside.
    group(
        root / "memory", {"memory.limit_in_bytes": str(GB), "memory.stat": "inactive_file 1\ntotal_inactive_file 4\n"}
    )
    assert MemoryLimit(root, own).read() == (GB, 5)
    assert MemoryLimit(root, tmp_path / "missing").read() is None


def test_kills_for_want_of_memory_are_counted_where_the_limit_is_or_for_the_whole_machine(tmp_path: Path) -> None:
    root, own, vmstat = tmp_path / "cgroup", tmp_path / "own", tmp_path / "vmstat"
    vmstat.write_text("pgfault 7\noom_kill 5\n")
    own.write_text("0::/box\n")
    assert MemoryLimit(root, own).kills(vmstat) == 5
    group(root / "box", {"memory.max": f"{GB}\n", "memory.current": "1\n", "memory.events": "oom 3\noom_kill 2\n"})
    assert MemoryLimit(root, own).kills(vmstat) == 2
    own.write_text("4:memory:/box\n")
    group(
        root / "memory" / "box", {"memory.limit_in_bytes": f"{GB}\n", "memory.oom_control": "under_oom 0\noom_kill 4\n"}
    )
    assert MemoryLimit(root, own).kills(vmstat) == 4
    assert MemoryLimit(root, tmp_path / "missing").kills(tmp_path / "missing") == 0


class Host:
    """Counts, and tells when it was asked often enough."""

    def __init__(self, enough: int = 5) -> None:
        self.asked, self.enough, self.reached = 0, enough, threading.Event()

    def read(self) -> dict[str, Any]:
        self.asked += 1
        if self.asked >= self.enough:
            self.reached.set()
        return {"host_used_bytes": self.asked}


def test_a_driver_that_blocks_delays_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "STALE_S", 0.05)
    nvml, release, host = FakeNvml(), threading.Event(), Host(30)
    nvml.hook = lambda name: release.wait(20) if name == "nvmlDeviceGetPcieThroughput" else None
    sampler = Sampler(host, GpuProbe(nvml), every_s=0.01)
    sampler.start()
    try:
        assert host.reached.wait(15)
        samples = [sample for _, sample in sampler.taken()]
        assert samples[-1].driver.startswith("no answer for ")
        assert not any(sample.gpus for sample in samples)
        release.set()
        deadline = time.monotonic() + 15
        while not (samples := [s for _, s in sampler.taken() if s.driver == "ok"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert samples[0].gpus[0].used_bytes == 41 * GB
    finally:
        release.set()
        sampler.stop()
    assert not sampler._threads[0].is_alive()


def test_samples_are_in_order_and_never_crowded() -> None:
    host = Host(8)
    sampler = Sampler(host, every_s=0.02)
    sampler.start()
    assert host.reached.wait(15)
    sampler.stop()
    taken = sampler.taken()
    assert len(taken) >= 8
    assert [sample.host_used_bytes for _, sample in taken] == list(range(1, len(taken) + 1))
    times = [at_s for at_s, _ in taken]
    assert times == sorted(times)
    # A late one is followed by the next slot, not by those that were missed.
    assert (times[-1] - times[0]) / (len(times) - 1) >= 0.019
    assert sampler.taken() == []


def test_faults_that_nobody_foresaw_end_no_thread() -> None:
    class Broken:
        def __init__(self) -> None:
            self.closed = threading.Event()

        def read(self) -> GpuReading:
            raise RuntimeError("odd")

        def close(self) -> None:
            self.closed.set()

    class BrokenHost(Host):
        def read(self) -> dict[str, Any]:
            super().read()
            raise OSError("odd, too")

    host, gpus = BrokenHost(4), Broken()
    sampler = Sampler(host, gpus, every_s=0.01)
    sampler.start()
    assert host.reached.wait(15)
    sampler.stop()
    assert gpus.closed.wait(15)
    assert sampler.taken()[-1][1] == Sample(driver="RuntimeError: odd")


def size_bytes(history: History) -> int:
    columns = [part for level in history._levels for c in range(len(history.names)) for part in level._parts(c)]
    return sum(map(sys.getsizeof, [*columns, *(level._times for level in history._levels)]))


def test_a_day_at_ten_samples_a_second_takes_less_than_20_mb() -> None:
    """All that a machine with four GPUs and six engines tells: 8 + 4 × 4 + 6 × 2 figures."""
    histories = {n: History(["figure"] * n) for n in (8, 4, 2)}
    # How many samples a row stands for does not change its size: most of the day may be told of more seldom.
    moments = [
        *map(float, range(0, 84_000, 15)),
        *map(float, range(84_000, 86_400)),
        *(86_400 + n / 10 for n in range(1500)),
    ]
    for figures, history in histories.items():
        for at_s in moments:
            history.add(at_s, [1.0] * figures)
        for level, (width_s, most) in zip(history._levels, LEVELS, strict=True):
            assert min(most, 86_400 / (width_s or 1)) <= len(level._times) <= most * 5 // 4
    sizes = {figures: size_bytes(history) for figures, history in histories.items()}
    assert sizes[8] + 4 * sizes[4] + 6 * sizes[2] < 20_000_000
    assert histories[8].buckets("figure", 10.0, 86_400.0, 50) == [(1.0, 1.0, 1.0)] * 50


def test_what_is_older_is_coarser_and_keeps_its_extremes() -> None:
    history = History(["load"])
    for tenth in range(18_000):
        peak = 900.0 if tenth == 12_345 else float(tenth % 10)
        history.add(tenth / 10, [peak])
    buckets = history.buckets("load", 0.0, 1_800.0, 60)
    assert all(bucket is not None and bucket[0] == 0.0 for bucket in buckets)
    tops = [bucket[2] for bucket in buckets if bucket]
    assert [top for top in tops if top != 9.0] == [900.0]
    assert tops.index(900.0) == 41
    assert history.mean("load", 1_500.0, 1_800.0) == pytest.approx(4.5, abs=0.05)


def test_gaps_are_seen_and_small_ones_held() -> None:
    history = History(["a", "b"])
    for second in range(10):
        history.add(float(second), [1.0, None])
    history.add(30.0, [2.0, 5.0])
    assert history.buckets("a", 0.0, 5.0, 10) == [(1.0, 1.0, 1.0)] * 10  # half a second each
    assert history.buckets("a", 20.0, 25.0, 1) == [None]
    assert history.buckets("b", 0.0, 10.0, 5) == [None] * 5
    assert history.mean("b", 29.0, 31.0) == 5.0
    history.add(12.0, [3.0, None])  # a clock that went back
    assert history.end_s == 30.0
    assert isinstance(history._levels[0]._times, array)


def test_latest_gpu_figures_go_into_every_sample() -> None:
    class Two:
        def read(self) -> GpuReading:
            return GpuReading([Gpu(index=0), Gpu(index=1)], "ok")

        def close(self) -> None:
            pass

    host = Host(6)
    sampler = Sampler(host, Two(), every_s=0.01)
    sampler.start()
    assert host.reached.wait(15)
    sampler.stop()
    assert [gpu.index for gpu in sampler.taken()[-1][1].gpus] == [0, 1]


def test_what_is_young_is_told_in_full() -> None:
    """Coarser rows begin a little before the first sample; that does not make them the better ones."""
    history = History(["a"])
    for quarter in range(80):
        if not 40 <= quarter < 50:
            history.add(0.01 + quarter / 4, [1.0])
    gone = [number for number, b in enumerate(history.buckets("a", -10.0, 20.01, 120)) if b is None]
    assert gone[:40] == list(range(40))
    assert len(gone) - 40 >= 5


def test_equal_histories_were_told_the_same() -> None:
    one, other = History(["a", "b"]), History(["a", "b"])
    for history in (one, other):
        history.add(1.0, [1.0, None])
    assert pickle.loads(pickle.dumps(one)) == one == other
    other.add(2.0, [None, 2.0])
    assert one != other
