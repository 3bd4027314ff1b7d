"""A trace holds every race of a session, however its worker ended."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from engines import commands, events
from kvtui import connecting
from kvtui.app import KvtuiApp
from kvtui.trace import TraceReader, TraceWriter
from tests.scripted_source import ScriptedSource
from tests.synthetic import started
from tests.test_app import shows


async def test_a_trace_goes_on_with_the_next_race_and_the_next_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[ScriptedSource] = []

    def worker(config: commands.WorkerConfig) -> ScriptedSource:
        workers.append(ScriptedSource([started(budget=config.budget)]))
        return workers[-1]

    monkeypatch.setattr(connecting, "WorkerClient", worker)
    config = commands.WorkerConfig(budget=0.2)
    path = tmp_path / "run.kvtrace"
    with closing(TraceWriter(path)) as writer:
        app = KvtuiApp(config, connect=connecting.connecting(writer))
        async with app.run_test(size=(120, 36), notifications=True) as pilot:
            await shows(pilot, "■ ready")
            assert app.next_run.budget_of(app.state) == 0.2
            await app.restart(replace(config, budget=0.4))
            await shows(pilot, "budget 0.40")
            workers[1].end("killed by signal 9")
            await shows(pilot, "press w")
            workers[1].say(events.Notice(level="info", text="here again"))
            await pilot.press("w")
            await shows(pilot, "here again")
    assert [worker.starts for worker in workers] == [1, 2]
    said = [event for batch in TraceReader(path) for event in batch]
    budgets = [event.engines[1].knobs["budget"] for event in said if isinstance(event, events.RunStarted)]
    assert budgets == [0.2, 0.4, 0.4]
    assert [event.text for event in said if isinstance(event, events.Notice)] == ["here again"]
