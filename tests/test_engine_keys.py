"""One numbering: the key that switches an engine is in its column's title, and the help has all of them."""

from __future__ import annotations

import re

from click.testing import CliRunner

from engines import commands, events
from kvtui.app import KvtuiApp
from kvtui.cli import cli
from kvtui.panes.column import Column
from tests.scripted_source import ScriptedSource
from tests.synthetic import started
from tests.test_app import screen_text, shows, until

CHOSEN = ["vllm", "h2o", "infinigen+", "hybrid"]


async def test_keys_switch_the_engine_that_has_their_number() -> None:
    source = ScriptedSource([started(tuple(CHOSEN))])
    app = KvtuiApp(commands.WorkerConfig(engines=CHOSEN), source)
    async with app.run_test(size=(160, 60)) as pilot:
        await until(pilot, lambda: [c.engine for c in app.race.query(Column)] == CHOSEN)
        await shows(pilot, "3 InfiniGen+")
        for column in app.race.query(Column):
            key = str(column.number)
            assert f"{key} {events.ENGINE_LABELS[column.engine]}" in screen_text(app)
            await pilot.press(key)
            assert source.sent[-1] == commands.SetEngines(engines=[e for e in CHOSEN if e != column.engine])
            await pilot.press(key)
        await pilot.press("question_mark", "end")
        await shows(pilot, " Engines ")
        lines = [" ".join(re.split("[│╭╰]", line)[-2].split()) for line in screen_text(app).splitlines() if "│" in line]
        for number, engine in enumerate(app.catalogue, 1):
            assert f"{number} {events.ENGINE_LABELS[engine]}{'' if engine in CHOSEN else ', not in this run'}" in lines
        await pilot.press("escape", "6")
        assert source.sent[-1] == commands.SetEngines(engines=[*CHOSEN, app.catalogue[5]])


def test_the_command_line_lists_the_ids() -> None:
    said = " ".join(CliRunner().invoke(cli, ["--help"]).output.split()).replace("- ", "-")  # lines break at hyphens
    assert f"--engines IDS In column order; of {', '.join(events.ENGINE_LABELS)}=http://HOST:PORT." in said
