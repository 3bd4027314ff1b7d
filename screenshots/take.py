"""Pictures of every main screen, as SVG beside this file, and a recording; from the traces that ship with kvtui.

    make screenshots

Nothing is staged: the traces are runs of the real model, and each picture is taken at the moment that its name says.
`python -m screenshots.record_traces` makes the traces anew.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect

from kvtui import looks, screenshot
from kvtui.conditions import holds
from kvtui.replay import TraceSource
from kvtui.state import RunState
from kvtui.trace import TraceReader
from kvtui.transport import ReplayApp
from screenshots.record_traces import DEMO, OUT_OF_MEMORY

HERE = Path(__file__).parent
WIDE, NARROW = (132, 40), (80, 24)
CAST_SIZE = (36, 120)
TERMINAL = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}


def racing(state: RunState) -> bool:
    return _answered(state, 0, 24)


def forgetting(state: RunState) -> bool:
    """All have answered the question about the second paragraph."""
    return _answered(state, 1, 24)


def full(state: RunState) -> bool:
    """One has run out of memory while another answers."""
    return holds("out of memory", state) and _answered(state, 0, 16)


def _answered(state: RunState, request: int, tokens: int) -> bool:
    runs = [engine.requests.get(request) for engine in state.engines.values()]
    return bool(runs) and all(run and (run.outcome or len(run.tokens) >= tokens) for run in runs)


def moment(reader: TraceReader, condition: Callable[[RunState], bool]) -> float:
    """Seconds from the trace's beginning until the condition holds."""
    state = RunState()
    for frame, batch in enumerate(reader):
        state.apply_all(batch)
        if condition(state):
            return reader.at_s(frame)
    raise SystemExit(f"the trace never comes to: {condition.__doc__ or condition.__name__}")


async def take(
    trace: Path,
    condition: Callable[[RunState], bool],
    size: tuple[int, int],
    pictures: dict[str, list[str]],
    theme: str = "dark",
) -> None:
    """Pictures by name, each after the keys that lead to it from the one before."""
    reader = TraceReader(trace)
    source = TraceSource(reader, from_s=moment(reader, condition) + 0.05)
    app = ReplayApp(source)
    app.dress(looks.detect(theme, ascii_only=False, environ=TERMINAL))
    async with app.run_test(size=size) as pilot:
        await pilot.press("space")
        while app.state.started is None or not condition(app.state):
            await pilot.pause(0.05)
        await pilot.pause(1.0)
        for name, keys in pictures.items():
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.2)
            await pilot.pause(0.6)
            (HERE / f"{name}.svg").write_text(screenshot.to_svg(app))


async def take_all() -> None:
    await take(DEMO, racing, WIDE, {"racing": [], "zoomed": ["right", "enter"], "help": ["escape", "question_mark"]})
    await take(
        DEMO,
        forgetting,
        WIDE,
        {
            "forgetting": [],
            "document": ["d", "2", "n", "n"],
            "overlaid": ["a"],
            "cache": ["escape", "c"],
            "heads": ["m"],
            "presenter": ["escape", "p"],
        },
    )
    await take(DEMO, forgetting, WIDE, {"light": []}, theme="light")
    await take(DEMO, racing, NARROW, {"narrow": ["right"]})
    await take(OUT_OF_MEMORY, full, WIDE, {"out-of-memory": []})


def film() -> None:
    """The first script, on the recording, as asciicast."""
    cast = HERE / "forgetting.cast"
    arguments = ["-m", "kvtui.cli", "play", "forgetting", "--replay", str(DEMO), "--quit", "--record", str(cast)]
    environment = {**os.environ, **TERMINAL}
    child = pexpect.spawn(sys.executable, arguments, dimensions=CAST_SIZE, timeout=240, env=environment)
    child.expect(pexpect.EOF)
    child.close()
    if child.exitstatus:
        raise SystemExit(f"the recording ended with exit code {child.exitstatus}")


if __name__ == "__main__":
    asyncio.run(take_all())
    film()
