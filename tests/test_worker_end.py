"""A worker that dies: its screen says so, and so do a trace, a watcher, and whoever joins later."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from engines import commands, events
from kvtui import client, connecting
from kvtui.app import KvtuiApp
from kvtui.captions import captions
from kvtui.headless import summarize
from kvtui.instruments import Instruments
from kvtui.machine_screen import MachineScreen
from kvtui.outcomes import print_outcomes
from kvtui.panes.machine_line import MachineLine
from kvtui.panes.stream import Stream
from kvtui.panes.transfer import TransferGraph
from kvtui.replay import TraceSource
from kvtui.source import SourceEndedError
from kvtui.state import RunState
from kvtui.trace import TraceReader
from kvtui.transport import ReplayApp
from kvtui.watch import WatchApp
from kvtui.watching import WatchSource, whose
from probes import snapshot, topics
from probes.connection import Standing
from probes.subscriber import Message
from tests.race_fakes import ENVIRONMENT
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started, whole_race
from tests.test_app import screen_text, shows, until
from tests.test_instruments import GPU, HOST, Sampling, gauges_of
from tests.test_joining import comparable, numbered, pictured, shown
from tests.test_publishing import Remembering
from tests.test_trace import write
from tests.test_watch_app import Heard, make
from tests.test_watching import Told

WORKER = [sys.executable, str(Path(__file__).parent / "fake_worker.py")]
KILLED = "the worker was killed by signal 9 (SIGKILL)"
END = events.Status(state="ended", detail=KILLED)
WHOLE = whole_race(prompt_tokens=64, new_tokens=12)
HALF = [*WHOLE[: len(WHOLE) // 2], replace(HOST, run="synthetic", wall_s=1.0)]
AGAIN = [
    events.Loading(stage="loading weights"),
    *(replace(event, run="second") for event in whole_race(prompt_tokens=32, new_tokens=6)),
]


def test_every_one_who_hears_events_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a real process, through all that stands between it and the screen."""
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.setattr(
        connecting, "WorkerClient", lambda config: client.WorkerClient(config, WORKER, Path(os.devnull) / "no log")
    )
    monkeypatch.setattr(connecting, "Instruments", lambda source: Instruments(source, Sampling()))  # type: ignore[arg-type]

    class Writing:
        def __init__(self) -> None:
            self.written: list[events.AnyEvent] = []

        def write(self, batch) -> str:
            self.written += batch
            return ""

    trace, publisher = Writing(), Remembering()
    config = commands.WorkerConfig(model="endless", engines=["vllm"], prompts=[commands.Prompt(text="one")])
    source = connecting.connecting(trace, publisher)(config)  # type: ignore[arg-type]
    source.start()
    state, deadline_s = RunState(), time.monotonic() + 30
    with closing(source):
        while not state.engines:
            state.apply_all(source.receive(0.25))  # type: ignore[arg-type]
            assert time.monotonic() < deadline_s
        os.kill(source._source._source.process_id, signal.SIGKILL)  # type: ignore[attr-defined]
        while not state.over:
            state.apply_all(source.receive(0.25))  # type: ignore[arg-type]
            assert time.monotonic() < deadline_s
        with pytest.raises(SourceEndedError, match="SIGKILL"):
            source.receive(0.25)
    assert trace.written[-1] == publisher.published[-1] == END
    assert (state.over, state.end) == (True, KILLED)


def test_a_worker_that_ends_is_over_until_another_begins() -> None:
    state = RunState()
    state.apply_all([*HALF, END])
    assert (state.over, state.status, state.end) == (True, "ended", KILLED)
    for pause in ("paused", "ended"):  # of a recording that is paused there, and goes on
        state.apply(events.Status(state=pause))
        assert (state.over, state.end) == (True, KILLED)
    state.apply(AGAIN[0])
    assert (state.over, state.end, state.started, state.engines, state.prompts) == (False, "", None, {}, [])
    state.apply_all(AGAIN[1:])
    fresh = RunState()
    fresh.apply_all(AGAIN)
    told, expected = comparable(state), comparable(fresh)
    assert told["engines"] == expected["engines"]
    assert told["status"] == expected["status"]


