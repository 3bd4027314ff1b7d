"""What is said to the audience is on whichever screen is open."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from kvtui.cache_screen import CacheScreen
from kvtui.captioned import Captioned
from kvtui.document_screen import DocumentScreen
from kvtui.panes.caption import CaptionBar
from tests.test_app import screen_text, shows, until
from tests.test_snapshots import app_at, settled

SIZES = [(120, 36), (80, 24), (60, 12)]
SCREENS = [("d", DocumentScreen), ("c", CacheScreen)]
SAID = "The page itself: a word is as bright as the share in which [b]H2O[/b] still has it.\x07"
FROM_THE_RUN = "H2O answers otherwise from token 5 on"


async def opened(pilot: Pilot[None], key: str, kind: type[Captioned[None]]) -> None:
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))


@pytest.mark.parametrize(("key", "kind"), SCREENS)
async def test_a_scripts_caption(key: str, kind: type[Captioned[None]]) -> None:
    app = app_at(60.0)
    async with app.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await opened(pilot, key, kind)
        assert not app.screen.query_one(CaptionBar).display
        await app.caption(SAID)
        await shows(pilot, "The page itself: a word is as bright as the share in which [b]H2O[/b] still has it.␇")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.race)
        assert "The page itself" in screen_text(app)
        await opened(pilot, key, kind)
        await shows(pilot, "The page itself")  # one that was there before
        await app.caption(None)
        await until(pilot, lambda: "The page itself" not in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.race)
        assert "The page itself" not in screen_text(app)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(("key", "kind"), SCREENS)
async def test_presenter_mode(key: str, kind: type[Captioned[None]], size: tuple[int, int]) -> None:
    app = app_at(60.0)
    async with app.run_test(size=size) as pilot:
        await settled(pilot)
        await pilot.press("p")
        await opened(pilot, key, kind)
        await shows(pilot, FROM_THE_RUN)
        await pilot.press("p")
        await until(pilot, lambda: FROM_THE_RUN not in screen_text(app))
        await pilot.press("p")
        await shows(pilot, FROM_THE_RUN)
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.race)
        await shows(pilot, FROM_THE_RUN)
