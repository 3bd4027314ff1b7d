"""The app on remote runs: whose it is and how it stands, another one by a key, and one line for what cannot be done."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.widgets import OptionList

from engines import events
from kvtui.help_screen import HelpScreen
from kvtui.runs_screen import RunsScreen
from kvtui.watch import WatchApp
from kvtui.watching import WatchSource
from probes import snapshot, topics
from probes.connection import Standing
from probes.subscriber import Message
from tests.synthetic import whole_race
from tests.test_app import screen_text, shows, until
from tests.test_watching import Told

SIZE = (100, 30)
RACE = whole_race(prompt_tokens=64, new_tokens=12)


class Heard(Told):
    """Two runs, the first on a machine called lab, the other on one called roof."""

    race = RACE

    def start(self) -> None:
        self.standing = Standing("connected")
        self.present("aaaa1111", "lab", "live")
        self.present("bbbb2222", "roof", "live")

    def present(self, run: str, host: str, state: str) -> None:
        presence = topics.Presence(run=run, state=state, host=host, model="smollm2-135m", since="2026-01-02T03:04:05")
        self.said.append(Message(run, topics.PRESENCE, topics.pack(presence, json=False), True))

    def watch(self, run: str) -> None:
        picture = snapshot.Picture()
        for event in self.race:
            picture.add(event if run == "aaaa1111" else replace(event, run=run))
        packed = snapshot.pack(picture, len(self.race))
        assert packed is not None
        self.said.append(Message(run, topics.SNAPSHOT, packed, True))


def make(race: list[events.AnyEvent] = RACE) -> tuple[WatchApp, Heard]:
    subscriber = Heard()
    subscriber.race = race
    return WatchApp(WatchSource(subscriber)), subscriber


async def test_a_remote_run_is_shown_live_and_how_it_ends() -> None:
    app, subscriber = make()
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "● live  1/2 lab:aaaa")
        await shows(pilot, "✓ done")
        assert "The code word" in screen_text(app)
        subscriber.present("aaaa1111", "lab", "gone")
        await shows(pilot, "✖ gone  1/2 lab:aaaa")
        await shows(pilot, "lab:aaaa is gone")
        assert "✓ done" in screen_text(app)
        subscriber.standing = Standing("waiting", "Connection refused")
        await shows(pilot, "◌ waiting for the broker")


async def test_columns_say_that_the_run_has_ended_where_a_request_had_not() -> None:
    for state, said in (("ended", "■ ended here"), ("gone", "✖ broke off here")):
        app, subscriber = make(RACE[: len(RACE) // 2])
        async with app.run_test(size=(120, 36)) as pilot:
            await shows(pilot, "several KV caches" if app.state.started is None else "● live")
            await until(pilot, lambda app=app: app.state.started is not None)
            subscriber.present("aaaa1111", "lab", state)
            await shows(pilot, said)
            # Columns are drawn one after the other.
            await until(pilot, lambda app=app: not any(word in screen_text(app) for word in ("decoding", "◔ prefill")))


async def test_keys_change_between_the_runs() -> None:
    app, _ = make()
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "✓ done")
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.state.run == "bbbb2222")
        await shows(pilot, "2/2 roof:bbbb")
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))
        await shows(pilot, "lab:aaaa  smollm2-135m  2026-01-02 03:04")
        await pilot.press("up", "enter")
        await until(pilot, lambda: app.state.run == "synthetic")
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.race)
        assert app.watching.watched == "aaaa1111"


async def test_what_needs_its_worker_is_refused_in_one_line() -> None:
    app, _ = make()
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "✓ done")
        for key in ("space", "plus", "1", "x"):
            await pilot.press(key)
            await until(pilot, lambda: any("another machine's run" in n.message for n in app._notifications))
            app.clear_notifications()
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await shows(pilot, "all runs, to choose one")
        assert "start the worker again" not in screen_text(app)


async def test_the_list_of_runs_has_live_ones_first() -> None:
    app, subscriber = make()
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "✓ done")
        for number in range(3):
            subscriber.present(f"cccc000{number}", f"shed{number}", "gone" if number < 2 else "live")
        await until(pilot, lambda: len(app.watching.runs) == 5)
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, RunsScreen))
        await shows(pilot, "shed2:cccc")
        lines = [line for line in screen_text(app).splitlines() if "smollm2-135m  2026" in line]
        assert ["gone" in line for line in lines] == [False, False, False, True, True]


@pytest.mark.parametrize("key", ["l", "ctrl+p"])
async def test_lists_bear_a_terminal_without_room(key: str) -> None:
    app, _ = make()
    async with app.run_test(size=SIZE) as pilot:
        await shows(pilot, "✓ done")
        await pilot.press(key)
        await until(pilot, lambda: bool(app.screen.query(OptionList)))
        for width in range(1, 16):
            await pilot.resize_terminal(width, 3 + width % 5)
        await pilot.resize_terminal(*SIZE)
        await until(pilot, lambda: app.screen.query_one(OptionList).size.width > 12)


async def test_before_any_run_is_there_it_says_so() -> None:
    subscriber = Told()
    subscriber.standing = Standing("connected")
    app = WatchApp(WatchSource(subscriber))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await shows(pilot, "◌ no run yet")
        await shows(pilot, "waiting for a remote run")
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: any("no other run" in note.message for note in app._notifications))
        subscriber.standing = Standing("off", "not authorised")
        await shows(pilot, "not authorised")
    assert app.exit_code == 0
