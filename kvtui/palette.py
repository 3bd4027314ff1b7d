"""Colours: one an engine, from Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind people
can tell apart. State is never told by colour alone; `GLYPHS` gives each its sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from rich.style import Style
from textual.theme import Theme

from engines.events import ENGINE_LABELS, KvState


@dataclass(frozen=True)
class Palette:
    """The colours of one look, as "#rrggbb". `engines` by id, `others` for engines that are not among them; the
    states' colours are those of `GLYPHS`. `colors` is how many the terminal has; with few of them there are no shades,
    and `muted` gives the fainter partner of a colour."""

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
    others: tuple[str, ...]
    colors: int = 1 << 24
    muted: Mapping[str, str] = field(default_factory=dict)

    @property
    def flat(self) -> bool:
        """Whether there are no shades between two colours."""
        return self.colors <= 16

    def engine_color(self, engine: str) -> str:
        if engine in self.engines:
            return self.engines[engine]
        baseline = engine.removesuffix("+")
        if baseline in self.engines:
            shade = self.engines[baseline]
            return shade if self.flat else _mixed(shade, self.foreground, 0.45)
        return self.others[sum(map(ord, engine)) % len(self.others)]

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
                "dim": self.dim,
                "faint": self.faint,
                # Textual derives these by blending, which leaves some too faint to read and none of sixteen colours.
                "text": self.foreground,
                "text-muted": self.dim,
                "text-disabled": self.dim,
                "text-success": self.good,
                "text-warning": self.warning,
                "text-error": self.error,
                "panel-lighten-1": self.panel,
                "border-blurred": self.faint,
                "block-cursor-foreground": self.background,
                "block-cursor-background": self.foreground,
                "block-cursor-blurred-background": self.faint,
                "block-hover-background": self.faint,
                "input-selection-background": self.faint,
                "screen-selection-background": self.faint,
                "scrollbar": self.dim,
                "scrollbar-hover": self.foreground,
                "scrollbar-active": self.foreground,
                "scrollbar-background": self.panel,
                "scrollbar-background-hover": self.panel,
                "scrollbar-background-active": self.panel,
                "footer-key-foreground": self.foreground,
                "footer-description-foreground": self.dim,
                "footer-background": self.panel,
                **{f"engine-{css_name(engine)}": self.engine_color(engine) for engine in ENGINE_LABELS},
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
    engines={
        "vllm": "#56b4e9",
        "h2o": "#e66a1f",
        "infinigen": "#f0e442",
        "hybrid": "#a366ff",
        "vllm-server": "#ccffcc",
    },
    others=("#cc79a7", "#009e73", "#ffffff"),
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
    """An improved engine ("h2o+") has its baseline's hue, nearer to the text's colour."""
    return now.engine_color(engine)


def css_name(engine: str) -> str:
    """An engine's id as part of a name in a style sheet."""
    return engine.replace("+", "-plus")


@lru_cache(maxsize=8192)
def style(
    color: str | None = None,
    background: str | None = None,
    *,
    bold: bool = False,
    underline: bool = False,
    reverse: bool = False,
    italic: bool = False,
    strike: bool = False,
) -> Style:
    """A style, made once: Rich caches a style's escape codes in the style itself."""
    return Style(
        color=color,
        bgcolor=background,
        bold=bold or None,
        underline=underline or None,
        reverse=reverse or None,
        italic=italic or None,
        strike=strike or None,
    )


def blend(below: str, above: str, share: float) -> str:
    """`share` (0..1) of `above` over `below`, as "#rrggbb". Where there are no shades: `above`, or its fainter partner
    for less than half."""
    if now.flat:
        return below if share <= 0 else above if share >= 0.5 else now.muted.get(above, above)
    return _mixed(below, above, share)


@lru_cache(maxsize=8192)
def _mixed(below: str, above: str, share: float) -> str:
    pairs = zip(parts(below), parts(above), strict=True)
    return "#" + "".join(f"{round(under + (over - under) * share):02x}" for under, over in pairs)


def parts(color: str) -> tuple[int, int, int]:
    """Red, green and blue, 0..255, of "#rrggbb"."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)
