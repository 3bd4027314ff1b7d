"""Screens and columns that come and go: other engines, dialogs, keys faster than screens."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from textual.command import CommandPalette
from textual.widgets import OptionList, Tab, Tabs

from engines import commands, events
from kvtui.app import KvtuiApp
from kvtui.help_screen import HelpScreen
from kvtui.panes.column import Column
from kvtui.too_long_screen import TooLongScreen
from tests.scripted_source import ScriptedSource
from tests.synthetic import started
from tests.test_app import make, screen_text, shows, until
from tests.test_documents import ask, sent_prompt, too_long

FIVE = ("vllm", "h2o", "h2o+", "infinigen", "infinigen+")


def columns(app: KvtuiApp) -> list[str]:
    return [column.engine for column in app.race.query(Column)]


@pytest.mark.parametrize("size", [(80, 24), (160, 48)])
@pytest.mark.parametrize("engines", [FIVE, ("vllm", "a b", "é#.x")])
async def test_engines_of_any_name(size: tuple[int, int], engines: tuple[str, ...]) -> None:
    source = ScriptedSource([started(engines), events.Status(run="synthetic", state="racing")])
    app = KvtuiApp(commands.WorkerConfig(engines=list(FIVE)), source)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: columns(app) == list(engines) and app.race.active == engines[0])
        for _ in range(2):
            before = app.race.active
            await pilot.press("right")
            await pilot.pause()
            assert app.race.active == engines[(engines.index(before) + 1) % len(engines)]
            tab = app.race.query_one(Tabs).active_tab
            assert tab is not None
            assert list(app.race.query(Tab)).index(tab) == engines.index(app.race.active)
        if size[0] == 80:
            await pilot.click(list(app.race.query(Tab))[1])
            await until(pilot, lambda: app.race.active == engines[1])
        source.say(started(engines))
        await pilot.press("enter", "d")
        await until(pilot, lambda: app.screen is not app.race)
        await pilot.press("escape", "c")
        await until(pilot, lambda: app.screen is not app.race)


@pytest.mark.slow
async def test_columns_are_rebuilt_while_one_is_zoomed() -> None:
    app, source = make([started(), events.Status(run="synthetic", state="racing")])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "▶ racing")
        await pilot.press("right", "enter")
        await until(pilot, lambda: app.race.has_class("-zoomed"))
        for engines in (("h2o", "infinigen"), ("vllm", "h2o", "infinigen")):
            source.say(started(engines))
            await pilot.press("z", "right", "z", "left")
            source.say(started(engines[::-1]))
            await until(pilot, lambda wanted=engines[::-1]: columns(app) == list(wanted))  # type: ignore[misc]
        await pilot.press("escape")
        await until(pilot, lambda: "H2O" in screen_text(app) and "InfiniGen" in screen_text(app))


async def test_the_worker_dies_while_it_is_asked_where_to_cut() -> None:
    for key in ("escape", "m"):
        app, source = make([started()])
        async with app.run_test(size=(120, 36)) as pilot:
            await ask(pilot, "a\nb", "who?")
            source.say(too_long(sent_prompt(source)))
            await until(pilot, lambda app=app: isinstance(app.screen, TooLongScreen))  # type: ignore[misc]
            source.end("killed by signal 9")
            await until(pilot, lambda app=app: app.ended)  # type: ignore[misc]
            await pilot.press(key)
            await shows(pilot, "▤ pasted text · 3 B")
            assert app.race.composer.input.value == "who?"
            assert len(source.sent) == 1


async def test_screens_open_once_and_close_once() -> None:
    app, _ = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        for act in (app.action_help, app.action_document, app.action_cache, app.action_open):
            act()
            act()
            assert len(app.screen_stack) == 2
            screen = app.screen
            screen.dismiss()
            screen.dismiss()
            assert app.screen is app.race
            await pilot.pause()
        await pilot.press("question_mark", "escape", "escape", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))


async def test_a_fault_in_the_list_of_commands_ends_only_that_list() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await shows(pilot, "■ ready")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: CommandPalette.is_open(app) and bool(app.screen.query(OptionList)))
        options = app.screen.query_one(OptionList)
        stale = SimpleNamespace(style=SimpleNamespace(meta={"option": 10_000}))
        options.call_later(options._on_click, stale)
        while app.screen is not app.race:  # no pilot.pause: it would wait for the list, which has ended
            await asyncio.sleep(0.02)
        await until(pilot, lambda: any("opens it again" in note.message for note in app._notifications))
        await pilot.press("space", "ctrl+p")
        await until(pilot, lambda: CommandPalette.is_open(app))
        assert source.sent == [commands.Pause()]


async def test_other_faults_are_not_hidden() -> None:
    app, _ = make([started()])
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with app.run_test(size=(120, 36)) as pilot:
            await pilot.press("ctrl+p")
            app.race.call_later(lambda: {}["mine"])
            await pilot.pause(0.2)
