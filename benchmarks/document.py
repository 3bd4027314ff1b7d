"""The document view of 100,000 tokens: CPU time of opening, scrolling and live frames, one JSON line an engine.

    python -m benchmarks.document [--tokens 100000]

No model: the text is words, each layer keeps or fetches tokens at random, so that neighbours never look alike. That is
the worst case for drawing. Times are this process's CPU time in milliseconds, Textual's repaint of the changed lines
(`repaint`) included where it says so; a terminal's own time is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from engines import commands, events
from engines.events import KvState, pack_cell
from kvtui.app import KvtuiApp
from kvtui.document_screen import DocumentScreen
from kvtui.reading import ALL
from tests.scripted_source import ScriptedSource
from tests.synthetic import ANSWER, started

LAYERS = 30
REPEATS = 40


def submitted(tokens: int) -> events.Submitted:
    words = random.Random(0).choices(ANSWER.split(), k=tokens)
    text, offsets = "", []
    for number, word in enumerate(words):
        text += word + ("\n\n" if number % 120 == 119 else " ")
        offsets.append(len(text))
    return events.Submitted(run="synthetic", request=0, title="words", text=text, offsets=offsets, prompt_tokens=tokens)


def picture(engine: str, tokens: int, seed: int) -> events.Cache:
    chosen = np.random.default_rng(seed).random((LAYERS, tokens)) < 0.25
    yes, no = {
        "vllm": (KvState.DEVICE, KvState.DEVICE),
        "h2o": (KvState.DEVICE, KvState.EVICTED),
        "infinigen": (KvState.FETCHED, KvState.HOST),
    }[engine]
    cells = np.where(chosen, pack_cell(yes, 1), pack_cell(no, no == KvState.DEVICE)).astype(np.uint8)
    return events.Cache(
        run="synthetic",
        engine=engine,
        request=0,
        tokens=tokens,
        layers=LAYERS,
        whole=True,
        states=events.deflate(cells.tobytes()),
        mass=events.deflate(bytes(LAYERS)),
        mass_bins=1,
        fetched_tokens=0.25 * tokens if engine == "infinigen" else 0.0,
    )


def cpu_ms(step: Callable[[], Any]) -> float:
    before = time.process_time()
    step()
    return (time.process_time() - before) * 1e3


def several(step: Callable[[], Any]) -> list[float]:
    return [cpu_ms(step) for _ in range(REPEATS)]


def percentiles(spent_ms: list[float]) -> dict[str, float]:
    spent_ms = sorted(spent_ms)
    return {"p50_ms": round(spent_ms[REPEATS // 2], 1), "p95_ms": round(spent_ms[REPEATS * 95 // 100], 1)}


async def measure(tokens: int) -> None:
    pictures = {engine: [picture(engine, tokens, n) for n in range(3)] for engine in ("vllm", "h2o", "infinigen")}
    first = [started(), submitted(tokens), *(several[0] for several in pictures.values())]
    app = KvtuiApp(commands.WorkerConfig(), ScriptedSource(first))
    async with app.run_test(size=(120, 36)) as pilot:
        while len([e for e in app.state.engines.values() if e.cache is not None]) < 3:
            await pilot.pause(0.1)
        await pilot.pause(1)
        before = time.process_time()
        await pilot.press("d")
        opened_ms = (time.process_time() - before) * 1e3
        screen = app.screen
        assert isinstance(screen, DocumentScreen)
        reading, pane = screen._reading, screen._pane

        def repaint(step: Callable[[], None]) -> Callable[[], None]:
            def painted() -> None:
                step()
                screen._on_timer_update()

            return painted

        while not reading.finished:
            await pilot.pause(0.01)
        for engine in ("vllm", "h2o", "infinigen", ALL):
            screen._choose(engine)
            reading.go(tokens // 3)
            await pilot.pause(0.2)

            frames = []
            for number in range(REPEATS):
                app.state.apply(pictures[engine or "infinigen"][number % 3])
                frames.append(cpu_ms(repaint(lambda: screen.show_state(app.state))))
            figures = {
                "wheel": several(repaint(lambda: pane._scroll(3))),
                "page": several(repaint(lambda: screen.action_page(1))),
                "cursor": several(repaint(lambda: screen.action_move(1))),
                "look": several(lambda: (reading._whole.clear(), reading.look())),
                "frame": frames,
            }
            said = {name: percentiles(spent) for name, spent in figures.items()}
            print(json.dumps({"engine": engine or "all", "tokens": tokens, "opened_ms": round(opened_ms), **said}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    asyncio.run(measure(parser.parse_args().tokens))
