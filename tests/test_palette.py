"""Colours that everybody in the room can tell apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
from rich.color import Color, ColorSystem
from rich.terminal_theme import TerminalTheme

from engines.events import ENGINE_LABELS
from kvtui import palette, palettes

# Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), severity 1.0, on linear RGB.
SIGHT = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


TERMINAL = TerminalTheme((0, 0, 0), (255, 255, 255), [palette.parts(color) for color in palettes.STANDARD])


@pytest.fixture
def use() -> Iterator[Callable[[palette.Palette], None]]:
    before = palette.now
    yield palette.use
    palette.use(before)


def linear(color: str) -> list[float]:
    parts = [part / 255 for part in palette.parts(color)]
    return [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]


def luminance(color: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(color), strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(rgb: list[float]) -> tuple[float, float, float]:
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    xyz = [sum(a * b for a, b in zip(row, rgb, strict=True)) for row in rows]
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


COLOURED = [look for look in palettes.ALL if look.colors]
TEXT = ("foreground", "dim", "good", "warning", "error", "host", "fetched", "anchor")


def text_colours(look: palette.Palette) -> dict[str, str]:
    engines = {engine: look.engine_color(engine) for engine in ENGINE_LABELS}
    return {name: getattr(look, name) for name in TEXT} | engines


def as_shown(color: str, colors: int) -> str:
    """What a terminal with so many colours makes of it."""
    if colors != 256:
        return color
    return Color.parse(color).downgrade(ColorSystem.EIGHT_BIT).get_truecolor().hex


@pytest.mark.parametrize("look", COLOURED, ids=lambda look: look.name)
@pytest.mark.parametrize("sight", SIGHT)
def test_engine_colours_differ_for_every_eye(look: palette.Palette, sight: str) -> None:
    seen = [
        lab([min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear(color), strict=True)))) for row in SIGHT[sight]])
        for color in look.engines.values()
    ]
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 25


@pytest.mark.parametrize("look", COLOURED, ids=lambda look: look.name)
def test_text_is_readable_on_both_grounds_and_as_a_ground(look: palette.Palette) -> None:
    # Contrast is symmetric: the same pairs are background-coloured text on a coloured ground.
    ratios = {
        (name, ground): contrast(color, ground)
        for name, color in text_colours(look).items()
        for ground in (look.background, look.panel)
    }
    assert not {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5}
    assert contrast(look.foreground, look.faint) >= 4.5  # selections and what lies under the pointer


@pytest.mark.parametrize("look", [palette.DARK, palettes.LIGHT], ids=lambda look: look.name)
def test_two_hundred_and_fifty_six_colours_are_as_readable(look: palette.Palette) -> None:
    ground = as_shown(look.background, 256)
    ratios = {name: contrast(as_shown(color, 256), ground) for name, color in text_colours(look).items()}
    assert not {name: ratio for name, ratio in ratios.items() if ratio < 4.5}


@pytest.mark.parametrize("look", [palettes.DARK_16, palettes.LIGHT_16, palettes.MONO], ids=lambda look: look.name)
def test_sixteen_colours_are_exactly_those(look: palette.Palette, use: Callable[[palette.Palette], None]) -> None:
    use(look)
    colours = [*text_colours(look).values(), look.background, look.panel, look.faint, look.evicted, *look.others]
    colours += [palette.blend(look.background, color, share / 10) for color in colours for share in range(11)]
    for color in colours:
        assert Color.parse(color).downgrade(ColorSystem.STANDARD).get_truecolor(TERMINAL).hex == color
    shown = [*text_colours(look).values(), look.evicted, look.faint]
    assert look.background not in shown
    assert all(palette.blend(look.background, color, 0.1) != look.background for color in shown)


def test_a_palette_in_use_is_what_is_drawn_with(use: Callable[[palette.Palette], None]) -> None:
    use(palettes.LIGHT)
    assert palette.engine_color("vllm") == palettes.LIGHT.engines["vllm"]
    assert palette.engine_color("another") in palettes.LIGHT.others
    assert palette.blend("#000000", "#ffffff", 0.4) == "#666666"
    use(palettes.DARK_16)
    assert palette.blend("#000000", "#ffffff", 0.4) == "#aaaaaa"
    assert palette.blend("#000000", "#ffffff", 0.5) == "#ffffff"


def test_every_state_has_a_glyph_of_its_own() -> None:
    glyphs = [*palette.GLYPHS.values(), *palette.THINNED]
    assert len(set(glyphs)) == len(glyphs)


def test_blend() -> None:
    assert palette.blend("#000000", "#ffffff", 0.5) == "#808080"
    assert palette.blend("#102030", "#ffffff", 0) == "#102030"
