"""The document view, driven by keys and mouse."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Input
from textual.widgets._toast import Toast

from engines import commands, events
from kvtui.app import KvtuiApp
from kvtui.document_screen import DocumentScreen
from kvtui.fading import RESCUED
from kvtui.file_picker import FilePicker
from kvtui.help_screen import DOCUMENT_KEYS
from kvtui.looks import Look
from kvtui.panes.document import DocumentPane
from kvtui.reading import Reading
from tests.scripted_source import ScriptedSource
from tests.synthetic import TITLES, Race, started
from tests.test_app import make, screen_text, shows, until

CHAPTER = "The keeper wrote a word on the back of the chart. The wind had come round at dusk, and the sea broke. "
TEXT = "<|im_start|>user\n" + "".join(f"Chapter {n}\n\n{CHAPTER * 4}\n\n" for n in range(1, 9)) + "What is the word?"
TOKENS = len(TEXT) // 4


def race(text: str = TEXT, **options: Any) -> Race:
    return Race(prompt_tokens=max(1, len(text) // 4), new_tokens=24, text=text, **options)


RACE = race()


@contextlib.asynccontextmanager
async def document(
    *keys: str, size: tuple[int, int] = (120, 36), race: Race | None = RACE, look: Look | None = None
) -> AsyncIterator[tuple[Pilot[Any], Reading, ScriptedSource]]:
    """The app with a finished race and its document open."""
    batch: list[events.AnyEvent] = [started()]
    if race is not None:
        batch += [race.submitted(), *race.merged()]
    source = ScriptedSource(batch)
    config = commands.WorkerConfig(prompts=[commands.Prompt(title=title) for title in TITLES])
    app = KvtuiApp(config, source, look=look)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: race is None or (not app.state.busy and app.state.prompt is not None))
        await pilot.press("d", *keys)
        await until(pilot, lambda: isinstance(app.screen, DocumentScreen))
        yield pilot, app.screen.query_one(DocumentPane).reading, source


def lines(pilot: Pilot[Any]) -> list[str]:
    return screen_text(pilot.app).splitlines()  # type: ignore[arg-type]


async def test_open_and_back() -> None:
    async with document() as (pilot, reading, _):
        await shows(pilot, "The keeper wrote a word on the back")
        await shows(pilot, "of all KV entries (layers × heads × ")
        assert reading.engine == "h2o"  # of the paged engine, which has the focus, all is there
        await pilot.press("escape")
        await shows(pilot, "TTFT")
        await pilot.press("d", "d")
        await shows(pilot, "TTFT")
        await pilot.press("right", "right", "d")
        await until(pilot, lambda: isinstance(pilot.app.screen, DocumentScreen))
        assert pilot.app.screen.query_one(DocumentPane).reading.engine == "infinigen"  # the column that has the focus


async def test_choosing_engines() -> None:
    async with document() as (pilot, reading, _):
        for key, engine in (
            ("2", "h2o"),
            ("a", ""),
            ("tab", "vllm"),
            ("tab", "h2o"),
            ("shift+tab", "vllm"),
            ("9", "vllm"),
        ):
            await pilot.press(key)
            assert reading.engine == engine, key
        for key, held in (("3", {"fetched now", "on host"}), ("2", {"on device", "evicted"}), ("1", {"on device"})):
            await pilot.press(key)
            await pilot.pause()
            assert left(lines(pilot)[1]) == held
        overlaid = ["of all entries   Paged ▀ 100 %   H2O ▀ 30 % · 70 %   InfiniGen ↑ 25 % ░ 75 %"]
        await pilot.press("a")
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: [lines(pilot)[1].strip()] == overlaid)


def left(header: str) -> set[str]:
    """The states that it tells of; their shares add up to all there is."""
    told = re.findall(r"(\d+) % ([a-z ]+?)(?: ·|  |$)", header)
    assert sum(int(figure) for figure, _ in told) == 100, header
    return {words.strip() for _, words in told}


async def test_all_engines_are_compared_without_colour() -> None:
    async with document("a") as (pilot, _, _):
        await shows(pilot, "InfiniGen ")
        found = lines(pilot)
        at = next(n for n, line in enumerate(found) if "The keeper wrote" in line)
        assert [line.split()[0] for line in found[at + 1 : at + 4]] == ["Paged", "H2O", "InfiniGen"]
        assert set(found[at + 1].split()[1]) == {"▀"}
        assert set("".join(found[at + 2].split()[1:-1])) & set("·⠂⠒⠖⠶")
        assert set("".join(found[at + 3].split()[1:-1])) & set("░↑")


async def test_evicted_words_become_dots() -> None:
    async with document("2", "n") as (pilot, reading, _):
        word = reading.script.text[slice(*reading.script.span(reading.cursor))]
        assert word.strip()
        await pilot.press("home", "m")
        await shows(pilot, "···")
        await pilot.press("m")
        await until(pilot, lambda: "···" not in screen_text(pilot.app))  # type: ignore[arg-type]


async def test_evicted_words_are_dots_from_the_beginning_without_colours() -> None:
    async with document("2", look=Look(colors=0)) as (pilot, _, _):
        await shows(pilot, "···")


async def test_jumps() -> None:
    async with document("2") as (pilot, reading, _):
        seen = []
        for _ in range(400):
            await pilot.press("n")
            seen.append(reading.cursor)
            if len(seen) > 1 and seen[-1] <= seen[-2]:
                break
        assert len(seen) > 3
        assert seen[-1] == seen[0]
        assert seen[:-1] == sorted(seen[:-1])
        await shows(pilot, "Around the end")
        await pilot.press("1", "N")
        await shows(pilot, "No token is fetched back or held by an anchor in Paged")
        await pilot.press("3", "N")
        assert reading.whole("infinigen").kinds[reading.cursor] == 4


async def test_what_is_said_again_replaces_what_was_said() -> None:
    async with document("1", "n", "n", "n") as (pilot, _, _):
        await shows(pilot, "No token is evicted everywhere in Paged")
        await pilot.pause(0.3)
        assert len(pilot.app.screen.query(Toast)) == 1
        await pilot.press("N", "n")
        await until(pilot, lambda: len(pilot.app.screen.query(Toast)) == 2)


async def test_rescued_words_of_all_engines_are_jumped_to_one_after_the_other() -> None:
    async with document("a") as (pilot, reading, _):
        begins = set()
        for engine in reading.engines:
            rescued = np.isin(reading.whole(engine).kinds, RESCUED)
            begins |= {int(place) for place in np.flatnonzero(rescued) if not place or not rescued[place - 1]}
        in_order = sorted(begins)
        assert len(in_order) > 3
        assert in_order[0] == reading.cursor == 0
        seen = []
        for _ in in_order:
            await pilot.press("N")
            seen.append(reading.cursor)
        assert seen == [*in_order[1:], 0]
        await shows(pilot, "Around the end: the first one that is fetched back")


async def test_a_file_that_is_opened_from_the_document_goes_to_the_input_line(tmp_path: Path) -> None:
    (tmp_path / "moby.txt").write_text("Call me Ishmael.")
    async with document("2") as (pilot, _, source):
        app = pilot.app
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, FilePicker))
        app.screen.query_one(Input).value = str(tmp_path / "moby.txt")
        await shows(pilot, "16 B  moby.txt")
        await pilot.press("enter")
        await shows(pilot, "▤ moby.txt · 16 B")
        await pilot.press(*"who?", "enter")
        asked = source.sent[-1]
        assert isinstance(asked, commands.Submit)
        assert (asked.prompts[0].document, asked.prompts[0].text) == ("Call me Ishmael.", "who?")


async def test_searching() -> None:
    async with document("2") as (pilot, reading, _):
        await pilot.press("slash", *"CHAPTER")
        await shows(pilot, "1 of 8")
        assert pilot.app.state.status != "paused"  # letters are text
        await pilot.press("down", "down")
        await shows(pilot, "3 of 8")
        await pilot.press("up", "up", "up")
        await shows(pilot, "around the end · 8 of 8")
        cursor = reading.cursor
        await pilot.press("backspace", *"?d")
        await shows(pilot, "nothing found")
        await pilot.press("escape")
        await shows(pilot, "thinned out")
        assert (reading.search, reading.cursor) == (None, cursor)
        await pilot.press("escape")
        await shows(pilot, "TTFT")


async def test_enter_keeps_the_match_that_is_shown() -> None:
    async with document("2") as (pilot, reading, source):
        await pilot.press("slash", *"chapter 3")
        await shows(pilot, "1 of 1")
        cursor = reading.cursor
        assert reading.script.text[reading.script.span(cursor)[0] :].lstrip("\n").startswith("Chapter 3")
        await pilot.press("enter")
        await shows(pilot, "1 of 1  f next  F before")
        assert reading.cursor == cursor
        await pilot.press("f", "F")
        assert reading.cursor == cursor
        assert "around" not in screen_text(pilot.app)  # type: ignore[arg-type]
        await pilot.press("n", "3", "space")  # of the document and the race again
        assert reading.cursor != cursor
        assert reading.engine == "infinigen"
        await until(pilot, lambda: source.sent[-1:] == [commands.Pause()])
        assert reading.search is not None
        await pilot.press("slash", *"chapter")
        await shows(pilot, "of 9")  # InfiniGen says the word, too
        await pilot.press("enter", "home", "f", "f")
        await shows(pilot, "2 of 9")  # the first ones after the cursor
        await pilot.press("escape")
        await shows(pilot, "thinned out")
        assert reading.search is None
        await pilot.press("escape")
        await shows(pilot, "TTFT")


async def test_matches_are_stepped_through_from_the_one_that_was_kept() -> None:
    async with document("2") as (pilot, reading, _):
        await pilot.press("f", *"chapter", "enter", "f", "f")  # without a search, the field comes first
        await shows(pilot, "3 of 8  f next  F before")
        await pilot.press("F", "F", "F")
        await shows(pilot, "around the end · 8 of 8")
        await pilot.press("slash")
        await pilot.press(*"none", "enter")
        await shows(pilot, "nothing found")
        await pilot.press("f", "slash", "backspace", "enter")  # nothing to search for
        await shows(pilot, "thinned out")
        assert reading.search is None


async def test_the_token_under_the_cursor_is_inspected_and_its_layer_asked_for() -> None:
    async with document("2", "right", "right") as (pilot, reading, source):
        await shows(pilot, f"position {reading.script.position_of(reading.cursor)} · all layers")
        await pilot.press("right_square_bracket")
        await shows(pilot, "layer 1 ·")
        assert source.sent[-1] == commands.Focus(layer=0)
        await pilot.press("left_square_bracket", "left_square_bracket")
        await shows(pilot, "layer 30 ·")
        await pilot.press("escape")
        await until(pilot, lambda: source.sent[-1] == commands.Focus())


async def test_the_mouse() -> None:
    async with document("2") as (pilot, reading, _):
        pane = pilot.app.screen.query_one(DocumentPane)
        await pilot.click(pane, offset=(9, 4))
        under = reading.script.text[slice(*reading.script.span(reading.cursor))]
        assert reading.line_of(reading.cursor) == 4 or under.endswith(" ")
        pane.on_mouse_scroll_down(_Wheel())  # type: ignore[arg-type]
        assert reading.top_line == 3
        await pilot.click(pane, offset=(pane.size.width - 1, pane.size.height - 1))
        assert reading.cursor > len(reading.script) * 0.9
        await pilot.click(pane, offset=(2, 0))
        await shows(pilot, f"position {reading.script.position_of(reading.cursor):,}")


class _Wheel:
    def stop(self) -> None:
        """As an event's."""


