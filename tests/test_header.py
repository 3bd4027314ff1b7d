"""The first line says that figures are modelled, whatever else it has to say, and whose clock it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from engines import commands
from kvtui.panes.header import Header
from kvtui.panes.lines import pieces_len
from kvtui.replay import TraceSource
from kvtui.state import RunState
from kvtui.trace import TraceReader
from kvtui.transport import ReplayApp
from tests.synthetic import Race, started
from tests.test_app import make, screen_text, shows, until
from tests.test_replay import write_race


def told(width: int, changes: list[str], measured: bool = False, published: str = "", weights: str = "") -> str:
    state, event = RunState(), replace(started(), weights=weights)
    state.apply(replace(event, link=replace(event.link, measured=measured)))
    header = Header(commands.WorkerConfig())
    header._state, header._changes = state, changes
    header.published = (lambda: published) if published else None
    (line,) = header.draw(width, 1)
    assert pieces_len(line) == width
    return "".join(text for text, _ in line)


CHANGES = ["budget 0.30 → 0.25", "+anchors", "+flash scoring", "−InfiniGen"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160, 240])
@pytest.mark.parametrize("count", range(len(CHANGES) + 1))
def test_modelled_stays(width: int, count: int) -> None:
    text = told(width, CHANGES[:count])
    assert "modelled" in text
    assert ("  clock 00:00.0 " if width >= (100 if count else 80) else "  00:00.0 ") in text
    assert ("next run (r) " in text) == (count > 0 and width >= 60)


@pytest.mark.parametrize("published", ["mqtt connected", "mqtt waiting 4,112", ""])
@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_what_keys_change_stays(width: int, published: str) -> None:
    text = told(width, [], published=published)
    assert "budget 0.30" in text
    assert "modelled" in text
    assert text.startswith(" kvtui ")
    assert published[:4] in text
    if width == 120:
        assert "smollm2-135m" in text
        assert "link A100:PCIe4 (modelled)" in text
        assert ("device (CPU stand-in)" in text) == (published != "mqtt waiting 4,112")


def test_more_room_more_facts() -> None:
    assert "link A100:PCIe4 (modelled)  context" in told(240, [])
    assert "· bfloat16 · device (CPU stand-in)" in told(240, [])
    assert "· bfloat16, int8 weights · device (CPU stand-in)" in told(240, [], weights="int8")
    assert "budget 0.30  link A100:PCIe4 (modelled)" in told(120, [])
    assert "modelled" not in told(240, CHANGES, measured=True)


async def test_a_replay_says_whose_time_it_is_and_that_the_link_is_modelled(tmp_path: Path) -> None:
    reader = TraceReader(write_race(tmp_path / "race.kvtrace", Race(prompt_tokens=96, new_tokens=9)))
    app = ReplayApp(TraceSource(reader, from_s=reader.duration_s))
    async with app.run_test(size=(120, 30)) as pilot:
        for width in (120, 80):
            await pilot.resize_terminal(width, 30)
            await shows(pilot, "  recording 00:0")
            await until(pilot, lambda: "modelled" in screen_text(app).splitlines()[0])
        await pilot.resize_terminal(120, 30)
        await until(pilot, lambda: "link A100:PCIe4 (modelled)" in screen_text(app).splitlines()[0])


async def test_a_live_race_says_whose_time_it_is() -> None:
    app, _ = make([started()])
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "  clock 00:00.0 ")
        assert cell_len(screen_text(app).splitlines()[0]) == 80
