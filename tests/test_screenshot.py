"""Pictures of the screen that any program can show, in a place that is said, over nobody's file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from engines import commands, events
from kvtui import screenshot
from kvtui.app import KvtuiApp
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started
from tests.test_app import make, shows, token


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(screenshot, "user_pictures_path", lambda: tmp_path)
    return tmp_path


async def test_a_picture_needs_nothing_from_elsewhere(folder: Path) -> None:
    app, _ = make([started(), Race(prompt_tokens=64).submitted(), token("<&> not in XML: \ufffe")])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "not in XML")
        await pilot.press("s")
        await pilot.pause()
        (path,) = folder.glob("*.svg")
    assert re.fullmatch(r"kvtui-\d{4}-\d\d-\d\d-\d{6}\.svg", path.name)
    svg = path.read_text("utf-8")
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "Paged" in svg
    assert "url(http" not in svg
    assert "@font-face" not in svg
    links = set(re.findall(r'https?://[^"\s<]+', svg)) - {"http://www.w3.org/2000/svg"}
    assert links <= {"https://www.textualize.io"}  # in a comment


async def test_pictures_of_one_second_have_names_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = make([started()])
    async with app.run_test(size=(80, 24)):
        monkeypatch.setattr(screenshot, "_names", lambda: iter(["a.svg", "b.svg"]))
        (folder / "a.svg").write_text("mine")
        assert screenshot.save(app) == folder / "b.svg"
        assert (folder / "a.svg").read_text() == "mine"
        with pytest.raises(OSError):
            screenshot.save(app)


async def test_where_this_folder_takes_nothing_it_goes_to_the_pictures(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pictures = tmp_path_factory.mktemp("home") / "Pictures"
    monkeypatch.setattr(screenshot, "user_pictures_path", lambda: pictures)
    write = screenshot._write

    def refuse(svg: str, into: Path) -> Path:
        if into == folder:
            raise PermissionError(13, "Permission denied")
        return write(svg, into)

    monkeypatch.setattr(screenshot, "_write", refuse)
    app = KvtuiApp(commands.WorkerConfig(), ScriptedSource([started(), events.Status(state="racing")]))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await pilot.press("s")
        await pilot.pause()
        assert [note.message for note in app._notifications] == [f"Saved {next(pictures.glob('*.svg'))}"]
        monkeypatch.setattr(screenshot, "user_pictures_path", lambda: folder)
        await pilot.press("s")
        await pilot.pause()
        assert "The picture was not saved: Permission denied" in [note.message for note in app._notifications]
