"""Notices stand where they cover nothing that is read at the end of a race."""

from __future__ import annotations

import pytest
from textual.widget import Widget
from textual.widgets import Footer
from textual.widgets._toast import Toast

from kvtui.panes.caption import CaptionBar
from kvtui.panes.inspector import Inspector
from kvtui.panes.stream import Stream
from kvtui.panes.verdict import Verdict
from tests.test_app import until
from tests.test_snapshots import app_at, settled

LONG = "InfiniGen's predictive prefetch: what the last steps fetched stays on the device, only the difference moves."


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (120, 50)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_notices_cover_nothing_that_is_read(size: tuple[int, int]) -> None:
    app = app_at(60.0)
    async with app.run_test(size=size, notifications=True) as pilot:

        async def check(*read: type[Widget]) -> None:
            await until(pilot, lambda: len(app.screen.query(Toast)) == 3)
            await pilot.pause(0.2)
            notices = [app.screen.find_widget(toast).visible_region for toast in app.screen.query(Toast)]
            assert all(notice.height >= 2 for notice in notices), notices
            newest = [toast._notification.message[:2] for toast in app.screen.query(Toast)]
            assert newest == ["2:", "3:", "4:"]
            for kind in (*read, Footer):
                shown = [pane for pane in app.screen.query(kind) if pane.region.area]
                assert shown, kind
                for pane in shown:
                    assert not any(notice.overlaps(pane.region) for notice in notices), pane

        await settled(pilot)
        for number in range(5):
            app.notify(f"{number}: {LONG}", timeout=60, markup=False)
        await check(Verdict, Stream)
        await pilot.press("enter")
        await check(Verdict, Stream)
        await pilot.press("escape")
        await app.caption("Watch the code word.")
        await check(CaptionBar, Verdict, Stream)
        await app.caption(None)
        await pilot.press("p")
        await check(CaptionBar, Stream)
        await pilot.press("d")
        await check(Inspector)
        await pilot.press("escape", "c")
        await check(Inspector)


async def test_where_there_are_few_lines_one_notice_is_enough() -> None:
    app = app_at(60.0)
    async with app.run_test(size=(80, 12), notifications=True) as pilot:
        await settled(pilot)
        for number in range(3):
            app.notify(f"{number}: {LONG}", timeout=60, markup=False)
        await until(pilot, lambda: len(app.screen.query(Toast)) == 1)
        (toast,) = app.screen.query(Toast)
        assert toast._notification.message.startswith("2:")
        (answer,) = (stream for stream in app.screen.query(Stream) if stream.region.area)
        covered = app.screen.find_widget(toast).visible_region.intersection(answer.region)
        assert covered.height < answer.region.height
