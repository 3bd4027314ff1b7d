"""How the main screen looks at three sizes. After a wanted change: `pytest tests/test_snapshots.py --snapshot-update`,
then look at the pictures in `tests/__snapshots__` before they are committed."""

from __future__ import annotations

from typing import Any

import pytest
import textual
from textual.pilot import Pilot

from engines import commands, events
from kvtui.app import KvtuiApp
from tests.scripted_source import ScriptedSource
from tests.synthetic import TITLES, Race, started

pytestmark = pytest.mark.skipif(
    not textual.__version__.startswith("8.2."), reason="pictures differ between versions of Textual"
)
SIZES = [(120, 36), (80, 24), (160, 48)]


def app_at(clock_s: float, **options: Any) -> KvtuiApp:
    """The race as it is at `clock_s` of everybody's clock."""
    race = Race(prompt_tokens=1024, total=len(TITLES), **options)
    batch = [started(), events.Status(run="synthetic", state="racing"), race.submitted()]
    batch += [event for event in race.merged() if event.clock_s <= clock_s]
    config = commands.WorkerConfig(prompts=[commands.Prompt(title=title) for title in TITLES])
    return KvtuiApp(config, ScriptedSource(batch))


async def settled(pilot: Pilot[Any]) -> None:
    """All events shown, figures too, and the tab underline at rest."""
    app: KvtuiApp = pilot.app  # type: ignore[assignment]
    while app.state.started is None:
        await pilot.pause(0.05)
    await pilot.pause(1.0)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_main_screen(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app_at(5.0), terminal_size=size, run_before=settled)


def test_out_of_memory(snap_compare: Any) -> None:
    assert snap_compare(app_at(5.0, oom="h2o"), terminal_size=(120, 36), run_before=settled)


def test_prefill(snap_compare: Any) -> None:
    assert snap_compare(app_at(1.5), terminal_size=(120, 36), run_before=settled)
