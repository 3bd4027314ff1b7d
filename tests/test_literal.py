"""Text is shown as it is: nothing in it can steer the terminal or hide."""

from __future__ import annotations

import re
import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from textual.widget import Widget
from textual.widgets._toast import Toast

from engines import commands, events
from kvtui.app import KvtuiApp
from kvtui.literal import BRIEF_CHARACTERS, brief, literal, one_line, question, spoken
from kvtui.panes.column import Column
from kvtui.panes.prompts import Prompts
from kvtui.panes.stream import Stream
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started
from tests.test_app import screen_text, shows, until


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("a\x9b31mb", "a⟨9B⟩31mb"),
        ("a\rb", "a␍b"),
        ("\ufeffa\u202eb\u200bc", "⟨FEFF⟩a⟨202E⟩b⟨200B⟩c"),
        ("a\tb\nc", "a    b\nc"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("é 漢 🙂", "é 漢 🙂"),
        ("\ud800", "�"),
    ],
)
def test_controls_become_visible(text: str, shown: str) -> None:
    assert literal(text) == shown


@given(st.text())
def test_no_control_is_ever_left(text: str) -> None:
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in literal(text))
    assert "\n" not in one_line(text)


def test_previews_leave_out_the_chat_template() -> None:
    text = "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
    assert spoken(text) == "What is it?"
    assert spoken("a <b> c | d") == "a <b> c | d"


def test_the_question_is_the_last_paragraph() -> None:
    assert question("<|im_start|>user\nA text.\n\nWhat is it?<|im_end|>\n<|im_start|>assistant\n") == "What is it?"
    assert question("What is it?") == "What is it?"


NASTY = {
    "markup": ("[bold red]x[/] [@click=app.quit]q[/] [link=https://example.org]l[/link]", "[@click=app.quit]q[/]"),
    "escape sequences": ("\x1b[2J\x1b[31mred\x9b1m\x08\x00", "␛[2J␛[31mred⟨9B⟩1m␈␀"),
    "OSC 52": ("\x1b]52;c;aGFjaw==\x07", "␛]52;c;aGFjaw==␇"),
    "OSC 8": ("\x1b]8;;https://example.org\x1b\\x\x1b]8;;\x1b\\", "␛]8;;https://example.org␛\\"),
    "bidirectional controls": ("a\u202eb\u2066c\u200f", "a⟨202E⟩b⟨2066⟩c⟨200F⟩"),
    "zero-width characters": ("a\u200bb\u00adc\ufeffd\u2060e\U000e0041", "a⟨200B⟩b⟨00AD⟩c⟨FEFF⟩d⟨2060⟩e⟨E0041⟩"),
    "joiners and selectors": ("❤\ufe0f👩\u200d🔬x", "❤👩🔬x"),
    "double-width characters": ("漢字かな🙂x", "漢字かな🙂x"),
    "words of 10,000 characters": ("W" * 10_000, "W" * 20),
    "wide words of 10,000 characters": ("漢" * 10_000, "漢" * 8),
    "invalid UTF-8": ("a\ud83d\udc8fb\udcffc", "a��b�c"),
}
FORBIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe0f\ufeff\ud800-\udfff\U000e0041]"
)


@pytest.mark.parametrize("kind", NASTY)
async def test_nothing_is_taken_for_more_than_text(kind: str) -> None:
    """In the stream pane, the prompt's preview, a notice, titles and a detail of an outcome."""
    nasty, shown = NASTY[kind]
    race = Race(prompt_tokens=64, title=nasty, text=f"{nasty} and more?")
    common = {"run": "synthetic", "clock_s": 1.0, "request": 0}
    batch = [
        events.Loading(stage=nasty),
        msgspec.structs.replace(started(), model="m", engines=[events.EngineInfo(id="vllm", label=nasty[:60])]),
        race.submitted(),
        events.Token(**common, engine="vllm", index=0, token_id=9, text=nasty, logprob=0.0),
        events.Notice(run="synthetic", level="warning", text=nasty[:400]),
        events.Outcome(**common, engine="vllm", outcome="error", detail=nasty),
    ]
    app = KvtuiApp(commands.WorkerConfig(engines=["vllm"]), ScriptedSource(batch))
    async with app.run_test(size=(160, 48), notifications=True) as pilot:
        await shows(pilot, shown)
        await until(pilot, lambda: len(app._notifications) > 0)
        await pilot.pause(0.2)
        lines = screen_text(app).split("\n")
        assert {cell_len(line) for line in lines} == {160}
        assert not FORBIDDEN.search("".join(lines))
        assert not any(s.style.meta.get("@click") == "app.quit" for s in _segments(app) if s.style)
        panes = {"stream": Stream, "prompts": Prompts}
        said = {name: _text_of(app, pane) for name, pane in panes.items()}
        assert all(shown[:8] in text for text in said.values()), said
        await until(pilot, lambda: shown[:8] in _text_of(app, Toast))
        await until(pilot, lambda: shown[:8] in _text_of(app, Column, lines=1))
        await pilot.press("p")  # what the audience reads
        await pilot.pause(0.2)
        assert not FORBIDDEN.search(screen_text(app).replace("\n", ""))


def _segments(app: KvtuiApp) -> list[Segment]:
    return [segment for strip in app.screen._compositor.render_strips() for segment in strip]


def _text_of(app: KvtuiApp, pane: type[Widget], lines: int = 99) -> str:
    """What of it is on the screen, at most its first `lines`."""
    strips = app.screen._compositor.render_strips()
    regions = [widget.region for widget in app.screen.query(pane)]
    return "".join(strip.crop(r.x, r.right).text for r in regions for strip in strips[r.y : min(r.y + lines, r.bottom)])


def test_what_quotes_a_whole_file_is_cut_in_its_middle() -> None:
    assert brief("a\n\x1bb") == "a ␛b"
    said = brief(f'x.toml: cannot wait for "{"y" * 100_000}"; known are a, b')
    assert len(said) <= BRIEF_CHARACTERS + 3
    assert said.startswith('x.toml: cannot wait for "yyy')
    assert said.endswith('yyy"; known are a, b')
