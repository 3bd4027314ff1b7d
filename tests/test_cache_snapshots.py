"""How the cache screen looks. After a wanted change: `pytest tests/test_cache_snapshots.py --snapshot-update`, then
look at the pictures in `tests/__snapshots__` before they are committed."""

from __future__ import annotations

from typing import Any

import pytest
import textual
from textual.pilot import Pilot

from tests.test_snapshots import app_at, settled

pytestmark = pytest.mark.skipif(
    not textual.__version__.startswith("8.2."), reason="pictures differ between versions of Textual"
)


@pytest.mark.parametrize(
    ("keys", "size"),
    [
        ("c", (120, 36)),
        ("c home plus plus right right right right right down down down", (120, 36)),
        ("c m l home" + 5 * " right_square_bracket" + 5 * " right" + " down", (120, 36)),
        ("c", (80, 24)),
    ],
    ids=["whole", "near", "heads-linear", "80x24"],
)
def test_cache_screen(snap_compare: Any, keys: str, size: tuple[int, int]) -> None:
    async def drive(pilot: Pilot[Any]) -> None:
        await settled(pilot)
        await pilot.press(*keys.split())
        await pilot.pause(0.6)

    assert snap_compare(app_at(5.0), terminal_size=size, run_before=drive)
