"""How the document view looks. After a wanted change: `pytest tests/test_document_snapshots.py --snapshot-update`, then
look at the pictures in `tests/__snapshots__` before they are committed."""

from __future__ import annotations

from typing import Any

import pytest
from textual.pilot import Pilot

from engines import commands, events
from kvtui.app import KvtuiApp
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started
from tests.test_snapshots import pytestmark as pytestmark
from tests.test_snapshots import settled

STORY = """It was on the night of the great storm that the keeper wrote a word on the back of the chart. The wind had \
come round to the north-west at dusk, and by nine the sea was breaking over the gallery; he could hear the lantern \
panes ticking in their frames. “Remember it,” he said to the boy, “when the light goes out,” and he turned the chart \
so that the word was face down on the table.

The lamp room smelled of brass and of oil. There were eleven steps from the watch room, and he counted the seconds \
between the flashes as other men count sheep. The harbour board had written twice about the paraffin. \
港は静かだった。"""
TEXT = "".join(f"Chapter {n}\n\n{STORY}\n\n" for n in range(1, 9)) + "Question: what is the code word?\n"


@pytest.mark.parametrize(
    ("keys", "size"),
    [(("2",), (120, 36)), (("3", "m"), (120, 36)), (("a", "down"), (120, 36)), (("2", "n"), (80, 24))],
    ids=["h2o", "infinigen", "overlaid", "small"],
)
def test_document(snap_compare: Any, keys: tuple[str, ...], size: tuple[int, int]) -> None:
    race = Race(prompt_tokens=len(TEXT) // 4, text=TEXT)
    batch = [started(), events.Status(run="synthetic", state="racing"), race.submitted()]
    batch += [event for event in race.merged() if event.clock_s <= 5.0]
    app = KvtuiApp(commands.WorkerConfig(), ScriptedSource(batch))

    async def opened(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await pilot.press("d", *keys)
        await pilot.pause(1.5)

    assert snap_compare(app, terminal_size=size, run_before=opened)
