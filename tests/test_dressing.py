"""The looks on the running app: switched at once, readable everywhere, and large for an audience."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rich.segment import Segment
from textual.pilot import Pilot

from engines import commands, events
from kvtui import palette, palettes
from kvtui.app import KvtuiApp
from kvtui.looks import Look
from kvtui.panes.caption import CaptionBar
from kvtui.panes.podium import LOW, TALL, big, cells
from tests.scripted_source import ScriptedSource
from tests.synthetic import TITLES, whole_race
from tests.test_app import screen_text, shows, until
from tests.test_palette import contrast

RACE = whole_race(prompt_tokens=512, new_tokens=16)
SLOW = pytest.mark.slow


def make(look: Look | None = None, *batches: list[events.AnyEvent]) -> KvtuiApp:
    config = commands.WorkerConfig(prompts=[commands.Prompt(title=title) for title in TITLES])
    return KvtuiApp(config, ScriptedSource(*(batches or (RACE,))), look=look)


@pytest.fixture(autouse=True)
def _the_palette_afterwards() -> Iterator[None]:
    before = palette.now
    yield
    palette.use(before)


def segments(app: KvtuiApp, within: str = "") -> list[Segment]:
    """Of the whole screen, or of one widget."""
    strips = app.screen._compositor.render_strips()
    if within:
        region = app.screen.query_one(within).region
        strips = [strip.crop(region.x, region.right) for strip in strips[region.y : region.bottom]]
    return [segment for strip in strips for segment in strip]


def colours(app: KvtuiApp) -> set[str]:
    styles = [segment.style for segment in segments(app) if segment.style is not None]
    found = [color for style in styles for color in (style.color, style.bgcolor) if color is not None]
    return {color.get_truecolor().hex for color in found}


def faint_text(app: KvtuiApp, within: str = "") -> dict[tuple[str, str], tuple[str, float]]:
    """Pairs of colours of letters and their ground that are too close to each other, with an example."""
    found = {}
    for segment in segments(app, within):
        style = segment.style
        if style is None or not any(c.isalnum() for c in segment.text):
            continue
        assert style.color is not None, segment
        assert style.bgcolor is not None, segment
        pair = style.color.get_truecolor().hex, style.bgcolor.get_truecolor().hex
        if (ratio := contrast(*pair)) < 4.5:
            found[pair] = segment.text, ratio
    return found


async def raced(pilot: Pilot[Any]) -> None:
    await shows(pilot, "✓ done")
    await shows(pilot, "fastest H2O")
    await pilot.pause(0.4)


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(Look(), marks=SLOW),
        pytest.param(Look(dark=False), marks=SLOW),
        pytest.param(Look(colors=16), marks=SLOW),
        pytest.param(Look(dark=False, colors=16), marks=SLOW),
    ],
    ids=lambda look: look.palette.name,
)
async def test_all_text_is_readable(look: Look) -> None:
    app = make(look)
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await raced(pilot)
        for keys in ((), ("right", "enter"), ("escape", "p"), ("p", "i")):
            await pilot.press(*keys)
            await pilot.pause(0.3)
            assert not faint_text(app), keys
        for key, dialog in (("question_mark", "VerticalScroll"), ("ctrl+p", "#--container")):
            await pilot.press("escape", key)
            await until(pilot, lambda: app.screen is not app.race)
            await pilot.pause(0.3)
            assert not faint_text(app, dialog), key
        await pilot.press("escape")
        for severity in ("information", "warning", "error"):
            app.notify("Something has happened.", severity=severity)  # type: ignore[arg-type]
        app.race.banner("✖ the worker ended")
        await shows(pilot, "Something has happened.")
        await pilot.resize_terminal(80, 24)
        await pilot.pause(0.4)
        assert not faint_text(app)


@pytest.mark.parametrize("dark", [True, False])
async def test_the_splash_is_readable_and_follows_the_theme(dark: bool) -> None:
    app = make(Look(dark=dark), [events.Loading(stage="importing torch", fraction=0.5)])
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "importing torch")
        assert not faint_text(app)
        await pilot.press("t")
        await until(pilot, lambda: palette.now.engines["h2o"] in colours(app))
        assert palette.now.dark is not dark
        assert not faint_text(app)


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_the_theme_changes_at_once_and_everywhere(size: tuple[int, int]) -> None:
    app = make()
    async with app.run_test(size=size) as pilot:
        await raced(pilot)
        before = colours(app)
        assert palette.DARK.background in before
        await pilot.press("t")
        await pilot.pause(0.4)
        assert app.theme == "kvtui-light"
        now = colours(app)
        assert palettes.LIGHT.background in now
        chosen = {palette.DARK.background, palette.DARK.panel, palette.DARK.dim, *palette.DARK.engines.values()}
        assert not now & chosen
        await pilot.press("t")
        await until(pilot, lambda: colours(app) == before)


async def test_sixteen_colours_are_all_there_is() -> None:
    app = make(Look(colors=16))
    async with app.run_test(size=(120, 36)) as pilot:
        for key in ("p", "p", "t"):
            await raced(pilot) if key == "p" and not app.race.has_class("-presenter") else None
            assert colours(app) <= set(palettes.STANDARD)
            await pilot.press(key)
            await pilot.pause(0.3)
        assert colours(app) <= set(palettes.STANDARD)


async def test_without_colours_states_are_still_told_apart() -> None:
    app = make(Look(colors=0))
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await raced(pilot)
        shown = segments(app)
        assert not [s for s in shown if s.style is not None and (s.style.color or s.style.bgcolor)]
        [differs] = [s for s in shown if "≠ differs" in s.text]
        assert differs.style is not None
        assert differs.style.reverse
        assert any(s.style is not None and s.style.underline for s in shown)
        await pilot.press("t")
        await shows(pilot, "no colours here")


async def test_ascii_is_all_there_is() -> None:
    app = make(Look(ascii=True))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "+ done" in screen_text(app))
        await until(pilot, lambda: "fastest H2O" in screen_text(app))
        for keys in ((), ("right", "enter"), ("escape", "p"), ("question_mark",)):
            await pilot.press(*keys)
            await pilot.pause(0.3)
            assert screen_text(app).isascii(), keys
            assert all(len(line) == 120 for line in screen_text(app).split("\n"))


async def test_presenter_mode_and_back() -> None:
    app = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await raced(pilot)
        assert not app.race.query_one(CaptionBar).display
        await pilot.press("p")
        await shows(pilot, "H2O answers otherwise from token 5 on")
        text = screen_text(app)
        assert "TTFT" not in text
        assert "prompt 1 of" not in text
        assert "› Question: what is the code word?" in text
        assert "tokens" in text
        assert "a second" in text
        assert "−70 %" in text
        request = app.state.engines["vllm"].current
        assert request is not None
        assert request.tokens_per_s is not None
        for line in big(f"{request.tokens_per_s:.0f}", TALL):
            assert line.strip() in text
        await pilot.press("p")
        await raced(pilot)
        assert "TTFT" in screen_text(app)
        assert "budget 0.3, recent 0.5" in screen_text(app)


@SLOW
async def test_presenting_from_the_start_at_any_size() -> None:
    app = make(Look(present=True))
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "H2O answers otherwise")
        for size in ((160, 48), (80, 24), (40, 12), (20, 5), (1, 1), (120, 36)):
            await pilot.resize_terminal(*size)
            await pilot.press("z", "h")
        await shows(pilot, "H2O answers otherwise")


async def test_a_caption_of_somebody_elses() -> None:
    app = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await raced(pilot)
        await app.caption("Three caches read the same [b]page[/b].\x07")
        await shows(pilot, "Three caches read the same [b]page[/b].␇")
        await app.caption(None)
        await until(pilot, lambda: "Three caches" not in screen_text(app))
        assert not app.race.captions.display


@pytest.mark.parametrize("number", ["0", "39", "1,204", "9.8", "87%", "–"])
def test_figures_have_the_width_that_they_say(number: str) -> None:
    for lines in (LOW, TALL):
        drawn = big(number, lines)
        assert len(drawn) == lines
        assert {len(line) for line in drawn} == {cells(number, lines)}


def test_small_figures_are_the_large_ones() -> None:
    assert big("1", LOW) == ["▄█ ", " █ ", "▀▀▀"]
    assert big("1", TALL) == ["  ██  ", "████  ", "  ██  ", "  ██  ", "██████"]
