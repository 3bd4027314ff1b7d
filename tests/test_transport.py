"""The app on a recording: keys that move through time, and one line for those that need a worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from kvtui.help_screen import HelpScreen
from kvtui.panes.scrubber import Scrubber
from kvtui.replay import TraceSource
from kvtui.trace import TraceReader, TraceWriter
from kvtui.transport import ReplayApp, config_of
from tests.synthetic import Race, started
from tests.test_app import screen_text, shows, until
from tests.test_replay import plain, played, write_race

SIZE = (132, 40)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TraceReader:
    path = tmp_path_factory.mktemp("traces") / "race.kvtrace"
    return TraceReader(write_race(path, Race(prompt_tokens=96, new_tokens=40), Race(1, prompt_tokens=96, new_tokens=9)))


def make(reader: TraceReader, speed: float = 1.0, from_s: float = 0.0) -> ReplayApp:
    return ReplayApp(TraceSource(reader, speed, from_s))


def notes(app: ReplayApp) -> list[str]:
    return [note.message for note in app._notifications]


async def sought(pilot: Pilot[None], app: ReplayApp, at_s: float) -> None:
    app.recording.seek(at_s)
    await until(pilot, lambda: app.recording._target_s is None and app.recording.position_s >= at_s)
    await pilot.pause(0.3)


async def test_the_header_says_where_it_is_and_the_screen_what_was_there(reader: TraceReader) -> None:
    app = make(reader, speed=8)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "▶ replay ×8")
        await shows(pilot, "✓ done")
        await shows(pilot, "■ end ×8")
        text = screen_text(app)
        end = f"00:{reader.duration_s:04.1f}"
        assert f"{end} / {end}" in text
        assert "▶ racing" not in text
        assert "ask" not in text.split("\n")[-2]
        assert app.is_running
        assert plain(app.state) == plain(played(reader))


async def test_seeking_back_and_forward(reader: TraceReader) -> None:
    app = make(reader, from_s=4.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space")
        await shows(pilot, "‖ paused ×1")
        await sought(pilot, app, 5.2)
        assert "differs from token 5 on" in screen_text(app)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: app.recording.position_s == pytest.approx(0.2) and not app.recording._target_s)
        await shows(pilot, "layer")  # of the prefill
        assert "differs" not in screen_text(app)
        await pilot.press("right_square_bracket")
        await shows(pilot, "differs from token 5 on")
        assert app.recording.position_s == pytest.approx(5.2)
        await pilot.press("0")
        await shows(pilot, "00:00.0 /")
        await pilot.press(*["right_square_bracket"] * 9)
        await shows(pilot, "■ end")
        await pilot.press("r")
        await shows(pilot, "00:00.0 /")


async def test_a_text_that_is_other_after_a_seek_is_shown_whole(reader: TraceReader) -> None:
    app = make(reader)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space")
        await sought(pilot, app, reader.duration_s)
        await shows(pilot, "prompt 2 of 2")
        whole = screen_text(app)
        await sought(pilot, app, 3.2)
        await shows(pilot, "prompt 1 of ")
        await sought(pilot, app, reader.duration_s)
        await shows(pilot, "prompt 2 of 2")
        await until(pilot, lambda: screen_text(app) == whole)


async def test_what_was_shown_is_kept_for_seeking_back(reader: TraceReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtui.replay.KEEP_EVERY_S", 0.0)
    app = make(reader, speed=4)
    app.recording._snapshots.every_s = 0.5
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.recording.position_s > 2.5)
        await pilot.press("space")
        await shows(pilot, "‖ paused")
        await pilot.press("space")
        await until(pilot, lambda: app.recording.position_s > 5.0)
        await pilot.press("space")
        await shows(pilot, "‖ paused")
        kept = [at_s for _, at_s, *_ in app.recording._snapshots._kept]
        assert len(kept) > 2
        for at_s in (kept[-1] + 0.05, kept[0] + 0.3, 4.0):
            await sought(pilot, app, at_s)
            expected = played(reader, at_s)
            expected.status = "paused"
            assert plain(app.state) == plain(expected)


async def test_pause_step_and_go_on(reader: TraceReader) -> None:
    app = make(reader, from_s=3.0)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "▶ replay")
        await pilot.press("full_stop")
        await shows(pilot, "‖ paused")
        before = app.recording.position_s
        await pilot.press("full_stop")
        await until(pilot, lambda: app.recording.position_s > before)
        assert app.state.status == "paused"
        await pilot.press("space")
        await shows(pilot, "▶ replay")
        await until(pilot, lambda: app.state.status == "racing")
        await sought(pilot, app, reader.duration_s)
        await pilot.press("space")  # at the end: once more
        await shows(pilot, "▶ replay ×1  recording 00:0")


async def test_seeking_on_every_screen(reader: TraceReader) -> None:
    app = make(reader, from_s=3.0)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space")
        await shows(pilot, "‖ paused")
        before_s = app.recording.position_s
        for key in ("d", "c"):
            await pilot.press(key)
            await until(pilot, lambda: app.screen is not app.race)
            await pilot.press("greater_than_sign")
            await until(pilot, lambda: app.recording._target_s is None and app.recording.position_s > before_s)
            await pilot.press("less_than_sign")
            await until(pilot, lambda: app.recording.position_s == pytest.approx(before_s))
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app.race)


async def test_speed(reader: TraceReader) -> None:
    app = make(reader)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("right_curly_bracket", "right_curly_bracket")
        await shows(pilot, "▶ replay ×4")
        await pilot.press(*["left_curly_bracket"] * 3)
        await shows(pilot, "▶ replay ×0.5")


async def test_keys_that_need_a_worker_say_that_this_is_a_recording(reader: TraceReader) -> None:
    app = make(reader, from_s=3.0)
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "▶ replay")
        for key in ("plus", "minus", "1", "2", "9", "x", "i", "slash", "ctrl+n", "ctrl+o"):
            app.clear_notifications()
            await pilot.press(key)
            await until(pilot, lambda: bool(notes(app)))
            assert notes(app)[0].startswith("This is a recording: "), key
        assert "next run" not in screen_text(app)


async def test_clicking_on_the_line_goes_there(reader: TraceReader) -> None:
    app = make(reader)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("space")
        await shows(pilot, "‖ paused")
        await pilot.click(Scrubber, offset=(66, 0))
        await until(pilot, lambda: app.recording.position_s > 2)
        assert app.recording.position_s == pytest.approx(reader.duration_s / 2, rel=0.02)
        assert "━●─" in screen_text(app)


async def test_a_trace_that_was_cut_off_says_so_at_its_end(reader: TraceReader, tmp_path: Path) -> None:
    path = write_race(tmp_path / "cut.kvtrace", Race(prompt_tokens=96, new_tokens=12))
    path.write_bytes(path.read_bytes()[:-1000])
    app = make(TraceReader(path), speed=64)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "■ cut off here")


@pytest.mark.parametrize("keys", [[], ["p"], ["enter"], ["d"], ["c"]], ids=" ".join)
async def test_before_the_engines_were_ready_nothing_from_later_is_shown(keys: list[str], tmp_path: Path) -> None:
    race = Race(prompt_tokens=96, new_tokens=40)
    app = make(TraceReader(write_race(tmp_path / "x.kvtrace", race, loading_s=4.0)), from_s=6.8)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "The code word")
        await pilot.press("space", *keys)
        for at_s, stage in ((0.2, "◌ stage 0"), (6.8, ""), (3.2, "◌ stage 3")):
            await sought(pilot, app, at_s)
            if app.screen is not app.race:
                await shows(pilot, "othing")  # has been read yet, to show yet
                await pilot.press("escape")
            await shows(pilot, stage or "The code word")
            if stage:
                assert "code word" not in screen_text(app)
                await pilot.resize_terminal(100, 32)
                await shows(pilot, stage)
                assert "code word" not in screen_text(app)
                await pilot.resize_terminal(*SIZE)
        await pilot.press("0")
        await shows(pilot, "00:03.5 /")


async def test_ready_engines_that_were_asked_nothing_show_no_prompt_of_later(tmp_path: Path) -> None:
    path = tmp_path / "x.kvtrace"
    race = Race(prompt_tokens=96, new_tokens=4)
    batches = [[started()], [race.submitted()], list(race.merged())[:9]]
    seconds = iter([0.0, 0.0, 1.0, 2.0])  # the first one is the trace's beginning
    writer = TraceWriter(path, lambda: next(seconds))
    for batch in batches:
        writer.write(batch)
    writer.close()
    app = make(TraceReader(path), from_s=2.0)
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "what is the code word?")
        await pilot.press("0")
        await until(pilot, lambda: "code word" not in screen_text(app))


async def test_a_trace_that_cannot_be_played_on_says_so(tmp_path: Path) -> None:
    path = write_race(tmp_path / "x.kvtrace", Race(prompt_tokens=64, new_tokens=40))
    app = make(TraceReader(path))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "▶ replay")
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        app.recording.seek(1e9)
        await shows(pilot, "recording cannot be played on")
        text = screen_text(app)
        assert "✖ stopped" in text
        assert "worker" not in text
        assert "press w" not in text
        await pilot.press("w")
        await until(pilot, lambda: bool(notes(app)))
        assert notes(app)[0].startswith("This is a recording: ")


async def test_no_size_breaks_it(reader: TraceReader) -> None:
    app = make(reader, speed=8)
    async with app.run_test(size=SIZE) as pilot:
        for width, height in ((20, 5), (1, 1), (2, 2), (80, 24), SIZE):
            await pilot.resize_terminal(width, height)
            await pilot.press("right_square_bracket")
        await shows(pilot, "■ end")


async def test_every_key_is_in_the_command_palette_and_in_the_help(reader: TraceReader) -> None:
    app = make(reader)
    async with app.run_test(size=(132, 60)) as pilot:
        titles = [f"{command.title} {command.help}" for command in app.get_system_commands(app.race)]
        for key in ("space", ".", "[", "]", "{", "}", "0", "s", "h", "?"):
            assert any(f"({key})" in title for title in titles), key
        assert not any("next run" in title or "Ask" in title for title in titles)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await shows(pilot, "five seconds back")
        assert "budget up" not in screen_text(app)


def test_the_config_is_the_recorded_runs(reader: TraceReader) -> None:
    config = config_of(reader)
    assert (config.model, config.engines, config.budget) == ("smollm2-135m", ["vllm", "h2o", "infinigen"], 0.3)
