"""The cache on the whole screen, driven by keys and the mouse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from textual import events as textual_events
from textual.pilot import Pilot

from engines import commands, events
from kvtui.app import KvtuiApp
from kvtui.cache_screen import CacheScreen
from kvtui.cache_view import window
from kvtui.panes.cache_picture import CachePicture, gutter
from kvtui.panes.heatmap import Heatmap
from kvtui.panes.ruler import Ruler, step_of
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started, whole_race
from tests.test_app import make, screen_text, shows, until

SIZE = (120, 36)


async def opened(pilot: Pilot[Any], *keys: str) -> CacheScreen:
    """The screen, once the race is over and shown."""
    app: KvtuiApp = pilot.app  # type: ignore[assignment]
    await shows(pilot, "✓ done")
    await pilot.press("c", *keys)
    await until(pilot, lambda: isinstance(app.screen, CacheScreen) and len(app.screen.query(CachePicture)) == 3)
    await pilot.pause(0.1)
    assert isinstance(app.screen, CacheScreen)
    return app.screen


def race(**options: Any) -> tuple[KvtuiApp, ScriptedSource]:
    return make(whole_race(prompt_tokens=512, new_tokens=40, **options))


async def test_every_engine_on_one_scale() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        text = screen_text(app)
        for piece in ("1 Paged (vLLM-style)", "2 H2O", "3 InfiniGen", "layers × positions", "positions 0–576", "╵300"):
            assert piece in text
        assert "evicted" in text
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.race)


@pytest.mark.slow
async def test_cursor_marks_line_up_without_colour() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "home", *["right"] * 60, "down", "down", "down")
        lines = screen_text(app).splitlines()
        columns = {line.index("▼") for line in lines if "▼" in line}
        columns |= {line.index("╋") for line in lines if "╋" in line}
        columns |= {line.index("▲") for line in lines if "▲" in line}
        assert len(columns) == 1
        assert sum("╋" in line for line in lines) == 3
        assert sum("3 ▸" in line for line in lines) == 3
        assert "layer 3 · all heads" in screen_text(app)


async def test_zooming_and_panning() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, "home", "plus", "plus")
        assert window(screen._view, screen._tokens) == (0, 144)
        assert "positions 0–144" in screen_text(app)
        await pilot.press("pagedown")
        assert window(screen._view, screen._tokens) == (72, 144)
        await pilot.press("shift+left", "minus", "minus", "minus")
        assert window(screen._view, screen._tokens) == (0, 576)


async def test_heads_of_a_layer_are_asked_for() -> None:
    app, source = race()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "m")
        await shows(pilot, "KV heads × positions of layer 1 of 30")
        assert source.sent == [commands.Focus(layer=0)]
        await pilot.press("right_square_bracket", "down")
        assert source.sent[-1] == commands.Focus(layer=1)
        await shows(pilot, "layer 2 · head 1")
        await pilot.press("m", "left_square_bracket", "left_square_bracket")
        assert source.sent[-1] == commands.Focus()
        await shows(pilot, "· all layers")
        await pilot.press("down", "c")
        await until(pilot, lambda: app.screen is app.race)
        assert source.sent[-2:] == [commands.Focus(layer=0), commands.Focus()]


async def test_where_nobody_can_be_asked_the_nearest_layer_that_was_seen_is_shown() -> None:
    whole = whole_race(prompt_tokens=512, new_tokens=40)
    batch = [event for event in whole if not isinstance(event, events.Heads)]
    seen = next(event for event in whole if isinstance(event, events.Heads))
    for engine, layer in (("vllm", 6), ("h2o", 6), ("infinigen", 6), ("h2o", 20)):
        batch.append(msgspec.structs.replace(seen, engine=engine, layer=layer))
    app, source = make([*batch, events.Status(run="synthetic", state="paused")])
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await opened(pilot, "m")
        await shows(pilot, "KV heads × positions of layer 7 of 30")
        await shows(pilot, "Layer 1 has not been seen head by head: layer 7")
        assert "not been seen head by head yet" not in screen_text(app)
        assert source.sent == [commands.Focus(layer=6)]
        await pilot.press("right_square_bracket")
        await shows(pilot, "No other layer has been seen head by head yet.")
        assert "layer 7 of 30" in screen_text(app)
        await pilot.press("2", "right_square_bracket")  # of which one more was seen
        await shows(pilot, "layer 21 of 30")
        await pilot.press("a")
        await shows(pilot, "Layer 21 has not been seen head by head in all engines")
        assert "layer 7 of 30" in screen_text(app)
        source.say(events.Status(run="synthetic", state="racing"))
        await until(pilot, lambda: app.state.status == "racing")
        await pilot.press("right_square_bracket")
        await shows(pilot, "layer 8 of 30")  # it is asked for


async def test_linear_brightness() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "l")
        await shows(pilot, "linear brightness")
        await shows(pilot, "full brightness at")


async def test_one_engine_and_all() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "2")
        await until(pilot, lambda: "2 H2O" in screen_text(app) and "3 InfiniGen" not in screen_text(app))
        await pilot.press("tab")
        await until(pilot, lambda: "3 InfiniGen" in screen_text(app) and "2 H2O" not in screen_text(app))
        await pilot.press("a")
        await until(pilot, lambda: all(n in screen_text(app) for n in ("1 Paged", "2 H2O", "3 InfiniGen")))


async def test_a_click_on_the_races_picture_opens_it_there() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "✓ done")
        heatmap = next(pane for pane in app.race.query(Heatmap) if pane.engine == "h2o")
        await pilot.click(heatmap, offset=(heatmap.size.width // 2, 1))
        await until(pilot, lambda: isinstance(app.screen, CacheScreen))
        assert isinstance(app.screen, CacheScreen)
        view = app.screen._view
        assert view.layer == 0
        assert abs(view.cursor - 576 / 2) <= 576 / heatmap.size.width


async def test_clicks_move_the_cursor_and_the_wheel_zooms() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot)
        picture = list(screen.query(CachePicture))[1]
        margin = gutter(picture.size.width)
        await pilot.click(picture, offset=(margin, picture.size.height - 1))
        assert (screen._view.cursor, screen._view.layer) == (0, 26)
        await pilot.click(picture, offset=(margin + 10, 0))
        assert screen._view.layer is None
        assert 0 < screen._view.cursor < 60
        event = textual_events.MouseScrollUp(picture, margin, 2, 0, 0, 0, False, False, False)
        picture.post_message(event)
        await until(pilot, lambda: window(screen._view, screen._tokens) == (0, 288))


async def test_the_cursor_is_on_the_same_token_in_every_picture() -> None:
    """After answers of different length a follow-up's tokens are at other positions in each engine."""
    first, second = Race(prompt_tokens=64, new_tokens=8), Race(request=1, prompt_tokens=16, new_tokens=4)
    batch: list[events.AnyEvent] = [started(), first.submitted(), *first.merged()]
    for engine, begin in (("vllm", 72), ("h2o", 80), ("infinigen", 72)):
        asked = msgspec.structs.replace(second.submitted(), engine=engine, first_position=begin, follow_up=True)
        cells = events.deflate(bytes([1 | 31 << 3]) * 6 * 100)
        batch.append(asked)
        batch.append(
            events.Cache(
                engine=engine, request=1, tokens=100, layers=6, states=cells, mass=cells, mass_bins=100, whole=True
            )
        )
    app, _ = make(batch)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: len([e for e in app.state.engines.values() if e.conversation == [0, 1]]) == 3)
        await pilot.press("c", "1")
        await until(pilot, lambda: isinstance(app.screen, CacheScreen) and bool(app.screen.query(CachePicture)))
        screen = app.screen
        assert isinstance(screen, CacheScreen)
        screen.action_place(75)
        await pilot.press("a")
        await until(pilot, lambda: [p._cursor for p in screen.query(CachePicture)] == [75, 83, 75])
        await pilot.press("2")
        await until(pilot, lambda: screen._view.cursor == 83)
        await shows(pilot, "position 83")
        await pilot.click(next(p for p in screen.query(CachePicture) if p.engine == "h2o"), offset=(gutter(120), 2))
        await pilot.press("a")
        await until(pilot, lambda: [p._cursor for p in screen.query(CachePicture)] == [0, 0, 0])


