"""The live app, driven by keys, fed by a scripted source."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual import events as textual_events
from textual.pilot import Pilot
from textual.widgets import Tab

from engines import commands, events
from engines.knobs import ANCHORS
from kvtui.app import KvtuiApp
from kvtui.help_screen import HelpScreen
from kvtui.panes.column import Column
from tests.scripted_source import ScriptedSource
from tests.synthetic import TITLES, Race, started, whole_race


def make(*batches: list[events.AnyEvent]) -> tuple[KvtuiApp, ScriptedSource]:
    source = ScriptedSource(*batches)
    config = commands.WorkerConfig(prompts=[commands.Prompt(title=title) for title in TITLES])
    return KvtuiApp(config, source), source


def screen_text(app: KvtuiApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[Any], condition: Callable[[], bool], patience_s: float = 15.0) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, screen_text(pilot.app)  # type: ignore[arg-type]
        await pilot.pause(0.02)


async def shows(pilot: Pilot[Any], text: str) -> None:
    await until(pilot, lambda: text in screen_text(pilot.app))  # type: ignore[arg-type]


def untracked(command: commands.Command) -> commands.Command:
    """A submission without the tickets, which differ each time."""
    assert isinstance(command, commands.Submit)
    assert all(prompt.ticket for prompt in command.prompts)
    return commands.Submit(prompts=[replace(prompt, ticket="") for prompt in command.prompts])


def token(text: str, index: int = 0, engine: str = "vllm") -> events.Token:
    return events.Token(
        run="synthetic", engine=engine, clock_s=1 + index, request=0, index=index, token_id=9, text=text, logprob=0.0
    )


async def test_first_the_splash_then_the_race() -> None:
    app, source = make([events.Loading(stage="importing torch", fraction=0.5)])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "importing torch")
        assert "◌ loading" in screen_text(app)
        source.say(*whole_race(prompt_tokens=512, new_tokens=40))
        await shows(pilot, "≠ differs from token 5 on")
        text = screen_text(app)
        for piece in (
            "device (CPU stand-in)",
            "A100:PCIe4 (modelled)",
            "prompt 1 of 1",
            "1 Paged (vLLM-style)",
            "2 H2O",
            "3 InfiniGen",
            "✓ done",
            "= same as paged, 40 tokens",
            "−70 %",
            "▒ host",
            "↑ fetched now",
            "of 245 MB/s",
            "fastest H2O",
            "smallest InfiniGen",
        ):
            assert piece in text


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("space", commands.Pause()),
        ("r", commands.Rerun()),
        ("plus", commands.SetBudget(budget=0.35)),
        ("minus", commands.SetBudget(budget=0.25)),
        ("2", commands.SetEngines(engines=["vllm", "infinigen"])),
    ],
)
async def test_keys_become_commands(key: str, expected: commands.Command) -> None:
    app, source = make([started(), events.Status(run="synthetic", state="racing")])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "▶ racing")
        await pilot.press(key)
        assert source.sent == [expected]


async def test_cancelling_is_shown_until_it_is_done() -> None:
    app, source = make([started(), events.Status(run="synthetic", state="racing")])
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await shows(pilot, "▶ racing")
        await pilot.press("x")
        (command,) = source.sent
        assert isinstance(command, commands.Cancel)
        assert command.ticket
        await shows(pilot, "◼ cancelling …")
        source.say(events.Notice(level="info", text="of something else"))
        await shows(pilot, "of something else")
        assert "◼ cancelling …" in screen_text(app)
        source.say(events.Notice(level="info", text="cancelled", ticket=command.ticket))
        await shows(pilot, "▶ racing")
        assert "cancelling" not in screen_text(app)
        await pilot.press("x")
        await shows(pilot, "◼ cancelling …")
        source.end("the worker was killed by signal 9 (SIGKILL)")
        await shows(pilot, "✖ worker ended")
        await pilot.press("w")
        await until(pilot, lambda: "cancelling" not in screen_text(app))


async def test_what_is_queued_joins_the_stream_at_once() -> None:
    race = Race(prompt_tokens=64, new_tokens=40)
    app, source = make([started(), race.submitted(), *list(race.merged())[:20]])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "prompt 1 of 1")
        source.say(events.Status(run="synthetic", state="racing", stream=[TITLES[0], "Why is that?"]))
        await shows(pilot, "prompt 1 of 2")
        assert "○ Why is that?" in screen_text(app)
        source.say(events.Status(run="synthetic", state="racing", stream=[TITLES[0]]))  # dropped
        await shows(pilot, "prompt 1 of 1")
        assert "Why is that?" not in screen_text(app)


async def test_pause_step_and_resume() -> None:
    app, source = make([started(), events.Status(run="synthetic", state="paused")])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "‖ paused")
        await pilot.press("full_stop", "space")
        assert source.sent == [commands.Step(), commands.Resume()]


async def test_a_budget_for_the_next_run_is_shown_until_it_begins() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "budget 0.30")
        await pilot.press("plus", "plus")
        await shows(pilot, "next run (r) budget 0.30 → 0.40")
        source.say(started(budget=0.4))
        await shows(pilot, "budget 0.40  ")


async def test_one_engine_always_stays() -> None:
    source = ScriptedSource([started(("h2o",))])
    app = KvtuiApp(commands.WorkerConfig(engines=["h2o"]), source)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: len(app.race.query(Column)) == 1)
        await pilot.press("1")
        assert source.sent == []
        await pilot.press("2")
        assert source.sent == [commands.SetEngines(engines=["h2o", "vllm"])]


async def test_text_is_shown_literally() -> None:
    nasty = "[bold]x[/bold] \x1b[31m\x1b]52;c;aGk=\x07 \x9b \u202eevil"
    race = Race(prompt_tokens=64, title="[red]\x1b[2J title", text="[b]prompt[/b]\x07")
    app, _ = make([started(), race.submitted(), token(nasty)])
    async with app.run_test(size=(160, 48)) as pilot:
        await shows(pilot, "[bold]x[/bold] ␛[31m␛]52;c;aGk=␇")
        text = screen_text(app)
        assert "[red]␛[2J title" in text
        assert "[b]prompt[/b]␇" in text
        assert not any(mark in text for mark in "\x1b\x07\x9b\u202e")


async def test_asking_and_following_up() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "paste a document, or ask …")
        await pilot.press("i", *"why space", "enter")  # letters that are commands elsewhere are text here
        prompt = commands.Prompt(text="why space", title="why space")
        assert [untracked(command) for command in source.sent] == [commands.Submit(prompts=[prompt])]
        source.say(Race(prompt_tokens=64).submitted())
        await shows(pilot, "ask a follow-up")
        await pilot.press(*"more", "enter")
        prompt = commands.Prompt(text="more", title="more", follow_up=True)
        assert untracked(source.sent[-1]) == commands.Submit(prompts=[prompt])
        await pilot.press("ctrl+n", *"new", "enter")
        assert untracked(source.sent[-1]) == commands.Submit(prompts=[commands.Prompt(text="new", title="new")])
        await pilot.press("escape", "r")
        assert source.sent[-1] == commands.Rerun()


async def test_ctrl_n_leads_to_the_input_line_and_the_help_says_so() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 60)) as pilot:
        await shows(pilot, "paste a document, or ask …")
        await pilot.press("ctrl+n", "r")
        assert (app.race.composer.input.value, source.sent) == ("r", [])
        await pilot.press("escape", "question_mark")
        await shows(pilot, "begin a new conversation")
        (line,) = [line for line in screen_text(app).splitlines() if "ctrl+n" in line and "conversation" in line]
        assert "input line" in line


@pytest.mark.parametrize("focus", [True, False])
async def test_a_megabyte_of_paste_becomes_a_chip_at_once(focus: bool) -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: len(app.race.query(Column)) == 3)
        if focus:
            await pilot.press("i")
        document = "line of text\n" * 80_000
        before = time.monotonic()
        app.post_message(textual_events.Paste(document.replace("\n", "\r")))  # as terminals paste line ends
        await shows(pilot, "▤ pasted text · 1.04 MB · ~260k tokens > context 8,192 · ⌫")
        assert time.monotonic() - before < 3.0
        await pilot.press(*"so?", "enter")
        sent = source.sent[0]
        assert isinstance(sent, commands.Submit)
        assert (sent.prompts[0].document, sent.prompts[0].text) == (document, "so?")
        assert sent.prompts[0].title == "so?"
        await until(pilot, lambda: "pasted text" not in screen_text(app))


async def test_a_chip_can_be_dropped_and_short_pastes_are_typed() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("i")
        app.post_message(textual_events.Paste("two\nlines"))
        await shows(pilot, "▤ pasted text · 9 B · ~3 tokens · ⌫")
        await pilot.press("backspace")
        await until(pilot, lambda: "pasted text" not in screen_text(app))
        app.post_message(textual_events.Paste("a few words\n"))
        await until(pilot, lambda: app.race.composer.input.value == "a few words")
        assert source.sent == []


async def test_a_question_to_a_worker_that_has_ended_is_kept() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: len(app.race.query(Column)) == 3)
        source.end("killed by signal 9")
        await shows(pilot, "press w")
        await pilot.press("i", *"why?", "enter")
        await until(pilot, lambda: any("What you wrote is kept" in note.message for note in app._notifications))
        assert app.race.composer.input.value == "why?"
        assert source.sent == []


async def test_out_of_memory_is_said_in_the_pane_and_the_others_go_on() -> None:
    app, _ = make(whole_race(prompt_tokens=512, new_tokens=20, oom="h2o"))
    async with app.run_test(size=(160, 48)) as pilot:
        await shows(pilot, "✖ out of memory")
        text = screen_text(app)
        assert "out of device memory at 512 tokens:" in text
        assert text.count("✓ done") == 2


async def test_the_end_of_the_worker_is_said_and_it_can_be_started_again() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: len(app.race.query(Column)) == 3)
        source.end("the worker was killed by signal 9 (SIGKILL)")
        await shows(pilot, "killed by signal 9 (SIGKILL) — press w to start it again · log: /var/log/worker.log")
        await pilot.press("right", "h", "space")  # still usable
        await pilot.press("w")
        await until(pilot, lambda: source.starts == 2)
        await until(pilot, lambda: "press w" not in screen_text(app) and len(app.race.query(Column)) == 3)
        await until(pilot, lambda: isinstance(app.focused, Column))


async def test_a_model_that_cannot_be_had_is_said_in_its_own_words() -> None:
    app, source = make([events.Notice(level="error", text="no model called nope: try kvtui models")])
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await shows(pilot, "no model called nope")
        source.end("the worker ended with exit code 2")
        await shows(pilot, "✖ no model called nope: try kvtui models — press w")


async def test_a_damaged_picture_is_a_notice() -> None:
    race = Race(prompt_tokens=64)
    damaged = events.Cache(
        run="synthetic",
        engine="h2o",
        request=0,
        tokens=9,
        layers=2,
        whole=True,
        states=b"garbage",
        mass=b"y",
        mass_bins=4,
    )
    app, source = make([started(), race.submitted(), damaged])
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await shows(pilot, "damaged cache cells")
        source.say(token("still here"))
        await shows(pilot, "still here")


async def test_zoom_shows_one_engine_and_a_plot_of_all() -> None:
    app, _ = make(whole_race(prompt_tokens=512, new_tokens=40))
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "✓ done")
        await pilot.press("right", "enter")
        await until(pilot, lambda: "Paged (vLLM-style) " in screen_text(app) and "3 InfiniGen" not in screen_text(app))
        assert "2 H2O" in screen_text(app)
        await until(pilot, lambda: bool(app.race.query("Comparison")))
        for mark in (" 15.0 MB", " 7.50 MB", " 0 B", " 0 s ", " 5 s ", " 10 s "):  # the axes' units
            await shows(pilot, mark)
        await pilot.press("escape")
        await shows(pilot, "3 InfiniGen")
        assert not app.race.query("Comparison")


async def test_narrow_terminals_show_tabs() -> None:
    app, _ = make(whole_race(prompt_tokens=512, new_tokens=40))
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "✓ done")
        await until(pilot, lambda: "≠" in str(app.race.query(Tab)[1].label))
        labels = [str(tab.label) for tab in app.race.query(Tab)]
        assert labels[1].startswith("✓ H2O 41.")
        assert "fastest H2O" in screen_text(app)
        await pilot.press("right")
        await shows(pilot, "≠ differs from token 5 on")
        assert "1 Paged" not in screen_text(app)


@pytest.mark.slow
async def test_no_size_breaks_it() -> None:
    app, _ = make(whole_race(prompt_tokens=512, new_tokens=40))
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "✓ done")
        for width, height in ((20, 5), (1, 1), (240, 70), (80, 24), (99, 29), (20, 60), (200, 8), (120, 36)):
            await pilot.resize_terminal(width, height)
            await pilot.press("z", "right", "h")
        await shows(pilot, "fastest H2O")


async def test_the_splash_fits_small_terminals() -> None:
    app, _ = make([events.Loading(stage="x" * 300)])
    async with app.run_test(size=(20, 5)) as pilot:
        await pilot.pause(0.2)
        assert app.is_running


async def test_help_and_quit() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("question_mark")
        await shows(pilot, "pause and resume the race")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.race)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert source.closed


async def test_help_can_be_read_on_a_small_terminal() -> None:
    app, _ = make([started()])
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        await shows(pilot, "pause and resume the race")
        lines = screen_text(app).splitlines()
        begins = {line.index(text) for text in ("pause and", "prefetch: from") for line in lines if text in line}
        assert len(begins) == 1  # what is too long for its line goes on beneath itself, not beneath the keys
        await pilot.press("end")
        await shows(pilot, "there, ? tells of more keys")
        await pilot.press("pageup", "pageup", "pageup")
        await shows(pilot, "pause and resume the race")


def test_every_key_is_in_the_command_palette_and_in_the_help() -> None:
    app, _ = make()
    titles = " ".join(f"{c.title} {c.help}" for c in app.get_system_commands(app.race))
    for key in (
        "space",
        ".",
        "r",
        "x",
        "+",
        "−",
        "1",
        "2",
        "3",
        "enter",
        "h",
        "p",
        "t",
        "i",
        "ctrl+o",
        "ctrl+n",
        "w",
        "?",
    ):
        assert f"({key})" in titles, key


def test_the_face_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, kvtui.app; print(sorted({'torch', 'transformers', 'numpy', 'plotext'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


async def test_improvements_are_switched_by_keys_for_the_next_run() -> None:
    source = ScriptedSource([started()])
    app = KvtuiApp(commands.WorkerConfig(scoring="flash"), source)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.state.started is not None)
        await pilot.press("a", "f", "k", "v", "a")
        wanted = [c for c in source.sent if isinstance(c, commands.SetImprovements)]
    assert wanted == [
        commands.SetImprovements(anchors=ANCHORS),
        commands.SetImprovements(scoring=""),  # it was on from the start
        commands.SetImprovements(prefill="chunked"),
        commands.SetImprovements(prefetch="predictive"),
        commands.SetImprovements(anchors=0.0),
    ]


async def test_the_first_figures_wait_for_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    later: list[Callable[[], object]] = []
    monkeypatch.setattr("kvtui.app.importlib.import_module", imported.append)
    monkeypatch.setattr(KvtuiApp, "set_timer", lambda self, delay, callback, **_: later.append(callback))
    app, _ = make(whole_race(prompt_tokens=64, new_tokens=4))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.state.started is not None)
        assert not imported
        for callback in later:
            callback()
        await until(pilot, lambda: len(imported) == 4)  # but a later key waits for none either
