"""When a cache's picture comes, and what stands in its place until then."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace
from race_fakes import LetterTokenizer
from tiny import tiny

import engines
from engines import events
from engines.commands import Prompt, WorkerConfig
from engines.race import Race as Running
from kvtui.app import KvtuiApp
from kvtui.panes.awaited import awaited
from kvtui.panes.server_load import NOT_TOLD
from kvtui.state import RunState
from tests.scripted_source import ScriptedSource
from tests.synthetic import Race, started
from tests.test_app import screen_text, shows, until

HERE = [engine for engine in events.ENGINE_LABELS if engine != events.SERVER]
PROMPT = "a goat on a rock " * 8


class Letters(LetterTokenizer):
    """Of a vocabulary of 97."""

    def __call__(self, text: str, **options: object) -> dict[str, list[object]]:
        read = super().__call__(text, **options)
        return read | {"input_ids": [code % 97 for code in read["input_ids"]]}

    @staticmethod
    def encode(text: str, add_special_tokens: bool = True) -> list[int]:
        return [byte % 97 for byte in text.encode()]

    @staticmethod
    def get_vocab() -> dict[str, int]:
        return {}


@pytest.mark.parametrize("chunk", [None, 48])
def test_what_is_said_of_a_picture_comes_true_in_every_engine(chunk: int | None) -> None:
    """Pictures are due all the time: a clock that goes on by a second each time it is looked at."""
    model, _ = tiny("llama")
    model.tokenizer = Letters()
    said: list[events.Event] = []
    wall = itertools.count()
    config = WorkerConfig(engines=HERE, prompts=[Prompt(text=PROMPT)], max_new_tokens=4)

    def build(id: str, model: object, **options: object) -> object:
        return engines.create_engine(id, model, chunk_tokens=chunk, **options)

    race = Running(model, config, said.append, build=build, wall=lambda: float(next(wall)))
    race.start()
    while race.advance():
        pass
    came = {}
    for engine in HERE:
        state, promised, happened = RunState(), "", ""
        for event in said:
            if event.engine not in ("", engine):
                continue
            if isinstance(event, events.Cache):
                break
            state.apply(event)
            if isinstance(event, events.Prefill):
                promised = awaited(state.engines[engine])
            if isinstance(event, (events.Prefill, events.Token)):
                happened = type(event).__name__
        came[engine] = happened
        assert (promised, happened) in [
            ("a picture comes with the first token", "Token"),
            ("a picture comes with the first piece", "Prefill"),
        ], engine
    assert came["h2o"] == "Token"  # its eager prefill reads all at once
    assert came["vllm"] == ("Token" if chunk is None else "Prefill")


def state_at(clock_s: float, **options: str) -> RunState:
    state, race = RunState(), Race(prompt_tokens=256, new_tokens=4, **options)  # type: ignore[arg-type]
    state.apply_all([started(), race.submitted(), *(e for e in race.merged() if e.clock_s <= clock_s)])
    return state


def test_what_is_not_to_be_awaited() -> None:
    assert awaited(RunState().engines.get("vllm")) == "a picture comes with a prompt"
    assert awaited(state_at(99.0, oom="h2o").engines["h2o"]) == "it ended before there was a picture"
    state = state_at(99.0)
    state.apply(replace(started(), engines=[events.EngineInfo(id=events.SERVER, label="s")]))
    assert awaited(state.engines[events.SERVER]) == NOT_TOLD


@pytest.mark.parametrize("size", [(120, 36), (80, 24)])
async def test_the_screens_say_when_a_picture_comes(size: tuple[int, int]) -> None:
    race = Race(prompt_tokens=256, new_tokens=4)
    begun = [event for event in race.merged() if event.clock_s <= 1.0]
    source = ScriptedSource([started(), race.submitted(), *begun])
    app = KvtuiApp(WorkerConfig(), source)
    columns = 3 if size[0] >= 100 else 1
    async with app.run_test(size=size) as pilot:
        await shows(pilot, "a picture comes with the first token")
        assert screen_text(app).count("a picture comes with") == columns
        await pilot.press("c")
        await shows(pilot, "no cache yet")
        await shows(pilot, "a picture comes with the first token")
        source.say(*(event for event in race.merged() if event.clock_s > 1.0))
        await shows(pilot, "fetched now")
        await until(pilot, lambda: "a picture comes" not in screen_text(app))
