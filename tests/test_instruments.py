"""Samples come along with a worker's events, in its run and on its time; and what the screen makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from engines import commands, events
from engines.events import Gpu, Memory, Sample, Transfer
from kvtui.app import KvtuiApp
from kvtui.instruments import Instruments
from kvtui.machine import Machine, together
from kvtui.machine_screen import MachineScreen
from kvtui.panes.gauges import Gauges
from kvtui.panes.lines import pieces_len
from kvtui.panes.machine_line import MachineLine
from kvtui.plausible import check
from kvtui.recordings import find
from kvtui.replay import TraceSource
from kvtui.source import SourceEndedError
from kvtui.state import RunState
from kvtui.trace import TraceReader, TraceWriter, TracingSource
from kvtui.transport import ReplayApp
from tests.scripted_source import ScriptedSource
from tests.synthetic import started
from tests.test_app import screen_text, shows, until

GB = 1_000_000_000
GPU = Gpu(
    index=0,
    name="NVIDIA H200",
    used_bytes=41 * GB,
    total_bytes=143 * GB,
    busy_percent=62.0,
    power_w=310.0,
    power_limit_w=700.0,
    temperature_c=61.0,
    pcie_generation=5,
    pcie_lanes=16,
    pcie_rx_bytes_per_s=12_100_000_000,
    pcie_tx_bytes_per_s=400_000_000,
)
HOST = Sample(
    worker_rss_bytes=1_200_000_000,
    worker_cpu_percent=180.0,
    face_rss_bytes=70_000_000,
    face_cpu_percent=4.0,
    host_used_bytes=9 * GB,
    host_total_bytes=24 * GB,
    host_cpu_percent=190.0,
    worker_page_faults_per_s=0.0,
    driver="ok",
)


class Sampling:
    """In place of a sampler: what `say` was given, taken `now`."""

    def __init__(self) -> None:
        self.workers: list[int | None] = []
        self.running = False
        self._taken: list[tuple[float, Sample]] = []

    def __call__(self, worker_id: int | None) -> Sampling:
        self.workers.append(worker_id)
        return self

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def say(self, at_s: float, sample: Sample) -> None:
        self._taken.append((at_s, sample))

    def taken(self) -> list[tuple[float, Sample]]:
        taken, self._taken = self._taken, []
        return taken


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr("kvtui.instruments.time.monotonic", lambda: clock[0])
    return clock


def status(run: str, wall_s: float) -> events.Status:
    return events.Status(run=run, wall_s=wall_s, state="racing")


def test_samples_have_the_run_and_its_time(now: list[float]) -> None:
    inner, sampling = ScriptedSource(), Sampling()
    source = Instruments(inner, sampling)  # type: ignore[arg-type]
    source.start()
    assert sampling.running
    sampling.say(1000.5, HOST)
    (sample,) = source.receive(0.0)
    assert sample == replace(HOST, wall_s=0.5)  # no run yet: since the start, as loading is told

    now[0] = 1010.0
    inner.say(status("a-1", 2.0))  # heard half a second late …
    sampling.say(1010.0, HOST)
    said, sample = source.receive(0.1)
    assert said == status("a-1", 2.0)
    assert (sample.run, sample.wall_s) == ("a-1", 2.0)
    now[0] = 1010.5
    inner.say(status("a-1", 3.0))  # … which the next one shows
    source.receive(0.1)
    sampling.say(1010.5, HOST)
    assert source.receive(0.0)[0].wall_s == 3.0

    now[0] = 1020.0
    inner.say(status("a-2", 0.25))
    source.receive(0.1)
    sampling.say(1021.0, HOST)
    (sample,) = source.receive(0.0)
    assert (sample.run, sample.wall_s) == ("a-2", 1.25)
    source.close()
    assert (sampling.running, inner.closed) == (False, True)


def test_what_engines_pin_on_a_gpu_is_added(now: list[float]) -> None:
    inner, sampling = ScriptedSource(), Sampling()
    source = Instruments(inner, sampling)  # type: ignore[arg-type]
    source.start()
    memory = Memory(
        engine="infinigen",
        device_bytes={},
        host_bytes={"kv": 3 * GB},
        device_peak_bytes=0,
        host_peak_bytes=0,
        device_kv_peak_bytes=0,
        host_kv_peak_bytes=0,
    )
    for device, pinned in (("cpu", None), ("cuda:0", 3 * GB)):
        inner.say(replace(started(), device=device), memory)
        source.receive(0.1)
        sampling.say(1000.0, HOST)
        assert source.receive(0.0)[-1].pinned_bytes == pinned


def test_the_sampler_ends_with_the_worker_and_begins_with_the_next() -> None:
    inner, sampling = ScriptedSource(), Sampling()
    inner.process_id = 7  # type: ignore[attr-defined]
    source = Instruments(inner, sampling)  # type: ignore[arg-type]
    source.start()
    inner.end("killed")
    assert source.receive(0.1) == [events.Status(state="ended", detail="killed")]
    with pytest.raises(SourceEndedError, match="killed"):
        source.receive(0.1)
    assert not sampling.running
    source.start()
    assert sampling.running
    assert sampling.workers == [7, 7]


def test_a_trace_has_them_too(tmp_path: Path) -> None:
    inner, sampling = ScriptedSource([started()]), Sampling()
    writer = TraceWriter(tmp_path / "run.kvtrace")
    source = TracingSource(Instruments(inner, sampling), writer)  # type: ignore[arg-type]
    source.start()
    sampling.say(0.0, replace(HOST, gpus=[GPU]))
    source.receive(0.1)
    writer.close()
    (batch,) = TraceReader(tmp_path / "run.kvtrace")
    assert [type(event) for event in batch] == [events.RunStarted, Sample]
    assert batch[1].gpus == [GPU]


@pytest.mark.parametrize(
    ("field", "value"), [("used_bytes", -1), ("sm_clock_hz", 1 << 60), ("busy_percent", float("nan"))]
)
def test_what_no_gpu_can_be_is_refused(field: str, value: float) -> None:
    check(replace(HOST, gpus=[replace(GPU, sm_clock_hz=3_000_000_000, temperature_c=-12.0)]))
    with pytest.raises(ValueError, match=field):
        check(replace(HOST, gpus=[replace(GPU, **{field: value})]))


def moved(wall_s: float, h2d_bytes: int, measured: bool = True) -> Transfer:
    return Transfer(
        run="r",
        engine="infinigen",
        wall_s=wall_s,
        clock_s=wall_s / 100,
        h2d_bytes=h2d_bytes,
        d2h_bytes=0,
        h2d_total_bytes=0,
        d2h_total_bytes=0,
        span_s=0.0,
        busy_s=0.0,
        hidden_s=0.0,
        measured=measured,
    )


def test_engines_traffic_is_told_in_the_walls_time() -> None:
    state = RunState()
    for step in range(40):
        state.apply(moved(step / 4 + 0.1, 250_000_000))
        state.apply(replace(HOST, run="r", wall_s=step / 4 + 0.2))
    link = state.machine.links["infinigen"]
    assert link.h2d_bytes_per_s == pytest.approx(
        1e9, rel=1e-6
    )  # on the engine's own clock it would be a hundred times that
    assert link.measured
    state.apply(replace(HOST, run="r", wall_s=30.0))
    state.apply(replace(HOST, run="r", wall_s=31.5))
    assert link.h2d_bytes_per_s == 0.0


def test_time_goes_on_over_runs_and_without_a_time_of_ones_own() -> None:
    machine = Machine()
    for run, wall_s in (("", 1.0), ("", 3.0), ("a", 0.5), ("a", 2.0), ("a", 0.0), ("b", 0.1), ("b", 1.1)):
        machine.hear(replace(HOST, run=run, wall_s=wall_s))
    assert machine.now_s == pytest.approx(3.0 + 1.5 + 1.0)
    machine.add_sample(HOST)
    assert machine.sampled_s == machine.now_s


def test_several_gpus_together() -> None:
    part = replace(GPU, slice_of=0, mig=True)
    both = together([GPU, part, replace(GPU, index=1, busy_percent=None, temperature_c=70.0)])
    assert both is not None
    assert (both.used_bytes, both.power_w) == (82 * GB, 620.0)
    assert (both.busy_percent, both.temperature_c) == (62.0, 70.0)
    assert (together([]), together([part])) == (None, None)


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("driver", ["ok", "GPU is lost", "\x1b[31m" * 40])
async def test_the_line_never_overflows_and_says_most_where_there_is_room(width: int, driver: str) -> None:
    state, line = RunState(), MachineLine()
    state.apply(replace(HOST, gpus=[GPU, replace(GPU, index=1)], driver=driver, memory_limit_bytes=30 * GB))
    line._sample = state.machine.latest
    (drawn,) = line.draw(width, 1)
    text = "".join(part for part, _ in drawn)
    assert pieces_len(drawn) <= width
    assert "\x1b" not in text
    assert ("lost" in text) == (driver != "ok")
    if driver == "ok" and width == 200:
        for fact in (
            "2 GPUs  62 %",
            "82.0/286 GB",
            "620 W",
            "61 °C",
            "PCIe5x16 ↑ 24.2 GB/s ↓  800 MB/s",
            "worker 180 %",
        ):
            assert fact in text
        assert "RAM 9.00/24.0 GB" in text


def test_what_is_not_told_is_na() -> None:
    line = MachineLine()
    line._sample = Sample(gpus=[Gpu(index=0)], driver="ok")
    (drawn,) = line.draw(120, 1)
    text = " ".join("".join(part for part, _ in drawn).split())
    assert text == "GPU n/a n/a n/a W n/a °C PCIe ↑ n/a ↓ n/a"


async def test_driver_lost_and_found_again_on_the_screen() -> None:
    source = ScriptedSource([started(), replace(HOST, gpus=[GPU], wall_s=1.0)])
    app = KvtuiApp(commands.WorkerConfig(), source)
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "GPU  62 %")
        await pilot.press("g")
        await until(pilot, lambda: isinstance(app.screen, MachineScreen))
        await shows(pilot, "GPU 0  NVIDIA H200")
        source.say(replace(HOST, driver="GPU is lost", wall_s=1.5))
        await shows(pilot, "GPU driver lost (GPU is lost), looking again")
        source.say(replace(HOST, gpus=[GPU, replace(GPU, index=1)], wall_s=2.0))
        await shows(pilot, "all 2 GPUs")
        await pilot.press("tab", "tab")
        await shows(pilot, "GPU 1  NVIDIA H200")
        await pilot.press("minus")
        await shows(pilot, "the last 10 minutes")
        await pilot.press("escape")
        await shows(pilot, "2 GPUs  62 %")


@pytest.mark.parametrize(("measured", "said"), [(True, "+11.1 GB/s beyond engines"), (False, "modelled traffic apart")])
async def test_modelled_traffic_is_never_taken_from_what_is_measured(measured: bool, said: str) -> None:
    told: list[events.AnyEvent] = [started()]
    for step in range(1, 21):
        told.append(moved(step / 4, 250_000_000, measured))
        told.append(replace(HOST, run="r", wall_s=step / 4 + 0.01, gpus=[GPU]))
    app = KvtuiApp(commands.WorkerConfig(), ScriptedSource(told))
    async with app.run_test(size=(160, 36)) as pilot:
        await shows(pilot, "GPU  62 %")
        await pilot.press("g")
        await shows(pilot, said)
        assert ("beyond" in screen_text(app)) == measured
        assert ("1.00 GB/s modelled" in screen_text(app)) != measured


async def test_recordings_that_come_along_show_the_machine_too() -> None:
    reader = TraceReader(find(None))
    app = ReplayApp(TraceSource(reader, from_s=reader.duration_s))
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "RAM")
        assert "worker" in screen_text(app)
        await pilot.press("g")
        await shows(pilot, "worker's memory")
        await shows(pilot, "InfiniGen to device")
        shown = screen_text(app)
        assert "engines to device" not in shown  # it would be the same chart again
        assert "tab GPU" not in shown
        assert "UI's CPU" not in shown or "n/a" not in shown.split("UI's CPU")[1].splitlines()[0]


def gauges_of(batch: list[events.AnyEvent], size: tuple[int, int] = (120, 36)) -> str:
    state, gauges = RunState(), Gauges()
    state.apply_all(batch)
    gauges.show(state, 120.0, None)
    return "\n".join("".join(text for text, _ in line) for line in gauges.draw(*size))


def test_what_is_not_told_throughout_takes_no_room_and_no_chart_is_there_twice() -> None:
    bare = Sample(run="r", host_cpu_percent=50.0, driver="")
    batch: list[events.AnyEvent] = [replace(started(), run="r")]
    for step in range(1, 20):
        batch += [moved(step, 10**9), replace(bare, wall_s=step + 0.5)]
    shown = gauges_of(batch)
    assert "CPU, all programs" in shown
    assert "n/a" not in shown
    assert shown.count("to device") == 1
    assert "InfiniGen to device" in shown
    both = [event for e in batch for event in ([e, replace(e, engine="vllm")] if isinstance(e, Transfer) else [e])]
    assert gauges_of(both).count("to device") == 3  # of all of them, and of each


def test_without_a_gpu_both_halves_are_used_and_what_moved_is_told_with_its_peak() -> None:
    bare = replace(HOST, run="r", driver="")
    batch: list[events.AnyEvent] = [replace(started(), run="r")]
    for step in range(1, 20):
        batch += [moved(step, 10**9 if step < 10 else 0, measured=False), replace(bare, wall_s=step + 0.5)]
    shown = gauges_of(batch)
    assert "no NVIDIA driver was found" in shown  # in the words of `kvtui doctor`
    charts = [line for line in shown.splitlines() if "┤" in line]
    assert sum("┤" in line[:59] for line in charts) == pytest.approx(sum("┤" in line[59:] for line in charts), abs=2)
    (traffic,) = [line[:59] for line in shown.splitlines() if "InfiniGen to device" in line]
    assert traffic.rstrip().endswith("now 0 B/s  peak 1.00 GB/s modelled")
    assert "1.00 GB/s┤" in shown
    assert "hatched up to the peak" in shown.splitlines()[-1]
    assert shown.splitlines()[-2].split() == ["−2", "min", "−1", "min", "now"] * 2


async def test_the_key_to_another_gpu_is_there_where_there_is_another() -> None:
    source = ScriptedSource([replace(started(), run="r"), replace(HOST, run="r", wall_s=1.0)])
    app = KvtuiApp(commands.WorkerConfig(), source)

    def offered() -> bool:
        return "next_gpu(1)" in [there.binding.action for there in app.screen.active_bindings.values()]

    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "RAM")
        await pilot.press("g")
        await shows(pilot, "worker's memory")
        assert not offered()
        source.say(replace(HOST, run="r", wall_s=2.0, gpus=[GPU, replace(GPU, index=1)]))
        await until(pilot, offered)
        source.say(replace(HOST, run="r", wall_s=3.0, gpus=[]))
        await until(pilot, lambda: not offered())