async def test_it_is_kept_up_to_date_and_the_race_too() -> None:
    app, source = make([started(), (one := race()).submitted()])
    events_ = list(one.merged())
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: bool(app.state.prompts))
        await pilot.press("d", "end")
        await shows(pilot, "what is left of the words is not known yet")
        await shows(pilot, "– not known yet")  # of the token under the cursor
        assert " 0 %" not in screen_text(app)
        source.say(*events_)
        await shows(pilot, "back of a chart before the storm")
        await shows(pilot, "100 % on device")
        text = "Something else entirely.\n\n" * 9
        source.say(race(text, request=1, total=2).submitted())
        await shows(pilot, "Something else entirely.")
        await pilot.press("escape")
        await shows(pilot, "prompt 2 of 2")


async def test_nothing_to_read() -> None:
    async with document("right", "n", "end", "a", "pagedown", "slash", race=None) as (pilot, _, _):
        await shows(pilot, "Nothing has been read yet.")
        await pilot.press("x", "enter", "escape")
        await shows(pilot, "Nothing has been read yet.")


async def test_text_is_shown_literally() -> None:
    nasty = "[bold]x[/] \x1b[31m\x1b]52;c;aGk=\x07 \x9b \u202eevil\u202c \u200b\u0301 漢字 " + "w" * 10_000 + " end"
    async with document("end", race=race(nasty)) as (pilot, _, _):
        await pilot.press("home")
        await shows(pilot, "[bold]x[/] ␛[31m␛]52;c;aGk=␇ ⟨9B⟩ ⟨202E⟩evil⟨202C⟩ ⟨200B⟩")
        text = screen_text(pilot.app)  # type: ignore[arg-type]
        assert not any(mark in text for mark in "\x1b\x07\x9b\u202e\u200b")


