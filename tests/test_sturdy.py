"""Clicks and keys on what is on its way out."""

from __future__ import annotations

import asyncio

import pytest
from textual import events as textual_events
from textual.command import CommandList, CommandPalette
from textual.widgets import Input
from textual.widgets._toast import Toast

from engines import commands
from tests.synthetic import started
from tests.test_app import make, shows, until


async def test_a_click_on_a_notice_that_was_removed_is_ignored() -> None:
    app, _ = make([started()])
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await shows(pilot, "■ ready")
        app.notify("a notice", timeout=60)
        await shows(pilot, "a notice")
        toast = app.screen.query_one(Toast)
        x, y = toast.region.center
        parent = toast._parent
        toast._detach()  # as it is between its removal and the next layout
        click = textual_events.MouseDown(None, x, y, 0, 0, 1, False, False, False, x, y)
        app.screen._forward_event(click)
        assert parent is not None
        toast._attach(parent)
        assert app.screen.get_widget_and_offset_at(int(x), int(y))[0] is toast


async def test_a_command_that_is_chosen_many_times_runs_once() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        await pilot.press("ctrl+p", *"pause or")
        await until(pilot, lambda: app.screen.query_one(CommandList).option_count == 1)
        line = app.screen.query_one(Input)
        for _ in range(4):
            line.post_message(Input.Submitted(line, line.value))
        await until(pilot, lambda: app.screen is app.race)
        await asyncio.sleep(0.2)
        assert source.sent == [commands.Pause()]


async def test_a_second_click_beside_the_palette_takes_nothing_else_away() -> None:
    app, _ = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        palette = app.screen
        beyond = textual_events.Click(palette, 200, 9, 0, 0, 1, False, False, False, 200, 9)
        palette.post_message(beyond)  # it was inside, before the terminal became smaller
        await pilot.pause()
        assert app.screen is palette
        for _ in range(3):
            palette.post_message(textual_events.Click(palette, 2, 0, 0, 0, 1, False, False, False, 2, 0))
        await until(pilot, lambda: app.screen is app.race)
        await pilot.pause(0.1)
        assert app.screen is app.race


@pytest.mark.parametrize("key", ["pagedown", "pageup"])
async def test_a_page_key_on_a_list_that_has_no_place_is_nothing(key: str) -> None:
    app, source = make([started()])
    async with app.run_test(size=(1, 1)) as pilot:
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await until(pilot, lambda: app.screen.query_one(CommandList).option_count > 0)
        await pilot.press(key, "escape")
        await until(pilot, lambda: app.screen is app.race)
        await pilot.press("space")
        await until(pilot, lambda: source.sent == [commands.Pause()])
