"""Documents: read from files, dropped on the terminal, too long, refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual import events as textual_events
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from engines import commands, events
from engines.errors import BadRequest
from kvtui import documents, file_picker, prompts
from kvtui.app import KvtuiApp
from kvtui.documents import Document, dropped_paths, may_be_dropped, read_documents
from kvtui.file_picker import FilePicker
from kvtui.too_long_screen import TooLongScreen
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started
from tests.test_app import screen_text, shows, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "moby dick.txt").write_text("Call me Ishmael.\n")
    (tmp_path / "it's.txt").write_text("100 % naïve\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("one")
    return tmp_path


def test_dropped_files_are_recognised(folder: Path) -> None:
    moby, its = folder / "moby dick.txt", folder / "it's.txt"
    escaped = str(moby).replace(" ", "\\ ")
    address = f"file://{str(moby).replace(' ', '%20')}"
    for text in (f"{moby}", f"'{moby}' ", f'"{moby}"', escaped, f"{escaped} ", address, f"{address}\n", f"'{address}'"):
        assert may_be_dropped(text)
        assert dropped_paths(text) == [moby], text
    for text in (f"'{moby}' \"{its}\"", f"{moby}\n{its}\n", f"{escaped} {str(its)!r}", f"{address} file://{its}"):
        assert dropped_paths(text) == [moby, its], text
    assert dropped_paths(str(its)) == [its]


def test_anything_else_is_text(folder: Path) -> None:
    for text in (
        "moby dick.txt", f"{folder}", f"{folder}/none.txt", f"read {folder}/it's.txt",
        f"'{folder}/moby dick.txt' please", "/" * 5000, "/\0", "file://", "'/", "",
    ):  # fmt: skip
        assert dropped_paths(text) == [], text
    assert not may_be_dropped("why is that?")
    assert not may_be_dropped("/" * 100_000)


def test_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_documents([folder / "moby dick.txt"]) == Document("moby dick.txt", "Call me Ishmael.")
    both = read_documents([folder / "moby dick.txt", folder / "notes" / "a.md"])
    assert both == Document("moby dick.txt + a.md", "moby dick.txt\n\nCall me Ishmael.\n\na.md\n\none")
    (folder / "bin").write_bytes(b"\x7fELF\0")
    (folder / "latin").write_bytes(b"caf\xe9")
    monkeypatch.setattr(prompts, "LARGEST_BYTES", 1000)
    (folder / "large").write_text("x" * 1001)
    for name, said in {
        "bin": "binary", "latin": "not UTF-8", "none": "cannot read", "notes": "not a file",
        "large": "1.00 kB: more than",
    }.items():  # fmt: skip
        with pytest.raises(BadRequest, match=said) as caught:
            read_documents([folder / name])
        assert "\n" not in str(caught.value)


def test_the_label_says_name_size_and_an_estimate() -> None:
    assert Document("moby.txt", "x" * 1_000_000).label(None) == "moby.txt · 1.00 MB · ~250k tokens"
    assert Document("a.txt", "灯" * 400).label(8192) == "a.txt · 1.20 kB · ~100 tokens"
    assert Document("a.txt", "x" * 36_000).label(8192) == "a.txt · 36.0 kB · ~9,000 tokens"
    assert Document("a.txt", "x" * 80_000).label(8192) == "a.txt · 80.0 kB · ~20k tokens > context 8,192"
    assert len(Document("n" * 300 + "\x1b[2J", "x").label(None).split(" ")[0]) == documents.NAME_CHARACTERS


def make(*batches: list[events.AnyEvent], **config: Any) -> tuple[KvtuiApp, ScriptedSource]:
    source = ScriptedSource([started()], *batches)
    return KvtuiApp(commands.WorkerConfig(**config), source), source


def sent_prompt(source: ScriptedSource, index: int = -1) -> commands.Prompt:
    command = source.sent[index]
    assert isinstance(command, commands.Submit)
    return command.prompts[0]


async def ask(pilot: Pilot[Any], document: str, question: str) -> None:
    await shows(pilot, "paste a document, or ask")
    await pilot.press("i")
    pilot.app.post_message(textual_events.Paste(document))
    await shows(pilot, "▤ ")
    await pilot.press(*question, "enter")


def too_long(prompt: commands.Prompt) -> events.TooLong:
    return events.TooLong(run="synthetic", ticket=prompt.ticket, title="t", tokens=251_203, room_tokens=8_064)


async def test_a_dropped_file_is_the_document(folder: Path) -> None:
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await ask(pilot, f"'{folder}/moby dick.txt' ", "who?")
        prompt = sent_prompt(source)
        assert (prompt.document, prompt.text, prompt.title) == ("Call me Ishmael.", "who?", "who?")
        app.post_message(textual_events.Paste(f"{folder}/none"))
        await until(pilot, lambda: app.race.composer.input.value == f"{folder}/none")


async def test_a_dropped_file_that_cannot_be_read_stays_text(folder: Path) -> None:
    (folder / "bin").write_bytes(b"\x7fELF\0")
    app, _ = make()
    async with app.run_test(size=(120, 36), notifications=True) as pilot:
        await shows(pilot, "paste a document, or ask")
        app.post_message(textual_events.Paste(f"{folder}/bin"))
        await until(pilot, lambda: app.race.composer.input.value == f"{folder}/bin")
        await until(pilot, lambda: any("is a binary file" in note.message for note in app._notifications))


@pytest.mark.parametrize(("key", "place"), [("s", "start"), ("m", "middle"), ("e", "end")])
async def test_what_is_too_long_is_cut_where_a_person_says(key: str, place: str) -> None:
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await ask(pilot, "word\n" * 50_000, "who?")
        prompt = sent_prompt(source)
        source.say(too_long(prompt))
        await shows(pilot, "pasted text has 251,203 tokens, the context has room for 8,064.")
        await pilot.press(key)
        assert sent_prompt(source) == replace(prompt, cut=place)
        assert app.screen is app.race


async def test_one_question_at_a_time_where_to_cut() -> None:
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        prompts = []
        for question in ("one", "two", "three"):
            await ask(pilot, "word\n" * 9_000, question)
            prompts.append(sent_prompt(source))
            await pilot.press("escape")
        one, two, three = prompts
        source.say(too_long(one), too_long(two), too_long(one), too_long(three))
        await until(pilot, lambda: isinstance(app.screen, TooLongScreen))
        await pilot.pause(0.3)
        assert len(app.screen_stack) == 2
        source.say(replace(Race(prompt_tokens=64).submitted(), ticket=two.ticket))  # it was taken in meanwhile
        await until(pilot, lambda: bool(app.state.prompts))
        first = app.screen
        await pilot.press("s")
        assert sent_prompt(source) == replace(one, cut="start")
        await until(pilot, lambda: isinstance(app.screen, TooLongScreen) and app.screen is not first)
        source.say(too_long(one))  # also what is left is too long
        await pilot.pause(0.3)
        assert len(app.screen_stack) == 2
        await pilot.press("e")
        assert sent_prompt(source) == replace(three, cut="end")
        await until(pilot, lambda: isinstance(app.screen, TooLongScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.race)
        assert app.race.composer.input.value == "one"


async def test_esc_gives_the_text_back(folder: Path) -> None:
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        source.say(Race(prompt_tokens=64).submitted())  # a conversation that this is not about
        await shows(pilot, "ask a follow-up")
        await pilot.press("ctrl+n", "escape")
        await ask(pilot, str(folder / "moby dick.txt"), "who?")
        prompt = sent_prompt(source)
        assert not prompt.follow_up
        await pilot.press(*"and")
        source.say(too_long(prompt))
        await until(pilot, lambda: isinstance(app.screen, TooLongScreen))
        await pilot.press("escape")
        await shows(pilot, "▤ moby dick.txt · 16 B")
        assert app.race.composer.input.value == "who? and"
        assert len(source.sent) == 1
        await pilot.press("enter")
        again = sent_prompt(source)
        assert (again.document, again.text, again.follow_up) == (prompt.document, "who? and", False)


async def test_a_refused_prompt_comes_back_and_one_that_was_taken_does_not() -> None:
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await ask(pilot, "a\nb", "who?")
        source.say(
            events.Notice(
                run="synthetic", level="error", text="the template refuses", ticket=sent_prompt(source).ticket
            )
        )
        await shows(pilot, "▤ pasted text · 3 B")
        assert app.race.composer.input.value == "who?"
        await pilot.press("enter")
        taken = replace(Race(prompt_tokens=64).submitted(), ticket=sent_prompt(source).ticket)
        source.say(taken, too_long(sent_prompt(source)))
        await until(pilot, lambda: any("251,203" in note.message for note in app._notifications))
        assert app.screen is app.race
        assert app.race.composer.input.value == ""


async def test_what_was_on_its_way_to_a_worker_that_died_comes_back() -> None:
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await ask(pilot, "a\nb", "who?")
        source.end("killed by signal 9")
        await shows(pilot, "▤ pasted text · 3 B")
        assert app.race.composer.input.value == "who?"


async def test_a_document_of_the_command_line_can_be_cut_too() -> None:
    app, source = make(prompts=[commands.Prompt(document="word " * 9000, text="who?", title="moby.txt")])
    async with app.run_test(size=(120, 36)) as pilot:
        source.say(too_long(app.config.prompts[0]))
        await shows(pilot, "moby.txt has 251,203 tokens")
        await pilot.press("m")
        assert sent_prompt(source) == replace(app.config.prompts[0], cut="middle")


async def test_a_file_is_picked_by_walking_and_typing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".hidden").write_text("x")
    (folder / "\x1b[2Jevil").write_text("x")
    monkeypatch.chdir(folder)
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "paste a document, or ask")
        await pilot.press("ctrl+o")
        await shows(pilot, "17 B  moby dick.txt")
        assert ".hidden" not in screen_text(app)
        assert "␛[2Jevil" in screen_text(app)
        await pilot.press("n", "enter")  # into notes/
        await shows(pilot, "a.md")
        await pilot.press(*["backspace"] * len("notes/"), "m", "tab")
        assert app.screen.query_one(Input).value == f"{folder}/moby dick.txt"
        await pilot.press("enter")
        await shows(pilot, "▤ moby dick.txt · 16 B")
        assert app.focused is app.race.composer.input
        await pilot.press("enter")
        assert sent_prompt(source).title == "moby dick.txt"
        await pilot.press("ctrl+o", *"none")
        await until(pilot, lambda: isinstance(app.screen, FilePicker))
        await pilot.press("enter")
        await until(pilot, lambda: any("no such file" in note.message for note in app._notifications))
        await pilot.press("escape")
        assert app.screen is app.race


async def test_enter_and_tab_wait_until_the_folder_is_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    listed = threading.Event()

    def slowly(path: Path) -> list[file_picker.Entry]:
        listed.wait(10)
        return entries_of(path)

    entries_of = file_picker.entries_of
    monkeypatch.setattr(file_picker, "entries_of", slowly)
    app, _ = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "paste a document, or ask")
        await pilot.press("ctrl+o", *"mo", "enter")
        await until(pilot, lambda: isinstance(app.screen, FilePicker))
        assert not app._notifications
        listed.set()
        await shows(pilot, "▤ moby dick.txt · 16 B")
        listed.clear()
        await pilot.press("ctrl+o", *"it", "tab")
        await until(pilot, lambda: isinstance(app.screen, FilePicker))
        listed.set()
        await until(pilot, lambda: app.screen.query_one(Input).value == f"{folder}/it's.txt")
        listed.clear()
        await pilot.press(*["backspace"] * len("it's.txt"), *"notes/", "enter", "x")  # thought better of it
        listed.set()
        await until(pilot, lambda: app.screen.query_one(OptionList).option_count == 0)
        assert isinstance(app.screen, FilePicker)
        assert not app._notifications


async def test_a_document_is_asked_about() -> None:
    app, source = make()
    async with app.run_test(size=(120, 36)) as pilot:
        await shows(pilot, "■ ready")
        source.say(Race(prompt_tokens=64).submitted())
        await shows(pilot, "ask a follow-up")
        app.post_message(textual_events.Paste("two\nlines"))
        await shows(pilot, "⌫  ask about it")
        source.say(Race(1, prompt_tokens=64).submitted())
        await pilot.pause(0.2)
        await pilot.press("backspace")
        await shows(pilot, "› ask a follow-up")
