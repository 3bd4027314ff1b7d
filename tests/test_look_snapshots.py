"""How the screen looks in light and to an audience; see `test_snapshots` for how these pictures are kept."""

from __future__ import annotations

from typing import Any

import pytest
import textual
from textual.pilot import Pilot
from textual.widgets import Footer

from engines import commands, events
from kvtui.app import KvtuiApp
from kvtui.looks import Look
from tests.scripted_source import ScriptedSource
from tests.synthetic import TITLES, Race, started
from tests.test_snapshots import settled

pytestmark = pytest.mark.skipif(
    not textual.__version__.startswith("8.2."), reason="pictures differ between versions of Textual"
)
LOOKS = {
    "light": Look(dark=False),
    "sixteen": Look(colors=16),
    "ascii": Look(colors=0, ascii=True),
    "presenter": Look(present=True),
    "presenter-light": Look(dark=False, present=True),
}


def app_at(clock_s: float, look: Look) -> KvtuiApp:
    race = Race(prompt_tokens=1024, total=len(TITLES))
    batch = [started(), events.Status(run="synthetic", state="racing"), race.submitted()]
    batch += [event for event in race.merged() if event.clock_s <= clock_s]
    config = commands.WorkerConfig(prompts=[commands.Prompt(title=title) for title in TITLES])
    return KvtuiApp(config, ScriptedSource(batch), look=look)


async def without_keys(pilot: Pilot[Any]) -> None:
    """The keys in the footer are another matter."""
    await settled(pilot)
    pilot.app.screen.query_one(Footer).display = False
    await pilot.pause(0.5)


@pytest.mark.parametrize("look", LOOKS)
def test_looks(snap_compare: Any, look: str) -> None:
    assert snap_compare(app_at(3.2, LOOKS[look]), terminal_size=(120, 36), run_before=without_keys)


def test_presenter_while_reading(snap_compare: Any) -> None:
    assert snap_compare(app_at(1.5, Look(present=True)), terminal_size=(120, 36), run_before=without_keys)
