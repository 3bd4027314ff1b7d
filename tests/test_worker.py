import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from race_fakes import ENVIRONMENT

from engines import events, frames
from engines.commands import Pause, Prompt, Rerun, Shutdown, Submit, WorkerConfig, encode

FAKE = Path(__file__).parent / "fake_worker.py"


class Child:
    def __init__(self, config: WorkerConfig | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        if config is not None:
            frames.write_frame(self.process.stdin, encode(config))

    def send(self, command):
        frames.write_frame(self.process.stdin, encode(command))

    def until(self, kind, **fields):
        """All events up to the first such one."""
        found = []
        while (payload := frames.read_frame(self.process.stdout)) is not None:
            found += events.decode(payload)
            if any(isinstance(e, kind) and all(getattr(e, k) == v for k, v in fields.items()) for e in found):
                return found
        raise AssertionError(f"no {kind.__name__} before the end; stderr: {self.process.stderr.read().decode()}")

    def rest(self):
        found = []
        while (payload := frames.read_frame(self.process.stdout)) is not None:
            found += events.decode(payload)
        return found


@pytest.fixture
def start():
    children = []

    def make(**fields):
        children.append(Child(WorkerConfig(**{"model": "fake", "prompts": [Prompt(text="one")], **fields})))
        return children[-1]

    yield make
    for child in children:
        child.process.kill()
        child.process.wait()
        for pipe in (child.process.stdin, child.process.stdout, child.process.stderr):
            pipe.close()


def test_a_race_from_loading_to_idle(start):
    child = start()
    found = child.until(events.Status, engine="", state="idle")
    kinds = [type(e) for e in found]
    assert kinds.index(events.Loading) < kinds.index(events.RunStarted) < kinds.index(events.Submitted)
    assert {e.engine: e.outcome for e in found if isinstance(e, events.Outcome)} == dict.fromkeys(
        ["vllm", "h2o", "infinigen"], "ok"
    )
    text = "".join(e.text for e in found if isinstance(e, events.Token) and e.engine == "h2o")
    assert text == "I am h2o."
    assert psutil.Process(child.process.pid).nice() > psutil.Process().nice() or psutil.Process().nice() >= 19


def test_commands_are_heard_while_idle(start):
    child = start()
    child.until(events.Status, engine="", state="idle")
    child.send(Submit(prompts=[Prompt(text="two")]))
    assert len([e for e in child.until(events.Status, engine="", state="idle") if isinstance(e, events.Outcome)]) == 3
    child.send(Rerun())
    child.until(events.RunStarted)
    child.send(Shutdown())
    assert child.process.wait(10) == 0


def test_prints_of_libraries_do_not_reach_the_stream(start):
    child = start(model="noisy")
    child.until(events.Status, engine="", state="idle")
    child.process.stdin.close()
    assert child.rest() == []
    assert child.process.wait(10) == 0
    said = child.process.stderr.read().decode()
    assert "a library's greeting" in said
    assert "a C library's greeting" in said


def test_a_known_fault_is_one_notice_and_code_2(start):
    child = start(model="missing")
    notice = child.rest()[-1]
    assert notice.level == "error"
    assert notice.text == 'no model "missing"; kvtui models lists those with short names'
    assert child.process.wait(10) == 2
    assert b"Traceback" not in child.process.stderr.read()


def test_an_unforeseen_fault_leaves_its_traceback_in_the_log(start):
    child = start(model="broken")
    assert child.rest()[-1].text == "the worker stopped: ZeroDivisionError: by hand"
    assert child.process.wait(10) == 1
    assert b"Traceback" in child.process.stderr.read()


@pytest.mark.parametrize(
    ("model", "told"),
    [("unspeakable", "the worker stopped: OverflowError: "), ("unspeakable fault", "Error: by \\udc80 hand")],
)
def test_what_no_pipe_carries_ends_with_a_line_all_the_same(start, model, told):
    """A thread still reads stdin then: an ordinary end of the interpreter would be an abort."""
    child = start(model=model)
    assert told in child.rest()[-1].text
    assert child.process.wait(10) == 1
    assert b"Traceback" in child.process.stderr.read()


def test_a_faulty_prompt_is_named_before_anything_runs(start):
    child = start(prompts=[Prompt(text="one"), Prompt(text="x" * 600)])
    found = child.rest()
    assert found[-1].text.startswith("prompt 2: the prompt has 600 tokens, 88 more than the context of 512")
    assert not any(isinstance(e, events.RunStarted) for e in found)
    assert child.process.wait(10) == 2


@pytest.mark.parametrize("model", ["fake", "endless", "endless load"])
def test_when_stdin_closes_the_process_ends(start, model):
    child = start(model=model)
    child.until(events.Loading, stage="loading weights")
    if model != "endless load":
        child.until(events.Token)
    child.process.stdin.close()
    child.rest()
    assert child.process.wait(10) == 0


def test_a_worker_that_hears_nothing_at_all_ends_too():
    child = Child(None)
    child.process.stdin.close()
    assert child.rest() == []
    assert child.process.wait(10) == 0
    child.process.stdout.close()
    child.process.stderr.close()


def test_a_reader_that_has_gone_ends_it(start):
    child = start(model="endless")
    child.until(events.Token)
    child.process.stdout.close()
    assert child.process.wait(10) == 0


def test_garbage_on_stdin_ends_it(start):
    child = start(model="endless")
    child.until(events.Token)
    frames.write_frame(child.process.stdin, b"\xc1 garbage")
    child.rest()
    assert child.process.wait(10) == 0


def test_ctrl_c_is_the_faces_business(start):
    child = start(model="endless")
    child.until(events.Token)
    child.process.send_signal(signal.SIGINT)
    child.until(events.Token)
    assert child.process.poll() is None


def test_a_pause_is_answered_at_once(start):
    child = start(model="endless")
    child.until(events.Token)
    asked = time.monotonic()
    child.send(Pause())
    child.until(events.Status, engine="", state="paused")
    assert time.monotonic() - asked < 1.0
