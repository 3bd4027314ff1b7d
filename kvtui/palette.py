"""Colours: one an engine, from Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind people
can tell apart. State is never told by colour alone; `STATES` gives each its glyph."""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style
from textual.theme import Theme

from engines.events import KvState

BACKGROUND = "#0d1117"
FOREGROUND = "#e6edf3"
DIM = "#8b949e"
FAINT = "#30363d"
GOOD = "#3fb950"
WARNING = "#d29922"
ERROR = "#ff7b72"

ENGINES = {"vllm": "#56b4e9", "h2o": "#e66a1f", "infinigen": "#f0e442"}
_OTHERS = ("#cc79a7", "#009e73", "#ffffff")

HOST = "#7d8590"
FETCHED = "#ffffff"
EVICTED = "#484f58"
ANCHOR = "#cc79a7"

GLYPHS = {
    KvState.ABSENT: " ",
    KvState.DEVICE: "▀",
    KvState.HOST: "░",
    KvState.DISK: "≡",
    KvState.FETCHED: "↑",
    KvState.EVICTED: "·",
    KvState.ANCHOR: "◆",
}
THINNED = "⠂⠒⠖⠶"  # a bin of positions of which few, some, many, nearly half are on the device

THEME = Theme(
    name="kvtui",
    primary=ENGINES["vllm"],
    secondary=ENGINES["h2o"],
    accent=ENGINES["infinigen"],
    foreground=FOREGROUND,
    background=BACKGROUND,
    surface=BACKGROUND,
    panel="#161b22",
    success=GOOD,
    warning=WARNING,
    error=ERROR,
    dark=True,
    variables={
        "footer-key-foreground": FOREGROUND,
        "footer-description-foreground": DIM,
        "footer-background": "#161b22",
        **{f"engine-{engine}": color for engine, color in ENGINES.items()},
    },
)


def engine_color(engine: str) -> str:
    return ENGINES.get(engine) or _OTHERS[sum(map(ord, engine)) % len(_OTHERS)]


@lru_cache(maxsize=8192)
def style(
    color: str | None = None,
    background: str | None = None,
    *,
    bold: bool = False,
    underline: bool = False,
    reverse: bool = False,
    italic: bool = False,
) -> Style:
    """A style, made once: Rich caches a style's escape codes in the style itself."""
    return Style(
        color=color,
        bgcolor=background,
        bold=bold or None,
        underline=underline or None,
        reverse=reverse or None,
        italic=italic or None,
    )


@lru_cache(maxsize=8192)
def blend(below: str, above: str, share: float) -> str:
    """`share` (0..1) of `above` over `below`, as "#rrggbb"."""
    pairs = zip(parts(below), parts(above), strict=True)
    return "#" + "".join(f"{round(under + (over - under) * share):02x}" for under, over in pairs)


def parts(color: str) -> tuple[int, int, int]:
    """Red, green and blue, 0..255, of "#rrggbb"."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