@pytest.mark.slow
async def test_no_size_breaks_it() -> None:
    async with document("2") as (pilot, reading, _):
        reading.go(300)
        for width, height in ((20, 5), (1, 1), (240, 70), (47, 13), (3, 60), (120, 36)):
            await pilot.resize_terminal(width, height)
            await pilot.press("pagedown", "tab")
        await shows(pilot, "positions ")


async def test_the_token_at_the_top_stays_there() -> None:
    async with document("2") as (pilot, reading, _):
        reading.go(400, centered=True)
        top = reading.top
        await pilot.resize_terminal(70, 24)
        await pilot.pause()
        assert reading.layout.span(reading.top_line)[0] <= top < reading.layout.span(reading.top_line)[1]
        await pilot.resize_terminal(120, 36)
        await pilot.pause()
        assert reading.top == top


def test_its_keys_are_in_the_command_palette_while_it_is_open() -> None:
    app, _ = make()
    assert "(d)" in " ".join(command.help for command in app.get_system_commands(app.race))
    screen = DocumentScreen(app.state, app.catalogue, app.source.send)
    told = " ".join(command.help for command in app.get_system_commands(screen))
    shown = [binding for binding in DocumentScreen.BINDINGS if isinstance(binding, Binding) and binding.show]
    for key in [*"nNfF/m[]a", "tab", "home", "end", "esc"]:
        assert f"({key})" in told, key
    assert {key for binding in shown for key in (binding.key_display or binding.key).split()} - set("←→↑↓") <= (
        {*"nN/m[]a", "tab", "esc"}
    )
    helped = {key for keys, _ in DOCUMENT_KEYS for key in keys.split()}
    assert {*"1a←nNfF/m[]d", "tab", "esc"} <= helped
