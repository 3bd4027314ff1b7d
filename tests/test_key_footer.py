"""The last line of every screen: whole keys, help and quit among them; and their names where there is only ASCII."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets._footer import FooterKey

from engines import commands
from kvtui.app import KvtuiApp
from kvtui.looks import Look
from kvtui.panes.key_footer import KeyFooter
from kvtui.replay import TraceSource
from kvtui.trace import TraceReader
from kvtui.transport import ReplayApp
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, whole_race
from tests.test_app import screen_text, shows, until
from tests.test_replay import write_race

SCREENS: dict[str, tuple[str, ...]] = {
    "race": (),
    "zoomed": ("enter",),
    "presenter": ("p",),
    "document": ("d",),
    "cache": ("c",),
    "help": ("question_mark", "escape"),
}


def live(tmp_path: Path, look: Look | None = None) -> KvtuiApp:
    events = whole_race(prompt_tokens=96, new_tokens=9)
    return KvtuiApp(commands.WorkerConfig(), ScriptedSource(events), look=look)


def replay(tmp_path: Path, look: Look | None = None) -> KvtuiApp:
    reader = TraceReader(write_race(tmp_path / "race.kvtrace", Race(prompt_tokens=96, new_tokens=9)))
    return ReplayApp(TraceSource(reader, from_s=reader.duration_s), look=look)


def footer(pilot: Pilot[Any]) -> str:
    return pilot.app.screen.query_one(KeyFooter).region.height * screen_text(pilot.app).splitlines()[-1].rstrip()  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("make", [live, replay])
async def test_help_and_quit_are_always_there_and_nothing_is_cut(
    make: Callable[[Path], KvtuiApp], width: int, tmp_path: Path
) -> None:
    app = make(tmp_path)
    async with app.run_test(size=(width, 30)) as pilot:
        await shows(pilot, "done")
        for screen, keys in SCREENS.items():
            await pilot.press(*keys)
            await until(pilot, lambda: footer(pilot).endswith("? Help q Quit"))
            shown = list(app.screen.query(FooterKey))
            for key in shown:
                assert f"{key.key_display} {key.description}" in footer(pilot), screen
                assert key.region.right <= width, screen
            if make is replay:
                assert "< > Seek" in footer(pilot), screen
                assert "{ } Speed" in footer(pilot), screen
            if app.screen is not app.race:
                await pilot.press("escape")
            for undo in {"zoomed": ("escape",), "presenter": ("p",)}.get(screen, ()):
                await pilot.press(undo)
            await until(pilot, lambda: app.screen is app.race)


async def test_more_room_shows_more_keys(tmp_path: Path) -> None:
    app = live(tmp_path)
    async with app.run_test(size=(80, 30)) as pilot:
        await until(pilot, lambda: footer(pilot).endswith("q Quit"))
        assert "Heatmap" not in footer(pilot)
        await pilot.resize_terminal(120, 30)
        await until(pilot, lambda: "h Heatmap" in footer(pilot))
        await pilot.resize_terminal(30, 30)
        await until(pilot, lambda: footer(pilot) == "space Pause ? Help q Quit")


async def test_a_line_of_text_offers_no_letters(tmp_path: Path) -> None:
    app = live(tmp_path)
    async with app.run_test(size=(120, 30)) as pilot:
        await shows(pilot, "done")
        await pilot.press("i")
        await until(pilot, lambda: footer(pilot).strip() == "esc Leave input")
        await pilot.press("escape", "d", "slash")
        await until(pilot, lambda: "esc Close" in footer(pilot))
        assert not any(word in footer(pilot) for word in ("Search", "Budget", "Pause", "Help"))


async def test_keys_have_names_where_there_is_only_ascii(tmp_path: Path) -> None:
    app = live(tmp_path, Look(ascii=True))
    async with app.run_test(size=(132, 50)) as pilot:
        await shows(pilot, "done")
        await shows(pilot, "host <-> device modelled")
        await until(pilot, lambda: "enter Zoom" in footer(pilot))
        await pilot.press("plus")
        await shows(pilot, "budget 0.30 -> 0.35")
        await pilot.press("d")
        await until(pilot, lambda: "left right Move" in footer(pilot))
        await pilot.press("question_mark")
        await shows(pilot, "left right up down   the cursor; page keys")
        assert "1 2 3 ...  " in screen_text(app)
        assert "search: down the next match, up the one before" in screen_text(app)
        await pilot.press("end")
        await shows(pilot, "up down scroll")
        await pilot.press("escape", "escape", "ctrl+o")
        await shows(pilot, "enter open")


@pytest.mark.parametrize(("server", "keys"), [(None, "1-6 Engines"), ("http://host:8000", "1-7 Engines")])
async def test_there_is_a_key_for_each_engine(server: str | None, keys: str) -> None:
    app = KvtuiApp(commands.WorkerConfig(server=server), ScriptedSource(whole_race(prompt_tokens=96, new_tokens=9)))
    async with app.run_test(size=(160, 30)) as pilot:
        await until(pilot, lambda: keys in footer(pilot))


async def test_keys_of_screens_that_were_closed_are_let_go_of(tmp_path: Path) -> None:
    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, FooterKey) for thing in gc.get_objects())

    app = live(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "Quit")
        await pilot.press("question_mark", "escape")
        await pilot.pause()
        before = alive()
        for _ in range(8):
            await pilot.press("question_mark", "escape")
        await pilot.pause()
        assert alive() <= before
