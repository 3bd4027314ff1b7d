"""Pictures of the live app on the real model, as SVG beside this file.

    python -m screenshots.take

Nothing is staged: the worker runs the built-in prompt stream, and each picture is taken at the moment that its name
says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from engines.commands import WorkerConfig
from kvtui.app import KvtuiApp
from kvtui.prompts import built_in_prompts
from kvtui.state import RunState

HERE = Path(__file__).parent


def answered(state: RunState, request: int, tokens: int) -> bool:
    """Every engine has given so many tokens of its answer, or all of it."""
    runs = [engine.requests.get(request) for engine in state.engines.values()]
    return bool(runs) and all(run and (run.outcome or len(run.tokens) >= tokens) for run in runs)


async def until(pilot: Pilot, app: KvtuiApp, condition: Callable[[RunState], bool]) -> None:
    while not condition(app.state):
        await pilot.pause(0.1)
    await pilot.pause(0.3)


async def wide() -> None:
    app = KvtuiApp(WorkerConfig(prompts=built_in_prompts()))
    async with app.run_test(size=(132, 40)) as pilot:
        await until(pilot, app, lambda state: answered(state, 0, 24))
        app.save_screenshot(str(HERE / "racing.svg"))
        await until(pilot, app, lambda state: answered(state, 1, 24))
        app.save_screenshot(str(HERE / "forgetting.svg"))
        await pilot.press("space", "right", "enter")
        await pilot.pause(0.5)
        app.save_screenshot(str(HERE / "zoomed.svg"))
        await pilot.press("escape", "question_mark")
        await pilot.pause(0.5)
        app.save_screenshot(str(HERE / "help.svg"))


async def narrow() -> None:
    app = KvtuiApp(WorkerConfig(prompts=built_in_prompts()))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, app, lambda state: answered(state, 0, 24))
        await pilot.press("right")
        await pilot.pause(0.5)
        app.save_screenshot(str(HERE / "narrow.svg"))


async def out_of_memory() -> None:
    app = KvtuiApp(WorkerConfig(prompts=built_in_prompts(), device_memory_bytes=284 << 20))
    async with app.run_test(size=(132, 40)) as pilot:
        await until(pilot, app, lambda state: answered(state, 0, 24))
        app.save_screenshot(str(HERE / "out-of-memory.svg"))


if __name__ == "__main__":
    for scene in (wide, narrow, out_of_memory):
        asyncio.run(scene())
