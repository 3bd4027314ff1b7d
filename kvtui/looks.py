"""How the app looks: dark or light, with how many colours, in which characters, and for an audience or not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter, Monochrome

from kvtui import ascii, palette, palettes

STANDS_OUT_FROM = 110  # brightness, 0..255, from which a ground is shown reversed
_LIGHT_GROUNDS = ("7", "15")  # of COLORFGBG: white, and bright white


@dataclass
class Look:
    """`dark` is what the person chose, or what the terminal says of itself."""

    dark: bool = True
    colors: int = palettes.FULL
    ascii: bool = False
    present: bool = False

    @property
    def palette(self) -> palette.Palette:
        return palettes.pick(dark=self.dark, colors=self.colors)

    def filters(self, filters: Sequence[LineFilter]) -> Sequence[LineFilter]:
        """Textual's own, without its shades of grey where there is to be no colour at all."""
        chosen = list(filters)
        if not self.colors:
            chosen = [*(f for f in chosen if not isinstance(f, Monochrome)), _COLORLESS]
        return [*chosen, _ASCII] if self.ascii else chosen


def detect(
    theme: str = "auto", ascii_only: bool | None = None, present: bool = False, environ: Mapping[str, str] = os.environ
) -> Look:
    """What fits this terminal, except where the person chose."""
    if ascii_only is None:
        browser = "web_driver" in environ.get("TEXTUAL_DRIVER", "")
        ascii_only = not browser and (ascii.by_locale(environ) or ascii.by_terminal(environ))
    dark = theme == "dark" or (theme == "auto" and environ.get("COLORFGBG", "").split(";")[-1] not in _LIGHT_GROUNDS)
    return Look(dark, terminal_colors(environ), ascii_only, present)


def terminal_colors(environ: Mapping[str, str] = os.environ) -> int:
    """0, 16, 256 or all. NO_COLOR counts however it is set (https://no-color.org says: when not empty), as Textual
    has it."""
    if environ.get("NO_COLOR") is not None:
        return palettes.MONO_COLORS
    term = environ.get("TERM", "").lower()
    forced = environ.get("TEXTUAL_COLOR_SYSTEM", "auto")
    named = {"truecolor": palettes.FULL, "256": 256, "standard": palettes.SIXTEEN, "": palettes.MONO_COLORS}
    if forced in named:
        return named[forced]
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return palettes.FULL
    if term.endswith(("-256color", "-kitty")):
        return 256
    known = _terminfo_colors(term)
    return palettes.MONO_COLORS if known is not None and known < 8 else palettes.SIXTEEN


def _terminfo_colors(term: str) -> int | None:
    """What the terminal's description says, if there is one."""
    try:
        import curses

        curses.setupterm(term, fd=2)  # the file is not used for this
        return curses.tigetnum("colors")
    except Exception:  # no such description, or no such module: nobody knows
        return None


class Colorless(LineFilter):
    """No colours at all: the terminal's own. What stood out by its ground is reversed."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style and _colorless(style), control) for text, style, control in segments]


@lru_cache(maxsize=8192)
def _colorless(style: Style) -> Style:
    ground = style.bgcolor.triplet if style.bgcolor is not None else None
    stands_out = ground is not None and max(ground) >= STANDS_OUT_FROM  # `palettes.MONO` is on black
    return Style(
        bold=style.bold,
        italic=style.italic,
        underline=style.underline,
        strike=style.strike,
        reverse=bool(style.reverse) != stands_out or None,
        meta=style.meta,
        link=style.link,
    )


class AsciiOnly(LineFilter):
    """The last thing that happens to a line before the terminal gets it."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(ascii.to_ascii(segment.text), segment.style, segment.control)
            for segment in segments
        ]


_COLORLESS, _ASCII = Colorless(), AsciiOnly()
