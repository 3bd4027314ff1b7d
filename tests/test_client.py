"""The worker process, seen from outside."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import commands, events
from kvtui import client as client_module
from kvtui.client import WorkerClient
from kvtui.source import SourceEndedError
from probes.cgroup import MemoryLimit

HEAD = """
import os, sys, time, signal
from engines import commands, events, frames
config = commands.decode_config(frames.read_frame(sys.stdin.buffer))
def say(text):
    frames.write_frame(sys.stdout.buffer, events.encode([events.Notice(level="info", text=text)]))
"""
ECHO = """
say(config.model)
while (payload := frames.read_frame(sys.stdin.buffer)) is not None:
    command = commands.decode(payload)
    if isinstance(command, commands.Shutdown):
        break
    say(str(len(command.prompts[0].text)) if isinstance(command, commands.Submit) else type(command).__name__)
"""
Start = Callable[..., WorkerClient]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    clients: list[WorkerClient] = []

    def begin(body: str, model: str = "tiny") -> WorkerClient:
        config = commands.WorkerConfig(model=model)
        client = WorkerClient(config, [sys.executable, "-c", HEAD + body], tmp_path / "worker.log")
        clients.append(client)
        client.start()
        return client

    yield begin
    for client in clients:
        client.close()


def texts(client: WorkerClient, count: int) -> list[str]:
    """The first `count` notices."""
    got: list[str] = []
    deadline = time.monotonic() + 30
    while len(got) < count:
        assert time.monotonic() < deadline, f"only {got}"
        got += [e.text for e in client.receive(0.5) if isinstance(e, events.Notice)]
    return got


def ending(client: WorkerClient) -> str:
    """Why it ended, which its last event says, too: for those who only hear events."""
    deadline, heard, why = time.monotonic() + 30, list[events.AnyEvent](), None
    while why is None:
        assert time.monotonic() < deadline, "it goes on"
        try:
            heard += client.receive(0.5)
        except SourceEndedError as end:
            why = str(end)
    ends = [(at, event) for at, event in enumerate(heard) if isinstance(event, events.Status)]
    assert ends == ([(len(heard) - 1, events.Status(state="ended", detail=why))] if why else [])
    return why


def gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


def test_config_goes_down_and_events_come_up(start: Start) -> None:
    client = start(ECHO, model="some-model")
    assert texts(client, 1) == ["some-model"]
    client.send(commands.Pause())
    client.send(commands.SetBudget(budget=0.5))
    assert texts(client, 2) == ["Pause", "SetBudget"]


def test_a_megabyte_neither_blocks_nor_breaks(start: Start) -> None:
    client = start("time.sleep(1)\n" + ECHO)
    before = time.monotonic()
    client.send(commands.Submit(prompts=[commands.Prompt(text="x" * 1_000_000)]))
    assert time.monotonic() - before < 0.2
    assert texts(client, 2) == ["tiny", "1000000"]


def test_receive_returns_in_time_when_there_is_nothing(start: Start) -> None:
    client = start(ECHO)
    texts(client, 1)
    before = time.monotonic()
    assert client.receive(0.1) == []
    assert time.monotonic() - before < 1


def test_a_kill_is_reported_and_a_new_start_works(start: Start) -> None:
    client = start(ECHO)
    texts(client, 1)
    assert client.process_id is not None
    os.kill(client.process_id, signal.SIGKILL)
    assert ending(client) == "the worker was killed by signal 9 (SIGKILL)"
    with pytest.raises(SourceEndedError, match="killed by signal 9"):  # and no event any more
        client.receive(0.5)
    client.send(commands.Pause())  # nobody listens, nobody minds
    client.start()
    assert texts(client, 1) == ["tiny"]


def test_a_kill_for_want_of_memory_says_so(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = [3]
    monkeypatch.setattr(MemoryLimit, "kills", lambda self: kills[0])
    monkeypatch.setattr(MemoryLimit, "read", lambda self: (700_000_000, 690_000_000))
    client = start("say('here'); time.sleep(60)")
    texts(client, 1)
    kills[0] = 4
    assert client.process_id is not None
    os.kill(client.process_id, signal.SIGKILL)
    said = "the worker was killed by signal 9 (SIGKILL), probably for want of memory: the container's limit is 700 MB"
    assert ending(client) == said


def test_each_process_has_a_log_of_its_own_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "user_log_path", lambda *_, **__: tmp_path)
    old, new = tmp_path / "worker-1.log", tmp_path / "worker-2.log"
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    client = WorkerClient(commands.WorkerConfig(), [sys.executable, "-c", ""])
    client.start()
    client.close()
    assert client.log_path == tmp_path / f"worker-{os.getpid()}.log"
    assert sorted(tmp_path.iterdir()) == sorted([client.log_path, new])


def test_what_was_said_before_the_end_is_still_heard(start: Start) -> None:
    client = start("say('one'); say('two')")
    assert texts(client, 2) == ["one", "two"]
    assert "exit code 0" in ending(client)


def test_an_exit_code_comes_with_the_last_words(start: Start) -> None:
    client = start("raise RuntimeError('no such thing')")
    assert ending(client) == "the worker ended with exit code 1: RuntimeError: no such thing"
    assert "Traceback" in client.log_path.read_text()


@pytest.mark.parametrize("garbage", [r"b'hello, I am no frame at all'", r"b'\x03\x00\x00\x00abc'"])
def test_garbage_ends_the_worker(start: Start, garbage: str) -> None:
    client = start(f"sys.stdout.buffer.write({garbage}); sys.stdout.flush(); time.sleep(60)")
    process_id = client.process_id
    assert "not an event" in ending(client)
    client.close()
    assert process_id is not None
    assert gone(process_id)


def test_a_worker_in_the_middle_of_a_frame_can_be_closed(start: Start) -> None:
    client = start(r"sys.stdout.buffer.write(b'\xff\x00\x00\x00ab'); sys.stdout.flush(); sys.stdin.read()")
    time.sleep(0.5)
    process_id = client.process_id
    client.close()
    assert process_id is not None
    assert gone(process_id)


def test_closing_asks_first(start: Start) -> None:
    client = start(ECHO)
    texts(client, 1)
    process_id = client.process_id
    before = time.monotonic()
    client.close()
    client.close()
    assert time.monotonic() - before < 2
    assert process_id is not None
    assert gone(process_id)
    assert ending(client) == ""


def test_closing_insists(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "GRACE_S", (0.2, 0.2, 5.0))
    client = start("signal.signal(signal.SIGTERM, signal.SIG_IGN); say('deaf')\nwhile True: time.sleep(1)")
    texts(client, 1)
    process_id = client.process_id
    client.close()
    assert process_id is not None
    assert gone(process_id)


def test_a_worker_that_floods_its_pipe_can_be_closed(start: Start) -> None:
    client = start("while True: say('x' * 100_000)")
    texts(client, 1)
    before = time.monotonic()
    client.close()
    assert time.monotonic() - before < 6


def test_a_flood_still_comes_in_pieces(start: Start) -> None:
    client = start("while True: say('x' * 1000)")
    texts(client, 1)
    before = time.monotonic()
    client.receive(1.0)
    assert time.monotonic() - before < 0.5


def test_the_worker_is_out_of_reach_of_ctrl_c(start: Start) -> None:
    client = start(ECHO)
    texts(client, 1)
    assert client.process_id is not None
    assert os.getsid(client.process_id) != os.getsid(0)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    client = WorkerClient(commands.WorkerConfig(), [str(tmp_path / "nothing")], tmp_path / "worker.log")
    client.start()
    assert "the worker did not start: " in ending(client)
    client.close()
    assert ending(client) == ""


def test_no_place_for_a_log_is_no_reason_not_to_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    client = WorkerClient(
        commands.WorkerConfig(), [sys.executable, "-c", HEAD + ECHO], tmp_path / "file" / "worker.log"
    )
    client.start()
    assert texts(client, 1) == ["smollm2-135m"]
    client.close()