async def test_it_follows_the_tail() -> None:
    batch = whole_race(prompt_tokens=512, new_tokens=40)
    half = len(batch) // 2
    app, source = make(batch[:half])
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: any(engine.cache for engine in app.state.engines.values()))
        await pilot.press("c", "plus", "plus", "plus")
        await until(pilot, lambda: isinstance(app.screen, CacheScreen))
        screen = app.screen
        assert isinstance(screen, CacheScreen)
        await until(pilot, lambda: screen._tokens > 0)
        before = screen._tokens
        source.say(*batch[half:])
        await until(pilot, lambda: screen._tokens > before)
        start, span = window(screen._view, screen._tokens)
        assert span == 72
        assert 0 <= start + span - screen._tokens <= 2
        assert screen._view.cursor == screen._tokens - 1
        await pilot.press("shift+left")
        assert not screen._view.follow
        await pilot.press("f")
        assert window(screen._view, screen._tokens) == (start, span)


@pytest.mark.slow
async def test_before_there_is_anything_and_when_there_is_less() -> None:
    """Opened before the first event; then a race, an engine less, a shorter conversation, a model with fewer layers."""
    app, source = make()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c", "right", "plus", "m", "l", "f", "tab", "down", "end", "shift+right")
        source.say(*whole_race(prompt_tokens=512, new_tokens=40))
        await shows(pilot, "KV heads × positions of layer 1 of 30")
        await pilot.press(*["right_square_bracket"] * 29, "m")
        await shows(pilot, "layer 30")
        source.say(started(("vllm", "h2o")))
        await until(pilot, lambda: "3 InfiniGen" not in screen_text(app))
        source.say(Race(request=1, prompt_tokens=64).submitted())
        await shows(pilot, "no cache yet")
        cells = events.deflate(bytes([1 | 31 << 3]) * 120)
        small = events.Cache(request=1, tokens=20, layers=6, states=cells, mass=cells, mass_bins=20, whole=True)
        source.say(*(msgspec.structs.replace(small, engine=engine) for engine in ("vllm", "h2o")))
        await shows(pilot, "20 tokens")
        await shows(pilot, "layer 6 ·")


