"""Past the screen to a broker: the options, the status bar, and what is said at the end."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from engines import commands, events
from kvtui import connecting
from kvtui.app import KvtuiApp
from kvtui.cli import main
from kvtui.publishing import PublishingSource, worded
from kvtui.source import Restored
from kvtui.state import RunState
from probes.broker import parse
from probes.connection import Standing
from probes.publisher import Publisher
from tests.mqtt_brokers import RealBroker, free_port
from tests.scripted_source import ScriptedSource
from tests.synthetic import started
from tests.test_app import shows
from tests.test_cli import ENVIRONMENT, FAKE, kvtui


class Remembering(Publisher):
    """Connects to nothing."""

    def __init__(self) -> None:
        super().__init__(parse(f"mqtt://127.0.0.1:{free_port()}/x", environment={}))
        self.published: list[events.AnyEvent] = []

    def publish(self, batch) -> None:
        self.published += batch


def test_everything_said_is_published_once_and_goes_on_to_the_screen() -> None:
    publisher, worker = Remembering(), ScriptedSource([started()])
    source = PublishingSource(worker, publisher)
    source.start()
    assert [*source.receive(1.0)] == [started()]
    worker.say(events.Notice(level="info", text="a"), Restored(RunState()))  # type: ignore[arg-type]
    assert len(source.receive(1.0)) == 2
    assert publisher.published == [started(), events.Notice(level="info", text="a")]
    source.send(commands.Pause())
    assert worker.sent == [commands.Pause()]
    assert source.log_path == worker.log_path
    source.close()
    assert worker.closed


def test_a_refusal_is_told_once() -> None:
    publisher, worker = Remembering(), ScriptedSource()
    source = PublishingSource(worker, publisher)
    source.start()
    publisher.standing = Standing("off", "not authorised")
    (notice,) = source.receive(0.0)
    assert isinstance(notice, events.Notice)
    assert "not authorised" in notice.text
    assert [*source.receive(0.0)] == []


async def test_the_status_bar_says_how_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "WorkerClient", lambda config: ScriptedSource([started()]))
    with closing(Remembering()) as publisher:
        app = KvtuiApp(commands.WorkerConfig(), connect=connecting.connecting(publisher=publisher))
        app.race.header.published = lambda: worded(publisher)
        async with app.run_test(size=(120, 36)) as pilot:
            await shows(pilot, "mqtt waiting  ■ ready")
            publisher._came.append([started()])
            await shows(pilot, "mqtt waiting 1")
            publisher._came.clear()
            publisher.standing = Standing("connected")
            await shows(pilot, "  mqtt  ■ ready")  # the budget needs the room more than "connected" does
            await pilot.resize_terminal(140, 36)
            await shows(pilot, "  mqtt connected  ■ ready")
            publisher.standing = Standing("off", "not authorised")
            await shows(pilot, "mqtt off")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--mqtt", "http://x/y", "--prompt", "a"], "mqtt"),
        (["run", "--mqtt-format", "json", "--prompt", "a"], "go with --mqtt"),
        (["run", "--mqtt", "mqtt://localhost/x", "--mqtt-ca", "nothing.pem", "--prompt", "a"], "mqtts"),
        (["watch", "mqtts://localhost/x", "--mqtt-ca", "nothing.pem"], "no such file"),
        (["watch"], "ADDRESS"),
        (["serve", "watch", "mqtt://"], "host"),
        (["play", "forgetting", "--replay", "x", "--mqtt", "mqtt://localhost/x"], "--replay has none"),
    ],
)
def test_bad_options_are_one_line(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kvtui", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


def test_a_headless_run_is_published_and_watched_without_a_screen(tmp_path: Path) -> None:
    real = RealBroker(tmp_path)
    real.start()
    address = f"mqtt://127.0.0.1:{real.port}/kv"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    watching = subprocess.Popen([*FAKE, "watch", address], text=True, env=ENVIRONMENT, **pipes)
    try:
        assert watching.stderr is not None
        assert "waiting for a run" in watching.stderr.readline()
        ran = kvtui("run", "--model", "fake", "--prompt", "one", "--engines", "h2o,vllm", "--json", "--mqtt", address)
        assert ran.returncode == 0, ran.stderr
        assert ran.stderr == ""
        out, err = watching.communicate(timeout=30)
    finally:
        watching.kill()
        real.stop()
    assert watching.returncode == 0
    assert "has ended" in err
    assert sorted(line.split("  ")[1] for line in out.splitlines()) == ["h2o", "vllm"]


def test_a_broker_that_is_not_there_changes_nothing_but_one_line() -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can take the port meanwhile
        held.bind(("127.0.0.1", 0))
        address = f"mqtt://127.0.0.1:{held.getsockname()[1]}/kv"
        ran = kvtui("run", "--model", "fake", "--prompt", "one", "--engines", "vllm", "--json", "--mqtt", address)
    assert ran.returncode == 0
    (line,) = ran.stderr.splitlines()
    assert "were not sent" in line
    assert "refused" in line
