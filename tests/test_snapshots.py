"""How the main screen looks at three sizes. After a wanted change: `pytest tests/test_snapshots.py --snapshot-update`,
then look at the pictures in `tests/__snapshots__` before they are committed."""

from __future__ import annotations

from typing import Any

import pytest
import textual
from msgspec.structs import replace
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


def test_six_columns(snap_compare: Any) -> None:
    """All engines, each with what its improvement does; the last one has chosen."""
    here = [engine for engine in events.ENGINE_LABELS if engine != events.SERVER]
    race, like = Race(prompt_tokens=1024), {"h2o+": "h2o", "infinigen+": "infinigen", "hybrid": "infinigen"}
    batch: list[events.AnyEvent] = [started(tuple(here)), race.submitted()]
    reason = "lookup in 1,024 tokens, 16.8 MB free: paged would need 26.2 MB, so InfiniGen+ keeps every fact"
    batch.append(events.Decision(run="synthetic", engine="hybrid", request=0, choice="infinigen+", reason=reason))
    for engine in here:
        for event in race.events_of(like.get(engine, engine)):
            if event.clock_s > 3.2:
                break
            if isinstance(event, events.Memory) and engine == "h2o+":
                event = replace(event, anchors=112, anchors_left_out=9)
            elif isinstance(event, events.Memory) and engine == "infinigen+":
                event = replace(event, host_bytes={"kv": 9_000_000}, disk_bytes={"kv": 14_600_000})
            elif isinstance(event, events.Transfer) and engine in ("infinigen+", "hybrid") and event.h2d_bytes:
                event = replace(event, saved_bytes=9 * event.h2d_bytes, hit_rate=0.93, hidden_s=0.0891)
            batch.append(replace(event, engine=engine))
    config = commands.WorkerConfig(engines=here, prompts=[commands.Prompt(title=TITLES[0])])
    assert snap_compare(KvtuiApp(config, ScriptedSource(batch)), terminal_size=(160, 45), run_before=settled)
