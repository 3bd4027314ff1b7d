"""How the machine looks. After a wanted change: `pytest tests/test_machine_snapshots.py --snapshot-update`, then look
at the pictures in `tests/__snapshots__` before they are committed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import textual
from msgspec.structs import replace
from textual.pilot import Pilot

from engines import commands, events
from kvtui.app import KvtuiApp
from tests.scripted_source import ScriptedSource
from tests.synthetic import started
from tests.test_app import shows
from tests.test_instruments import GPU, HOST, moved

pytestmark = pytest.mark.skipif(
    not textual.__version__.startswith("8.2."), reason="pictures differ between versions of Textual"
)


def told() -> list[events.AnyEvent]:
    """Half a minute of a GPU that is lost for a while, and of an engine that fetches more and more."""
    batch: list[events.AnyEvent] = [replace(started(), run="r")]
    for step in range(1, 121):
        wave = 0.5 + 0.5 * math.sin(step / 9)
        gpu = replace(
            GPU,
            busy_percent=round(100 * wave, 1),
            used_bytes=int((20 + step / 4) * 1e9),
            pcie_rx_bytes_per_s=int((1 + step * wave / 10) * 1e9),
        )
        lost = 70 < step < 80
        batch.append(moved(step / 4, int(step * wave / 45 * 1e9)))
        here = {"gpus": [], "driver": "GPU is lost"} if lost else {"gpus": [gpu]}
        batch.append(replace(HOST, run="r", wall_s=step / 4 + 0.01, host_cpu_percent=190 * wave, **here))
    return batch


@pytest.mark.parametrize(("keys", "size"), [("g plus", (120, 36)), ("", (80, 24))], ids=["graphs", "line"])
def test_machine(snap_compare: Any, keys: str, size: tuple[int, int]) -> None:
    async def drive(pilot: Pilot[Any]) -> None:
        await shows(pilot, "GPU ")
        await pilot.press(*keys.split())
        await pilot.pause(1.0)

    app = KvtuiApp(commands.WorkerConfig(), ScriptedSource(told()))
    assert snap_compare(app, terminal_size=size, run_before=drive)
