"""Demo scripts: read, refused, and played on the app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from engines import commands
from engines.errors import BadRequest
from kvtui import conditions, script
from kvtui.app import KvtuiApp
from kvtui.cli import _configure_race
from kvtui.panes.caption import MARK
from kvtui.panes.stream import Wrapped
from kvtui.player import Player
from kvtui.state import RunState
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started, whole_race


def test_the_shipped_scripts_can_be_played() -> None:
    names = {}
    for name, known in script.shipped():
        names[name] = known.title
        Player(known, _configure_race)
    assert names == {
        "anchors": "A fact brought back",
        "forgetting": "Watch a fact being forgotten",
        "gap": "Closing the 17× gap",
        "out-of-memory": "Out of memory at 10K",
    }


def test_captions_are_read_at_a_glance_and_figures_have_a_source() -> None:
    for name, known in script.shipped():
        for step in known.step:
            words = Wrapped(120 - cell_len(MARK) - 1)  # as `CaptionBar` has it
            words.add(step.caption or "", -1, -1)
            assert len(words.lines) <= 2, (name, step.caption)
    said = script.find("gap").step[0].caption or ""
    assert "17×" in said
    assert "arXiv 2604.05012" in said


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "missing required field `title`"),
        ('title = "x"\nstep = []', "at least one"),
        ('title = "x"\n[[step]]\nwait = "doomsday"', 'step 1: cannot wait for "doomsday"; known are ready'),
        ('title = "x"\n[[step]]\nwait = -1', "is no wait"),
        ('title = "x"\n[[step]]\nwiat = 1', "unknown field `wiat`"),
        ('title = "x"\n[[step]]\nrepeat = 0', "above 0"),
        ('title = "x"\n[[step]]\ntimeout = nan', "above 0"),
        ('title = "x"\n[[step]]\ntimeout = inf', "above 0"),
        ('title = "x"\n[[step]]\nwait = nan', "is no wait"),
        ('title = "x"\n[[step]]\nwait = "answered"\nengine = "h2"', 'no engine "h2"; known are vllm'),
        ('title = "x"\n[[step]]\nkeys = ["d", "entre"]', 'no key is called "entre"'),
        ('title = "x"\n[[step]]\nkeys = ""', 'no key is called ""'),
        ("title = ", "x.toml: "),
    ],
)
def test_a_faulty_script_gives_one_line(text: str, fault: str) -> None:
    with pytest.raises(BadRequest) as said:
        script.parse(text, "x.toml")
    assert fault in str(said.value)
    assert "\n" not in str(said.value)


def test_options_become_a_command_line() -> None:
    options: dict[str, script.Option] = {"budget": 0.2, "random_weights": True, "anchors": False}
    assert script.arguments(options) == ["--budget", "0.2", "--random-weights"]


def test_the_apps_own_keys_are_known() -> None:
    for key in ("question_mark", "less_than_sign", "plus", "minus", "slash", "ctrl+o", "pagedown", "f1", "+", "?", "ü"):
        assert script.is_key(key), key
    assert not any(map(script.is_key, ("ctrl+", "hyper+a", "\x1b", "bogus", "ctrl+bogus")))


@pytest.mark.parametrize("name", ["help", "trace", "record", "", "budget=0.5 ", "-model", "json"])
def test_what_is_no_option_of_a_race_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="no option of a race"):
        script.arguments({name: True})


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("budget = 7", "at most 1, not 7"),
        ('budget = "x"', "not a valid float"),
        ('prompt-file = "-"', '"-" would be stdin'),
        ("trace = 1", "no option of a race"),
    ],
)
def test_a_race_that_cannot_be_is_named(options: str, fault: str) -> None:
    player = Player(script.parse(f'title = "x"\n[race]\n{options}\n[[step]]', "x.toml"), _configure_race)
    with pytest.raises(BadRequest) as said:
        player.first()
    assert str(said.value).startswith("x.toml, [race]: ")
    assert fault in str(said.value)


def test_a_document_that_is_repeated_too_often_is_refused() -> None:
    steps = '[[step]]\ndocument = "built-in"\nrepeat = 60000000'
    with pytest.raises(BadRequest, match=r"more than the .* that a document may have"):
        Player(script.parse(f'title = "x"\n{steps}', "x.toml"), _configure_race)


def test_a_race_that_cannot_be_is_refused_before_anything_runs() -> None:
    faulty = script.parse('title = "x"\n[[step]]\n[[step]]\nrace = { budget = 7 }', "x.toml")
    with pytest.raises(BadRequest, match=r"x\.toml, step 2: .*budget"):
        Player(faulty, _configure_race)
    missing = script.parse('title = "x"\n[[step]]\ndocument = "not-there.txt"', "x.toml")
    with pytest.raises(BadRequest, match=r"x\.toml, step 1: .*not-there\.txt"):
        Player(missing, _configure_race)


def test_later_races_keep_the_options_of_earlier_ones() -> None:
    text = 'title = "x"\n[race]\nbudget = 0.2\n[[step]]\nrace = { link = "pcie3" }\n[[step]]\nrace = { seed = 7 }'
    configs: list[commands.WorkerConfig] = []

    def configure(options: dict[str, script.Option]) -> commands.WorkerConfig:
        configs.append(_configure_race(options))
        return configs[-1]

    Player(script.parse(text, "x.toml"), configure)
    assert [(c.budget, c.link, c.seed) for c in configs] == [(0.2, "pcie3", 0), (0.2, "pcie3", 7)]


def test_conditions_come_true_in_the_order_of_a_race() -> None:
    state, since = RunState(), {}
    for number, event in enumerate(whole_race(oom="h2o")):
        state.apply(event)
        for name in conditions.CONDITIONS:
            if conditions.holds(name, state):
                since.setdefault(name, number)
    assert since["ready"] < since["prefill"] < since["out of memory"] < since["first token"] < since["all answering"]
    assert since["all answering"] < since["answered"]
    assert "first fetch" in since
    assert conditions.holds("out of memory", state, "h2o")
    assert not conditions.holds("out of memory", state, "vllm")


def test_forgetting_is_seen_by_conditions() -> None:
    state = RunState()
    state.apply_all(whole_race())
    assert conditions.holds("first eviction", state, "h2o")
    assert not conditions.holds("first eviction", state, "vllm")
    assert conditions.holds("divergence", state, "h2o")
    assert not conditions.holds("divergence", state, "infinigen")


def app_playing(text: str, **options: Any) -> tuple[KvtuiApp, ScriptedSource]:
    source = ScriptedSource([started()])
    player = Player(script.parse(text, "x.toml"), _configure_race)
    return KvtuiApp(commands.WorkerConfig(), source, player=player, **options), source


async def until(pilot: Pilot[Any], condition: Any) -> None:
    for _ in range(200):
        if condition():
            return
        await pilot.pause(0.05)
    raise AssertionError("waited in vain")


async def test_a_script_presses_keys_asks_and_waits() -> None:
    app, source = app_playing(
        """
        title = "x"
        [[step]]
        wait = "ready"
        [[step]]
        keys = "space"
        document = "built-in"
        prompt = "What was the code word?"
        wait = "answered"
        [[step]]
        keys = "question_mark"
        """
    )
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: len(source.sent) == 2)
        asked = next(c for c in source.sent if isinstance(c, commands.Submit)).prompts[0]
        assert any(isinstance(command, commands.Pause) for command in source.sent)
        assert asked.follow_up is False
        await pilot.pause(0.5)
        assert len(app.screen_stack) == 1  # still waiting for an answer
        race = Race(prompt_tokens=64, new_tokens=4)
        source.say(race.submitted(), *race.merged())
        await until(pilot, lambda: len(app.screen_stack) == 2)


async def test_a_wait_in_vain_is_said_and_leaves_the_app() -> None:
    app, _ = app_playing('title = "x"\n[[step]]\nwait = "out of memory"\ntimeout = 0.3\n[[step]]\nkeys = "q"')
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: any("in vain" in n.message for n in app._notifications))
        await pilot.pause(0.5)
        assert app.is_running


async def test_the_app_leaves_after_the_script_if_it_was_told_so() -> None:
    app, _ = app_playing('title = "x"\n[[step]]\nwait = 0.1', leave_after_play=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app._exit)
    assert app.return_code == 0


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["play", "no-such"], 'no script "no-such"; shipped are anchors, forgetting, gap, out-of-memory'),
        (["play", "no-such.toml"], "cannot read no-such.toml"),
        (["play", "forgetting"], "here is no terminal"),
        (["serve", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1:8000"),
        (["serve", "--budget", "x"], "budget"),
    ],
)
def test_faults_on_the_command_line(arguments: list[str], fault: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvtui.cli", *arguments],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert fault in done.stderr
    assert "Traceback" not in done.stderr