def test_an_end_that_nobody_explains_is_none_of_the_workers() -> None:
    state = RunState()
    state.apply_all([*HALF, events.Status(state="ended")])
    assert (state.over, state.end) == (True, "")
    state.apply(AGAIN[0])
    assert state.started is not None


SAID = [*HALF, END, *AGAIN]


@pytest.mark.parametrize("seq", [len(HALF), len(HALF) + 1, len(HALF) + 2, len(HALF) + 3, len(SAID)])
def test_who_joins_later_knows_it_too(seq: int) -> None:
    """Before the end, after it, while the next worker loads, and when it has begun."""
    from kvtui.joining import Joining

    whole, joining = RunState(), Joining()
    whole.apply_all(SAID)
    state = shown(joining.snapshot(pictured(SAID, seq), retained=True), RunState())
    so_far = RunState()
    so_far.apply_all(SAID[:seq])
    assert (state.end, state.status) == (so_far.end, so_far.status)
    assert list(state.engines) == list(so_far.engines)
    for event in numbered(SAID)[seq:]:
        state = shown([*joining.event(event, 100)], state)
    assert comparable(state)["engines"] == comparable(whole)["engines"]


class Died(Heard):
    """A run whose worker has been killed, unless a test says more."""

    def say(self, *said: events.AnyEvent) -> None:
        for event in said:
            self.seq += 1
            packed = topics.pack(replace(event, seq=self.seq), json=False)
            self.said.append(Message("aaaa1111", topics.kind_of(event), packed, False))

    def start(self) -> None:
        super().start()
        self.seq = len(self.race)


def watching(race: list[events.AnyEvent]) -> tuple[WatchApp, Died]:
    subscriber = Died()
    subscriber.race = race
    return WatchApp(WatchSource(subscriber)), subscriber


async def test_a_watcher_is_told_and_goes_on_with_the_next_worker() -> None:
    app, subscriber = watching(HALF)
    async with app.run_test(size=(140, 40), notifications=True) as pilot:
        await shows(pilot, "● live")
        await shows(pilot, "worker 180 %")
        subscriber.say(END)
        await shows(pilot, "✖ the worker of lab:aaaa was killed by signal 9 (SIGKILL)")
        await shows(pilot, "✖ worker ended  1/2 lab:aaaa")
        await until(pilot, lambda: screen_text(app).count("■ ended here") == 3)
        assert "● live" not in screen_text(app)
        assert "worker – " in screen_text(app)
        assert "180 %" not in screen_text(app)
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.watching.watched == "bbbb2222" and app.state.started is not None)
        await until(pilot, lambda: "was killed" not in screen_text(app))
        subscriber.race = [*HALF, END]
        await pilot.press("left_square_bracket")
        await shows(pilot, "✖ the worker of lab:aaaa was killed by signal 9 (SIGKILL)")
        await pilot.press("g")
        await until(pilot, lambda: isinstance(app.screen, MachineScreen))
        await shows(pilot, "not measured any more")
        await pilot.press("escape")
        subscriber.say(AGAIN[0])
        await shows(pilot, "◌ loading weights")
        assert "was killed" not in screen_text(app)
        subscriber.say(*AGAIN[1:])
        await shows(pilot, "✓ done")
        await shows(pilot, "● live")


