"""`--trace` and `kvtui replay` from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines import events
from engines.errors import BadRequest
from kvtui import cli, recordings
from kvtui.options import Moment
from kvtui.replay import beginning_s
from kvtui.trace import TraceReader, TraceWriter, TracingSource
from kvtui.transport import ReplayApp
from tests.race_fakes import ENVIRONMENT
from tests.synthetic import Race, started
from tests.test_replay import write_race

FAKE = [sys.executable, str(Path(__file__).parent / "fake_cli.py")]
ROOT = Path(__file__).parent.parent
DEMO = str(ROOT / "kvtui" / "data" / "demo.kvtrace")


def kvtui(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FAKE, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        encoding="utf-8",
        env=ENVIRONMENT,
    )


def test_a_traced_run_is_shown_again_as_it_was(tmp_path: Path) -> None:
    trace = tmp_path / "run.kvtrace"
    run = kvtui("run", "--model", "fake", "--prompt", "one", "--prompt", "two", "--trace", trace)
    assert (run.returncode, run.stderr) == (0, "")
    again = kvtui("replay", trace)
    assert (again.returncode, again.stderr) == (0, "")
    *summary, recorded = again.stdout.splitlines()
    assert summary == run.stdout.splitlines()
    assert recorded.startswith("recorded 20")


def test_what_was_cut_off_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write_race(tmp_path / "run.kvtrace", Race(prompt_tokens=64, new_tokens=20))
    path.write_bytes(path.read_bytes()[:-200])
    again = kvtui("replay", path)
    assert again.returncode == 0
    (row,) = [line for line in again.stdout.splitlines() if "InfiniGen  " in line]
    assert row.split()[1:3] == ["unfinished", "19"]
    assert again.stdout.rstrip().endswith("its end is cut off")
    assert TraceReader(path).cut_off


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_trace_on_a_full_disk_does_not_end_the_run() -> None:
    run = kvtui("run", "--model", "fake", "--prompt", "one", "--trace", "/dev/full")
    assert run.returncode == 0
    assert "I am h2o." in run.stdout
    assert run.stderr.splitlines() == ["kvtui: the trace full ends here (No space left on device); the run goes on"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "/nonexistent"], "cannot read /nonexistent"),
        (["replay", "/"], "/ is not a file"),
        (["replay", "no-such"], 'no recording "no-such"; shipped are demo, out-of-memory, anything else is a .kvtrace'),
        (["replay", "no-such.kvtrace"], "cannot read no-such.kvtrace"),
        (["play", "forgetting", "--replay", "no-such"], 'no recording "no-such"'),
        (["replay", __file__], "is not a kvtui trace"),
        (["replay", "--from", "1h"], "the recording ends after"),
        (["replay", "--from", "soon"], '--from is a time such as 12s, 1m30s, 1:30 or 90, not "soon"'),
        (["replay", "--record", "x.cast"], "here is no terminal"),
        (["play", "forgetting", "--replay", DEMO, "--from", "1h"], "the recording ends after"),
        (["run", "--prompt", "a", "--trace", "/nonexistent/x"], "cannot write /nonexistent/x"),
        (["run", "--prompt", "a", "--trace", __file__], "exists and is not a trace"),
        (["--model", "fake", "--record", "x.cast"], "here is no terminal"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments: list[str], said: str) -> None:
    done = kvtui(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("kvtui: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--record-fps", "5"],
        ["replay", "--speed", "0"],
        ["--trace", "x", "replay"],
        ["play", "forgetting", "--from", "3s"],
        ["play", "forgetting", "--speed", "2"],
        ["play", "forgetting", "--replay", "demo", "--trace", "x.kvtrace"],
    ],
)
def test_wrong_usage_is_code_2(arguments: list[str]) -> None:
    done = kvtui(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("kvtui: ")
    assert done.stderr.count("\n") == 1


def test_the_shipped_trace_plays_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['kvtui', 'replay']\n"
        "import kvtui.transport\n"
        "from kvtui import cli\n"
        "try: cli.main()\n"
        "except SystemExit as end: print(end.code, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert "Paged (vLLM-style)" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.parametrize("arguments", [["replay", "demo"], ["replay", "out-of-memory"]])
def test_shipped_traces_have_names(arguments: list[str]) -> None:
    done = kvtui(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("out of device memory" in done.stdout) == ("out-of-memory" in arguments)


def test_a_file_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = Path("demo")
    mine.write_bytes(b"")
    assert recordings.find(mine) == mine
    assert recordings.find(None) == Path(DEMO)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12s", 12), ("1m30s", 90),
     ("90", 90), ("1.5s", 1.5), ("1h", 3600), ("2m", 120), ("1:30", 90), ("1:00:05.5", 3605.5)],
)  # fmt: skip
def test_moments(text: str, seconds: float) -> None:
    assert Moment().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5", "1e3", "nan", "1m30", "30s1m", "9" * 40, ":30", "1:2:3:4"])
def test_what_is_no_moment(text: str) -> None:
    if text == "1m30":  # as people write it
        assert Moment().convert(text, None, None) == 90
        return
    with pytest.raises(BadRequest, match="1m30s"):
        Moment().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "replay", "/nonexistent"], "cannot read /nonexistent"),
        (["serve", "replay", "--bogus"], "No such option"),
        (["serve", "--port", "8017", "run"], "kvtui run has no screen"),
        (["serve", "play", "nonsense"], 'no script "nonsense"'),
        (["serve", "play"], "needs a script"),
        (["serve", "--budget", "5"], "at most 1, not 5"),
        (["serve", "--prompt-file", "-"], '"-" would be stdin'),
        (["serve", "--document", "/nonexistent"], "cannot read /nonexistent"),
        (["replay", ""], "PATH is empty"),
        (["models", "--fetch", ""], "--fetch is empty"),
        (["serve", "play", "forgetting", "--replay", "/nonexistent"], "cannot read /nonexistent"),
        (["replay", "--speed", "nan"], "nan is not in the range"),
        (["--record", "x.cast", "--record-fps", "nan"], "nan is not in the range"),
        (["play", "\x1b[31mred"], "␛[31mred"),
        (["run", "--model", os.fsdecode(b"\xff")], "an option is not UTF-8 text"),
    ],
)
def test_what_cannot_be_is_refused_at_the_start(arguments: list[str], said: str) -> None:
    done = kvtui(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_replay_begins_when_the_engines_are_ready(tmp_path: Path) -> None:
    for loading_s, begin_s in ((1.5, 0.0), (20.0, 19.5)):
        path, times = tmp_path / f"{loading_s}.kvtrace", iter((0.0, 0.0, loading_s))
        writer = TraceWriter(path, times.__next__)
        writer.write([events.Loading(stage="weights")])
        writer.write([started()])
        writer.close()
        assert beginning_s(TraceReader(path)) == begin_s


@pytest.mark.parametrize(
    ("options", "begins_s", "speed"), [(["--from", "3s", "--speed", "4"], 3.0, 4.0), ([], 19.5, 1.0)]
)
@pytest.mark.parametrize("command", [["replay"], ["play", "script.toml", "--replay"]])
def test_a_recording_begins_and_runs_as_wished(
    command: list[str],
    options: list[str],
    begins_s: float,
    speed: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter((0.0, 0.0, 20.0))
    writer = TraceWriter(tmp_path / "run.kvtrace", times.__next__)
    writer.write([events.Loading(stage="weights")])
    writer.write([started()])
    writer.close()
    (tmp_path / "script.toml").write_text('title = "x"\n[[step]]\nwait = 1\n')
    shown: list[ReplayApp] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_has_screen", lambda: True)
    monkeypatch.setattr(cli, "_show", lambda app, *_: shown.append(app))
    cli.cli.main([*command, "run.kvtrace", *options], standalone_mode=False)
    (app,) = shown
    assert (app.recording.position_s, app.recording.speed) == (begins_s, speed)


def test_a_played_script_can_be_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "script.toml").write_text('title = "x"\n[[step]]\nwait = 1\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_has_screen", lambda: True)
    sources: list[object] = []
    monkeypatch.setattr(cli, "_show", lambda app, *_: sources.append(app.source))
    cli.cli.main(["play", "script.toml", "--trace", "run.kvtrace"], standalone_mode=False)
    cli.cli.main(["play", "script.toml"], standalone_mode=False)
    assert [isinstance(source, TracingSource) for source in sources] == [True, False]
    assert Path("run.kvtrace").exists()
