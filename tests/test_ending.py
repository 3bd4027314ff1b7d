"""How the app ends: ahead of keys that wait, without faults of what is taken down, with code 1 after a real one."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual import events as textual_events
from textual.css.query import NoMatches
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.worker import WorkerFailed

from kvtui import cli, ending
from kvtui.command_palette import Commands
from kvtui.file_picker import FilePicker
from kvtui.help_screen import HelpScreen
from kvtui.panes.column import Column
from kvtui.paste import PasteDriver
from kvtui.state import RunState
from tests.synthetic import started
from tests.test_app import make, shows


@pytest.mark.parametrize("kind", [HelpScreen, FilePicker, Commands])
async def test_a_screen_that_opens_while_the_app_leaves_is_no_fault(kind: type[Screen[Any]]) -> None:
    app, _ = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        app.push_screen(kind())
        app.exit(None, 3)
    assert (app.exit_code, app.failed) == (3, False)


async def test_a_column_is_not_zoomed_while_the_app_leaves() -> None:
    app, _ = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        column = app.race.query(Column).first()
        app.exit()
        await column.zoom(True, RunState())


@pytest.mark.parametrize("gone", [True, False])
async def test_what_looks_in_vain_is_a_fault_only_where_it_stays(gone: bool) -> None:
    app, _ = make([started()])
    screen = HelpScreen()

    async def look() -> None:
        if gone:
            app.pop_screen()
        raise NoMatches("nothing there")

    with contextlib.nullcontext() if gone else pytest.raises(WorkerFailed):
        async with app.run_test(size=(120, 36)) as pilot:
            await shows(pilot, "■ ready")
            await app.push_screen(screen)
            screen.run_worker(look())
            await asyncio.sleep(0.1)
            assert app.failed is not gone


async def test_keys_behind_the_one_to_quit_are_dropped() -> None:
    app, source = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        app.leave()
        for key in ("space", "question_mark"):
            app.post_message(textual_events.Key(key, None))
    assert source.sent == []


def _fail() -> None:
    raise KeyError("mine\n")


@pytest.mark.parametrize("left", [True, False])
async def test_a_fault_is_code_1_and_a_log_also_when_the_app_was_left(
    left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "user_log_path", lambda *_, **__: tmp_path / "log")
    app, _ = make([started()])
    with pytest.raises(KeyError, match="mine"):  # noqa: PT012
        async with app.run_test(size=(120, 36)) as pilot:
            app.race.call_later(_fail)
            await pilot.pause(0.1)
            if left:
                app.exit(None, 0)
    assert app.exit_code == 1
    assert app.fault == f"the screen failed (KeyError: 'mine\\n'); log: {tmp_path / 'log' / ending.LOG}"
    assert "Traceback" in (tmp_path / "log" / ending.LOG).read_text()


def test_a_fault_is_said_when_the_terminal_is_there_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "looks_wanted", dict)
    app: Any = SimpleNamespace(dress=lambda look: None, run=lambda: None, fault="it failed", exit_code=1)
    assert cli._show(app, None, None) == 1
    assert capsys.readouterr().err == "kvtui: it failed\n"


def test_ctrl_q_goes_past_the_keys_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []
    queued: list[Any] = []
    monkeypatch.setattr(LinuxDriver, "process_message", lambda self, message: queued.append(message.key))
    driver: Any = PasteDriver.__new__(PasteDriver)
    driver._app = SimpleNamespace(leave=lambda: left.append("left"))
    driver._loop = SimpleNamespace(call_soon_threadsafe=lambda call: call())
    for key in ("c", "ctrl+q"):
        driver.process_message(textual_events.Key(key, None))
    assert (left, queued) == (["left"], ["c"])


async def test_only_the_last_of_many_sizes_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = make([started()])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        laid_out = []
        monkeypatch.setattr(Screen, "_screen_resized", lambda self, size: laid_out.append(tuple(size)))
        for width in (300, 80, 120):
            size = textual_events.Size(width, 36)
            app.race.post_message(textual_events.Resize(size, size))
            app.race.call_later(asyncio.sleep, 0)  # Textual puts together only those that follow each other
        await pilot.pause()
    assert laid_out == [(120, 36)]