@pytest.mark.slow
async def test_no_size_breaks_it() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        for width, height in ((20, 5), (1, 1), (240, 70), (80, 24), (20, 60), (200, 8), SIZE):
            await pilot.resize_terminal(width, height)
            await pilot.press("m", "right", "down", "plus", "l")
            await pilot.pause(0.05)
            if (width, height) == (20, 5):
                assert all(name in screen_text(app) for name in ("Page", "H2O", "Infi"))
        await shows(pilot, "3 InfiniGen")


async def test_the_races_keys_work_here_too() -> None:
    app, source = race()
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot, "space", "z", "h", "i")
        assert source.sent == [commands.Pause()]
        assert isinstance(app.screen, CacheScreen)


@pytest.mark.parametrize(
    ("span", "columns", "step"), [(64, 120, 10), (1152, 110, 200), (100_000, 110, 20_000), (16, 15, 20)]
)
def test_labels_have_room(span: int, columns: int, step: int) -> None:
    assert step_of(span, columns) == step


async def test_the_ruler_says_where_the_cursor_is_even_at_its_ends() -> None:
    app, _ = race()
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(pilot, "home")
        assert "▲0" in screen_text(app)
        await pilot.press("end")
        await until(pilot, lambda: f"▲{screen._tokens - 1}" in screen_text(app) or "▲" in screen_text(app))
        assert screen.query_one(Ruler).size.height == 1
