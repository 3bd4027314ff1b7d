"""Colours that everybody in the room can tell apart."""

from __future__ import annotations

import itertools
import math

import pytest

from kvtui import palette

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


@pytest.mark.parametrize("sight", SIGHT)
def test_engine_colours_differ_for_every_eye(sight: str) -> None:
    seen = [
        lab([min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear(color), strict=True)))) for row in SIGHT[sight]])
        for color in palette.now.engines.values()
    ]
    assert min(math.dist(a, b) for a, b in itertools.combinations(seen, 2)) > 25


@pytest.mark.parametrize(
    "color",
    [
        *palette.now.engines.values(),
        palette.now.foreground,
        palette.now.dim,
        palette.now.error,
        palette.now.good,
    ],
)
def test_text_is_readable_on_the_background_and_as_background(color: str) -> None:
    assert contrast(color, palette.now.background) >= 4.5


def test_every_state_has_a_glyph_of_its_own() -> None:
    glyphs = [*palette.GLYPHS.values(), *palette.THINNED]
    assert len(set(glyphs)) == len(glyphs)


def test_blend() -> None:
    assert palette.blend("#000000", "#ffffff", 0.5) == "#808080"
    assert palette.blend("#102030", "#ffffff", 0) == "#102030"