async def test_it_is_told_where_another_screen_covers_the_race() -> None:
    app, subscriber = watching(HALF)
    async with app.run_test(size=(140, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.state.started is not None)
        await pilot.press("g")
        await until(pilot, lambda: isinstance(app.screen, MachineScreen))
        subscriber.say(END)
        await until(pilot, lambda: any("worker of lab:aaaa was killed" in n.message for n in app._notifications))
    source = ScriptedSource(HALF)
    live = KvtuiApp(commands.WorkerConfig(), source)
    async with live.run_test(size=(140, 40), notifications=True) as pilot:
        await until(pilot, lambda: live.state.started is not None)
        await pilot.press("g")
        await until(pilot, lambda: isinstance(live.screen, MachineScreen))
        source.end(KILLED)
        await until(pilot, lambda: any("SIGKILL) — press w" in n.message for n in live._notifications))


async def test_the_publishers_own_columns_and_figures_end_with_it() -> None:
    source = ScriptedSource(HALF)
    app = KvtuiApp(commands.WorkerConfig(), source)
    async with app.run_test(size=(140, 40)) as pilot:
        await shows(pilot, "worker 180 %")
        source.end(KILLED)
        await shows(pilot, "✖ worker ended")
        await until(pilot, lambda: screen_text(app).count("■ ended here") == 3)
        assert "worker – " in screen_text(app)


async def test_what_a_stranger_says_of_an_end_is_shown_literally() -> None:
    app, subscriber = watching(HALF)
    async with app.run_test(size=(140, 40), notifications=True) as pilot:
        await shows(pilot, "● live")
        subscriber.say(events.Status(state="ended", detail="[bold]no\x1b[2J\nthing" + " x" * 100_000))
        await shows(pilot, "✖ lab:aaaa: [bold]no␛[2J thing")


def test_without_a_screen_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for more, code in ([], 1), (AGAIN, 0):
        subscriber = Died()
        subscriber.race = HALF
        out, codes = io.StringIO(), list[int]()
        source = WatchSource(subscriber, live_only=True)
        printing = threading.Thread(target=lambda o=out, s=source, c=codes: c.append(print_outcomes(s, o)))
        printing.start()
        deadline_s = time.monotonic() + 20
        while source.watched is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        subscriber.say(END, *more)
        subscriber.present("aaaa1111", "lab", "ended")
        printing.join(20)
        assert codes == [code]
        said = capsys.readouterr().err.splitlines()
        assert said == ["kvtui: the worker of lab:aaaa was killed by signal 9 (SIGKILL)", "kvtui: lab:aaaa has ended"]


def test_whose_worker_it_was() -> None:
    assert whose("lab:aaaa", KILLED) == "the worker of lab:aaaa was killed by signal 9 (SIGKILL)"
    assert whose("lab:aaaa", "out of cheese") == "lab:aaaa: out of cheese"


async def test_a_replay_shows_and_summarises_why_it_ended(tmp_path: Path) -> None:
    path = write(tmp_path / "died.kvtrace", [HALF, [END]])
    out = io.StringIO()
    assert summarize(TraceReader(path), out) == 0
    *_, recorded = out.getvalue().splitlines()
    assert recorded.endswith(f"; {KILLED}")
    assert out.getvalue().count(f"({KILLED})") == out.getvalue().count("unfinished") == 3
    reader = TraceReader(path)
    app = ReplayApp(TraceSource(reader, from_s=reader.duration_s))
    async with app.run_test(size=(140, 40)) as pilot:
        await shows(pilot, f"✖ {KILLED}")
        await until(pilot, lambda: screen_text(app).count("■ ended here") == 3)
        await pilot.press("space", "space")
        app.recording.send(commands.Pause())
        app.recording.seek(0.1)
        await until(pilot, lambda: KILLED not in screen_text(app))
        app.recording.seek(reader.duration_s)
        await shows(pilot, f"✖ {KILLED}")
        await until(pilot, lambda: screen_text(app).count("■ ended here") == 3)


def test_a_trace_that_goes_on_after_it_tells_it_of_the_requests_it_ended(tmp_path: Path) -> None:
    out = io.StringIO()
    summarize(TraceReader(write(tmp_path / "died.kvtrace", [HALF, [END], AGAIN])), out)
    *_, recorded = out.getvalue().splitlines()
    assert "SIGKILL" not in recorded
    assert out.getvalue().count(f"({KILLED})") == 3
    assert out.getvalue().count("  ok  ") == 3


def test_what_is_not_measured_any_more_has_no_figure() -> None:
    state, line = RunState(), MachineLine()
    said = [started(), replace(HOST, gpus=[GPU], run="synthetic", wall_s=1.0, driver="GPU is lost"), END]
    state.apply_all(said)
    line._sample, line._over = state.machine.latest, state.over
    (drawn,) = line.draw(200, 1)
    text = " ".join("".join(part for part, _ in drawn).split())
    assert text == "✖ GPU driver lost (GPU is lost), looking again GPU – PCIe5x16 – worker – UI – CPU – RAM –"
    shown = gauges_of(said)
    assert "now 180 %" not in shown
    assert "now –  peak 180 %" in shown  # what was, was
    assert "worker's CPU" in shown
    assert "worker's CPU" in gauges_of(said[:-1])
    assert "now 180 %" in gauges_of(said[:-1])


def test_columns_have_neither_a_speed_of_the_link_nor_a_cursor() -> None:
    race = [started(), Race(prompt_tokens=64).submitted(), *Race(prompt_tokens=64, new_tokens=12).merged()]
    last = max(i for i, e in enumerate(race) if isinstance(e, events.Token) and e.engine == "infinigen")
    state, link, stream = RunState(), TransferGraph("infinigen"), Stream("infinigen")

    def text(pane: TransferGraph | Stream) -> str:
        pane.show(state)
        return "\n".join("".join(part for part, _ in line) for line in pane.draw(60, 8))

    state.apply_all(race[:last])
    assert "MB/s" in text(link)
    link_key = link.key()
    assert "▌" in text(stream)
    state.apply(END)
    assert text(link).splitlines()[0].endswith("─ –")
    assert link.key() != link_key
    assert "▌" not in text(stream)


def test_captions_say_it_and_nothing_in_the_present_tense() -> None:
    state = RunState()
    race = Race(prompt_tokens=64)
    state.apply_all([started(), race.submitted()])
    assert any("read the 64 tokens" in caption.text for caption in captions(state))
    state.apply(END)
    assert [caption.text for caption in captions(state)] == ["The worker was killed by signal 9 (SIGKILL)"]
    nothing = RunState()
    assert captions(nothing)
    nothing.apply(events.Status(state="gone"))
    assert captions(nothing) == []


def test_a_watched_run_numbers_its_own_engines() -> None:
    app, _ = make()
    assert app.catalogue == []
    assert app.race._catalogue is app.catalogue


async def test_columns_are_numbered_as_they_stand_and_a_budget_is_shown_when_it_is_known() -> None:
    engines = ("vllm", "h2o", "infinigen")
    subscriber = Told()
    subscriber.standing = Standing("connected")
    app = WatchApp(WatchSource(subscriber))
    async with app.run_test(size=(140, 40)) as pilot:
        await shows(pilot, "◌ no run yet")
        assert "budget" not in screen_text(app)
        presence = topics.Presence(run="r", state="gone", host="lab")
        subscriber.said.append(Message("r", topics.PRESENCE, topics.pack(presence, json=False), True))
        await shows(pilot, "✖ gone")
        await shows(pilot, "■ it is over, and nothing of it is known")
        assert "waiting for" not in screen_text(app)
        assert "budget" not in screen_text(app)
        picture = snapshot.Picture()
        picture.add(started(engines))
        packed = snapshot.pack(picture, 1)
        assert packed is not None
        subscriber.said.append(Message("r", topics.SNAPSHOT, packed, True))
        await shows(pilot, "3 InfiniGen")
        await shows(pilot, "budget 0.30")
        await pilot.press("question_mark", "end")
        await shows(pilot, " Engines ")
        assert "Hybrid" not in screen_text(app)
