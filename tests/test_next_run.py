"""What was asked for from the next run on stays in sight until it is there."""

from __future__ import annotations

from msgspec.structs import replace

from engines import commands, events
from engines.knobs import ANCHORS
from kvtui.next_run import NextRun
from kvtui.panes.header import Header
from kvtui.state import RunState
from tests.synthetic import started
from tests.test_app import make, shows, until

CATALOGUE = ["vllm", "h2o", "infinigen", "h2o+"]


def announced(*engines: str, budget: float = 0.3, **knobs: str | float) -> events.RunStarted:
    """A run whose engines report these knobs, too."""
    event = started(engines or ("vllm", "h2o", "infinigen"), budget)
    infos = [replace(info, knobs=info.knobs | (knobs if info.id != "vllm" else {})) for info in event.engines]
    return replace(event, engines=infos)


def running(*engines: str, budget: float = 0.3, **knobs: str | float) -> RunState:
    state = RunState()
    state.apply(announced(*engines, budget=budget, **knobs))
    return state


def next_run(**options: float | str) -> NextRun:
    return NextRun(commands.WorkerConfig(**options), CATALOGUE)  # type: ignore[arg-type]


def test_a_run_that_was_already_on_its_way_does_not_count_as_the_next_one() -> None:
    wanted, before = next_run(), running(anchors=0.0, prefetch="off")
    wanted.budget = 0.2
    wanted.ask_improvement("anchors")
    wanted.ask_improvement("prefetch")
    wanted.ask_engine("vllm")
    wanted.ask_engine("h2o+")
    asked = ["budget 0.30 → 0.20", "+H2O+", "−Paged", "+anchors", "+predictive prefetch"]
    assert wanted.changes(before) == asked
    wanted.begun(before)
    assert wanted.changes(before) == asked
    after = running("h2o", "infinigen", "h2o+", budget=0.2, anchors=ANCHORS, prefetch="predictive")
    wanted.begun(after)
    assert wanted.changes(after) == []


def test_what_is_taken_back_is_no_change() -> None:
    wanted, state = next_run(), running(prefill="eager", scoring="eager")
    for _ in range(2):
        wanted.ask_improvement("prefill")
        wanted.ask_engine("h2o")
    assert wanted.changes(state) == []
    wanted.ask_engine("h2o")
    wanted.ask_improvement("prefill")
    assert wanted.changes(state) == ["−H2O"]  # chunked prefill would be that of an engine which will not be there


def test_what_the_worker_started_with_is_switched_off() -> None:
    wanted, state = next_run(scoring="flash"), running(scoring="flash", prefill="flash")
    wanted.ask_improvement("scoring")
    assert wanted.changes(state) == ["−flash scoring"]
    wanted.begun(running(scoring="eager", prefill="eager"))
    assert wanted.changes(state) == []


def test_flash_scoring_that_comes_with_chunks_is_not_waited_for() -> None:
    wanted = next_run(scoring="flash", prefill="chunked")
    state = running(scoring="flash", prefill="chunked")
    wanted.ask_improvement("scoring")
    assert wanted.changes(state) == ["−flash scoring"]
    wanted.begun(state)
    assert wanted.changes(state) == []


def test_a_recording_whose_engines_change_waits_for_nothing() -> None:
    wanted, state = next_run(), running("h2o+", "infinigen")
    wanted.begun(state)
    assert wanted.changes(state) == []


def test_of_many_changes_as_many_are_told_as_have_room() -> None:
    def told(room: int) -> str:
        header = Header(commands.WorkerConfig())
        header._changes = ["+anchors", "+flash scoring", "−InfiniGen"]
        return "".join(text for text, _ in header._next_run(room))

    assert told(80) == "  next run (r) +anchors, +flash scoring, −InfiniGen"
    assert told(50) == "  next run (r) +anchors, +flash scoring, 1 more"
    assert told(46) == "  next run (r) +anchors, 2 more"
    assert told(20) == "  next run (r) 3 changes"


async def test_the_header_tells_of_it_until_it_is_there() -> None:
    app, source = make([announced(anchors=0.0)])
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: bool(app.state.engines))
        await pilot.press("a", "minus", "3")
        await shows(pilot, "next run (r) budget 0.30 → 0.25, 2 more  modelled")
        await pilot.resize_terminal(120, 36)
        await shows(pilot, "next run (r) budget 0.30 → 0.25, −InfiniGen, +anchors")
        assert source.sent[-1] == commands.SetEngines(engines=["vllm", "h2o"])
        source.say(announced("vllm", "h2o", budget=0.25, anchors=ANCHORS))
        await shows(pilot, "budget 0.25  ")
        await until(pilot, lambda: "next run" not in app.race.header.render_line(0).text)
