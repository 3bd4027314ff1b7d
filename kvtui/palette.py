"""Colours: one an engine, from Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind people
can tell apart. State is never told by colour alone; `GLYPHS` gives each its sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rich.style import Style
from textual.theme import Theme

from engines.events import KvState

_OTHERS = ("#cc79a7", "#009e73", "#ffffff")


@dataclass(frozen=True)
class Palette:
    """The colours of one look, as "#rrggbb". `engines` by id; the states' colours are those of `GLYPHS`."""

    name: str
    dark: bool
    background: str
    panel: str
    foreground: str
    dim: str
    faint: str
    good: str
    warning: str
    error: str
    host: str
    fetched: str
    evicted: str
    anchor: str
    engines: Mapping[str, str]

    def theme(self) -> Theme:
        """The same colours for Textual's style sheets."""
        return Theme(
            name=self.name,
            primary=self.engines["vllm"],
            secondary=self.engines["h2o"],
            accent=self.engines["infinigen"],
            foreground=self.foreground,
            background=self.background,
            surface=self.background,
            panel=self.panel,
            success=self.good,
            warning=self.warning,
            error=self.error,
            dark=self.dark,
            variables={
                "footer-key-foreground": self.foreground,
                "footer-description-foreground": self.dim,
                "footer-background": self.panel,
                **{f"engine-{engine}": color for engine, color in self.engines.items()},
            },
        )


DARK = Palette(
    name="kvtui-dark",
    dark=True,
    background="#0d1117",
    panel="#161b22",
    foreground="#e6edf3",
    dim="#8b949e",
    faint="#30363d",
    good="#3fb950",
    warning="#d29922",
    error="#ff7b72",
    host="#7d8590",
    fetched="#ffffff",
    evicted="#484f58",
    anchor="#cc79a7",
    engines={"vllm": "#56b4e9", "h2o": "#e66a1f", "infinigen": "#f0e442"},
)

now = DARK  # what every widget draws with; `use` changes it


def use(palette: Palette) -> None:
    """From the next drawing on; whoever calls this makes the widgets draw anew."""
    global now
    now = palette


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


def engine_color(engine: str) -> str:
    return now.engines.get(engine) or _OTHERS[sum(map(ord, engine)) % len(_OTHERS)]


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
