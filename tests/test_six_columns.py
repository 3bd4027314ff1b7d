"""Up to six engines at once, and what the one that chooses among the others says of its choice."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from textual.widgets import Tabs

from engines import commands, events
from kvtui import captions
from kvtui.app import KvtuiApp
from kvtui.panes.column import Column
from kvtui.panes.stream import Stream
from kvtui.panes.vitals import Vitals
from kvtui.state import RunState
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started
from tests.test_app import screen_text, shows, until

REASON = "lookup in 512 tokens, 67.1 MB free: paged would need 75.5 MB, so InfiniGen+ keeps every fact"
HERE = [engine for engine in events.ENGINE_LABELS if engine != events.SERVER]
LIKE = {"vllm": "vllm", "h2o": "h2o", "h2o+": "h2o", "infinigen": "infinigen", "infinigen+": "infinigen"}


def race(*ids: str) -> list[events.AnyEvent]:
    """Synthetic engines under other names; the hybrid one goes the way of InfiniGen."""
    ran = Race(prompt_tokens=512, new_tokens=30)
    engines = [events.EngineInfo(id=id, label=events.ENGINE_LABELS[id]) for id in ids]
    said: list[events.AnyEvent] = [replace(started(), engines=engines), ran.submitted()]
    for id in ids:
        if id == "hybrid":
            chosen = events.Decision(run="synthetic", engine=id, request=0, choice="infinigen+", reason=REASON)
            said.append(chosen)
        said += [replace(event, engine=id) for event in ran.events_of(LIKE.get(id, "infinigen"))]
    return said


def make(*ids: str) -> KvtuiApp:
    config = commands.WorkerConfig(engines=list(ids), prompts=[commands.Prompt(title="the log")])
    return KvtuiApp(config, ScriptedSource(race(*ids)))


@pytest.mark.parametrize("width", [160, 144])
async def test_six_columns_fit_side_by_side(width: int) -> None:
    app = make(*HERE)
    async with app.run_test(size=(width, 48)) as pilot:
        await shows(pilot, "6 Hybrid")
        await shows(pilot, "✓ done")
        text = screen_text(app)
        assert all(f"{n} {label}"[:14] in text for n, label in enumerate(map(events.ENGINE_LABELS.get, HERE), 1))
        assert "→ InfiniGen+: look" in text
        assert not app.race.query_one(Tabs).display


@pytest.mark.parametrize("width", [144, 150, 156, 162, 168, 174, 180, 200])
async def test_no_word_is_cut_in_a_border(width: int) -> None:
    knobs = {"recent": 0.5, "budget": 0.3, "alpha": 9.0, "prefill": "eager", "anchors": 0.6, "heavy_share": 0.5}
    said = race(*HERE)
    infos = [replace(info, knobs=knobs) for info in said[0].engines]
    app = KvtuiApp(commands.WorkerConfig(engines=HERE), ScriptedSource([replace(said[0], engines=infos), *said[1:]]))
    async with app.run_test(size=(width, 48)) as pilot:
        await shows(pilot, "anchors 0.6")
        (border,) = [line for line in screen_text(app).splitlines() if "anchors 0.6" in line]
        assert "…" not in border
        assert border.count("anchors 0.6") == len(HERE)
        assert ("eager prefill" in border) == (width >= 6 * 32)


async def test_six_columns_become_tabs_where_they_would_be_too_thin() -> None:
    app = make(*HERE)
    async with app.run_test(size=(143, 40)) as pilot:
        await until(pilot, lambda: bool(app.race.query(Tabs)) and app.race.query_one(Tabs).display)
        await shows(pilot, "1 Paged")
        for _ in range(5):
            await pilot.press("right")
        await shows(pilot, "6 Hybrid")
        await shows(pilot, f"→ InfiniGen+: {REASON}")
        await pilot.resize_terminal(160, 40)
        await shows(pilot, "1 Paged")


@pytest.mark.parametrize(("width", "told"), [(143, "/s"), (120, "/s"), (80, "")])
async def test_every_tab_is_seen(width: int, told: str) -> None:
    """With as much of each engine as leaves room for all."""
    app = make(*HERE)
    async with app.run_test(size=(width, 30)) as pilot:
        await shows(pilot, "✓ H2O+")
        line = next(line for line in screen_text(app).splitlines() if "✓ Paged" in line)
        assert [f"✓ {name}" in line for name in ("Paged", "H2O", "H2O+", "InfiniGen", "InfiniGen+", "Hybrid")] == [
            True
        ] * 6
        assert told in line


async def test_keys_that_come_faster_than_columns_are_shown_leave_the_last_one() -> None:
    app = make(*HERE)
    async with app.run_test(size=(120, 40)) as pilot:
        await shows(pilot, "1 Paged")
        shown = []
        watch = app.race.watch_active

        async def counted(active: str) -> None:
            shown.append(active)
            await watch(active)

        app.race.watch_active = counted  # type: ignore[method-assign]
        for _ in range(3):
            app.race.action_move(1)
            await asyncio.sleep(0)
        await pilot.pause(1.0)
        assert app.race.active == "infinigen"
        assert len(shown) <= 4
        assert app.focused is app.race.query_one(".-active", Column)
        await shows(pilot, "TTFT")


async def test_three_columns_are_divided_as_ever() -> None:
    app = make("vllm", "h2o+", "hybrid")
    async with app.run_test(size=(100, 40)) as pilot:
        await shows(pilot, "3 Hybrid")
        assert not app.race.query_one(Tabs).display
        await pilot.resize_terminal(99, 40)
        await until(pilot, lambda: app.race.query_one(Tabs).display)


def drawn(state: RunState, engine: str, height: int, width: int = 60) -> str:
    vitals = Vitals(engine)
    vitals._state = state.engines[engine]
    return "\n".join("".join(text for text, _ in line) for line in vitals.draw(width, height))


def test_the_choice_is_for_the_request_that_is_shown() -> None:
    state = RunState()
    said = race("vllm", "hybrid")
    state.apply_all(said)
    for height in (3, 4):
        assert "→ InfiniGen+: lookup in 512 tokens, 67.1 MB free: paged" in drawn(state, "hybrid", height)
        assert "→" not in drawn(state, "vllm", height)
    state.apply(replace(Race(1).submitted(), engine="hybrid"))
    state.apply(events.Status(engine="hybrid", state="prefill", request=1))
    assert "→" not in drawn(state, "hybrid", 4)


def test_the_choice_is_told_to_an_audience() -> None:
    state = RunState()
    for event in race("vllm", "hybrid"):
        if isinstance(event, events.Prefill) and event.engine == "hybrid":
            break
        state.apply(event)
    assert any(caption.text == f"Hybrid chose InfiniGen+: {REASON}" for caption in captions.captions(state))


def told(state: RunState, width: int, height: int = 9) -> list[str]:
    """The text's lines in the hybrid engine's column."""
    stream = Stream("hybrid")
    stream.show(state)
    return ["".join(text for text, _ in line) for line in stream.draw(width, height)]


@pytest.mark.parametrize("width", [24, 36])
def test_the_reason_is_whole_before_the_answer_where_the_figures_have_no_room_for_it(width: int) -> None:
    state = RunState()
    for event in race("vllm", "hybrid"):
        if isinstance(event, events.Token) and event.engine == "hybrid" and event.index == 2:
            break
        state.apply(event)
        if isinstance(event, events.Prefill) and event.engine == "hybrid":
            reading = told(state, width)
            assert " ".join(line.strip() for line in reading).startswith(f"→ InfiniGen+: {REASON}")
            assert reading[-1].endswith("word?")  # the prompt is there, too
    assert " ".join(line.strip() for line in told(state, width)) == f"→ InfiniGen+: {REASON} The code▌"
    assert told(state, 120) == ["The code▌"]  # above it stands the reason already


def test_a_request_that_moves_says_so_before_what_it_has_said() -> None:
    state = RunState()
    state.apply_all(race("vllm", "hybrid"))
    assert any(line.startswith("→ InfiniGen+: lookup") for line in told(state, 36, 40))
    state.apply(events.Decision(engine="hybrid", request=0, choice="h2o", reason="host memory was short after all"))
    lines = told(state, 36, 40)
    assert lines[:2] == ["→ H2O: host memory was short after", "all"]
    assert lines[2].startswith("The code word")
    assert not any("lookup" in line for line in lines)


@pytest.mark.parametrize("width", [24, 34])
def test_no_figure_is_cut(width: int) -> None:
    state = RunState()
    state.apply_all(race("vllm", "h2o", "infinigen"))
    state.engines["h2o"].requests[0].first_difference = 1233
    assert "from token 1,234 on" in drawn(state, "h2o", 4, width)
    assert "512 + 30" in drawn(state, "vllm", 4, width)
    for engine in ("vllm", "h2o", "infinigen"):
        lines = drawn(state, engine, 4, width).split("\n")
        assert all(len(line) <= width for line in lines)
        assert " s " in lines[2]
        assert lines[2].endswith(" ms")
