"""Which look a terminal gets, and what is left of it without colours."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import click
import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import Monochrome

from kvtui import cli, looks, palette, palettes
from kvtui.looks import Look
from kvtui.options import look_options, looks_wanted

BLACK = Color.parse("#000000")


@pytest.mark.parametrize(
    ("environ", "colors"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, palettes.FULL),
        ({"TERM": "xterm-256color"}, 256),
        ({"TERM": "xterm-kitty"}, 256),
        ({"TERM": "xterm"}, 16),
        ({"TERM": "linux"}, 16),
        ({"TERM": "vt100"}, 0),
        ({"TERM": "never-heard-of-it"}, 16),
        ({}, 16),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, 0),
        ({"TERM": "xterm", "TEXTUAL_COLOR_SYSTEM": "truecolor"}, palettes.FULL),
    ],
)
def test_colours_of_terminals(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], colors: int) -> None:
    described = {"xterm": 8, "linux": 8, "vt100": -1}
    monkeypatch.setattr(looks, "_terminfo_colors", described.get)
    assert looks.terminal_colors(environ) == colors


@pytest.mark.parametrize(("term", "colors"), [("vt100", 0), ("xterm", 16), ("never-heard-of-it", 16)])
def test_descriptions_of_terminals(term: str, colors: int) -> None:
    """Curses reads one description a process."""
    code = "from kvtui import looks; print(looks.terminal_colors({'TERM': '" + term + "'}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(out.stdout) == colors


@pytest.mark.parametrize(
    ("theme", "ground", "dark"),
    [
        ("auto", "", True),
        ("auto", "15;0", True),
        ("auto", "0;15", False),
        ("auto", "0;default;7", False),
        ("dark", "0;15", True),
        ("light", "15;0", False),
    ],
)
def test_dark_or_light(theme: str, ground: str, dark: bool) -> None:
    assert looks.detect(theme, environ={"TERM": "xterm", "COLORFGBG": ground}).dark is dark


def test_characters() -> None:
    assert looks.detect(environ={"TERM": "linux"}).ascii
    assert looks.detect(environ={"TERM": "xterm", "LC_ALL": "C"}).ascii
    assert not looks.detect(environ={"TERM": "xterm", "LANG": "C.UTF-8"}).ascii
    assert not looks.detect(ascii_only=False, environ={"TERM": "linux"}).ascii
    assert looks.detect(ascii_only=True, environ={"TERM": "xterm", "LANG": "C.UTF-8"}).ascii
    assert not looks.detect(environ={"TERM": "linux", "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver"}).ascii


@pytest.mark.parametrize(
    ("look", "name"),
    [
        (Look(), "kvtui-dark"),
        (Look(dark=False), "kvtui-light"),
        (Look(colors=256), "kvtui-dark"),
        (Look(colors=16), "kvtui-dark-16"),
        (Look(dark=False, colors=16), "kvtui-light-16"),
        (Look(dark=False, colors=0), "kvtui-mono"),
    ],
)
def test_palettes(look: Look, name: str) -> None:
    assert look.palette.name == name


def filtered(look: Look, *segments: Segment) -> list[Segment]:
    line = list(segments)
    for line_filter in look.filters([Monochrome()]):
        line = line_filter.apply(line, BLACK)
    return line


def test_without_colours_what_stands_out_is_reversed() -> None:
    plain = Style(color="#ffffff", bgcolor="#000000", bold=True)
    inverse = Style(color="#000000", bgcolor="#ffffff", meta={"@click": "app.quit"})
    cursor = Style(color="#ffffff", bgcolor="#000000", reverse=True)
    differs = Style(color="#ff0000", underline=True)
    shown = filtered(Look(colors=0), *(Segment("x", style) for style in (plain, inverse, cursor, differs, None)))
    styles = [segment.style or Style.null() for segment in shown]
    assert [style.color or style.bgcolor for style in styles] == [None] * 5
    assert [bool(style.reverse) for style in styles] == [False, True, True, False, False]
    assert styles[0].bold
    assert styles[1].meta == {"@click": "app.quit"}
    assert styles[3].underline


def test_ascii_only_changes_characters_and_nothing_else() -> None:
    style = Style(color="#ff0000", meta={"@click": "app.quit"})
    [segment] = filtered(Look(ascii=True), Segment("● ok", style))
    assert segment.text == "* ok"
    assert segment.style is not None
    assert segment.style.meta == style.meta


def test_every_colour_is_there_in_every_look() -> None:
    names: set[Any] = {frozenset(look.engines) for look in palettes.ALL}
    assert len(names) == 1
    assert len({look.name for look in palettes.ALL}) == len(palettes.ALL)
    assert palettes.pick(dark=True, colors=palettes.FULL) is palette.DARK


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], {}),
        (["--theme", "light", "--no-ascii"], {"theme": "light", "ascii_only": False}),
        (["--ascii", "--present"], {"ascii_only": True, "present": True}),
    ],
)
def test_options_of_a_look(arguments: list[str], wanted: dict[str, Any]) -> None:
    found: list[dict[str, Any]] = []
    command = click.command()(look_options(lambda: found.append(looks_wanted())))
    command.main(arguments, standalone_mode=False)
    assert found == [wanted]
    looks.detect(**found[0], environ={"TERM": "xterm"})


@pytest.mark.parametrize(("term", "screen"), [("dumb", False), ("unknown", False), ("xterm", True), ("", True)])
def test_a_terminal_that_cannot_place_text_is_no_screen(
    monkeypatch: pytest.MonkeyPatch, term: str, screen: bool
) -> None:
    monkeypatch.setattr(cli, "is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", term)
    assert cli._has_screen() is screen
