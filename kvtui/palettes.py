"""The looks: a dark and a light one, each for terminals with many colours and for those with sixteen; and none at all.

The sixteen are VGA's, as Rich knows them, so that its conversion changes nothing and no two of them become one.
"""

from __future__ import annotations

from kvtui.palette import DARK, Palette

FULL, SIXTEEN, MONO_COLORS = 1 << 24, 16, 0

LIGHT = Palette(
    name="kvtui-light",
    dark=False,
    background="#ffffff",
    panel="#f3f4f6",
    foreground="#1f2328",
    dim="#57606a",
    faint="#d0d7de",
    good="#1a7037",
    warning="#7d4e00",
    error="#c0172b",
    host="#59636e",
    fetched="#000000",
    evicted="#a8b1bb",
    anchor="#8f3f71",
    engines={
        "vllm": "#0062c8",
        "h2o": "#bf3f00",
        "infinigen": "#1c4532",
        "hybrid": "#7f00ff",
        "vllm-server": "#5a1f66",
    },
    others=("#8f3f71", "#006b4f", "#1f2328"),
)

_BLACK, _RED, _GREEN, _BROWN, _BLUE, _MAGENTA, _CYAN, _WHITE = (
    *("#000000", "#aa0000", "#00aa00", "#aa5500", "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa"),
)
_GREY, _BRIGHT_RED, _BRIGHT_GREEN, _YELLOW, _BRIGHT_BLUE, _BRIGHT_MAGENTA, _BRIGHT_CYAN, _BRIGHT_WHITE = (
    *("#555555", "#ff5555", "#55ff55", "#ffff55", "#5555ff", "#ff55ff", "#55ffff", "#ffffff"),
)
STANDARD = (
    *(_BLACK, _RED, _GREEN, _BROWN, _BLUE, _MAGENTA, _CYAN, _WHITE),
    *(_GREY, _BRIGHT_RED, _BRIGHT_GREEN, _YELLOW, _BRIGHT_BLUE, _BRIGHT_MAGENTA, _BRIGHT_CYAN, _BRIGHT_WHITE),
)
_PARTNERS = {color: STANDARD[index ^ 8] for index, color in enumerate(STANDARD)}  # bright of plain, plain of bright

DARK_16 = Palette(
    name="kvtui-dark-16",
    dark=True,
    background=_BLACK,
    panel=_BLACK,
    foreground=_BRIGHT_WHITE,
    dim=_WHITE,
    faint=_GREY,
    good=_BRIGHT_GREEN,
    warning=_YELLOW,
    error=_BRIGHT_RED,
    host=_WHITE,
    fetched=_BRIGHT_WHITE,
    evicted=_GREY,
    anchor=_BRIGHT_GREEN,
    engines={
        "vllm": _BRIGHT_CYAN,
        "h2o": _BRIGHT_MAGENTA,
        "infinigen": _YELLOW,
        "hybrid": _GREEN,
        "vllm-server": _WHITE,
    },
    others=(_BRIGHT_GREEN, _BRIGHT_RED, _BRIGHT_WHITE),
    colors=SIXTEEN,
    muted=_PARTNERS | {_GREY: _GREY},
)

LIGHT_16 = Palette(
    name="kvtui-light-16",
    dark=False,
    background=_BRIGHT_WHITE,
    panel=_BRIGHT_WHITE,
    foreground=_BLACK,
    dim=_GREY,
    faint=_WHITE,
    good=_BLUE,
    warning=_RED,
    error=_MAGENTA,
    host=_GREY,
    fetched=_BLACK,
    evicted=_WHITE,
    anchor=_MAGENTA,
    engines={"vllm": _BLUE, "h2o": _RED, "infinigen": _GREY, "hybrid": _BRIGHT_BLUE, "vllm-server": _BLACK},
    others=(_MAGENTA, _BLACK, _BRIGHT_BLUE),
    colors=SIXTEEN,
    muted=_PARTNERS | {_WHITE: _WHITE},
)

# The colours are taken out of every line (see `looks.Colorless`); what differs from the ground is shown reversed.
MONO = Palette(
    name="kvtui-mono",
    dark=True,
    background=_BLACK,
    panel=_BLACK,
    foreground=_BRIGHT_WHITE,
    dim=_BRIGHT_WHITE,
    faint=_GREY,
    good=_BRIGHT_WHITE,
    warning=_BRIGHT_WHITE,
    error=_BRIGHT_WHITE,
    host=_BRIGHT_WHITE,
    fetched=_BRIGHT_WHITE,
    evicted=_BRIGHT_WHITE,
    anchor=_BRIGHT_WHITE,
    engines=dict.fromkeys(DARK.engines, _BRIGHT_WHITE),
    others=(_BRIGHT_WHITE,),
    colors=MONO_COLORS,
)

ALL = (DARK, LIGHT, DARK_16, LIGHT_16, MONO)


def pick(*, dark: bool, colors: int) -> Palette:
    """The palette for a terminal with so many colours."""
    if colors < SIXTEEN:
        return MONO
    if colors < 256:
        return DARK_16 if dark else LIGHT_16
    return DARK if dark else LIGHT
