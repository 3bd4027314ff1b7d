"""Plays a script on the running app: what a presenter would press and type, at the moments that the script names."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engines.commands import WorkerConfig
from engines.errors import BadRequest
from kvtui import conditions
from kvtui.literal import one_line
from kvtui.messages import Asked
from kvtui.script import Option, Script, Step

if TYPE_CHECKING:
    from kvtui.app import KvtuiApp

LOOK_EVERY_S = 0.1
KEY_GAP_S = 0.25  # a person at the back should see each key take effect

Configure = Callable[[dict[str, Option]], WorkerConfig]


class Player:
    """`configure` turns a race's options into a worker's configuration. Raises BadRequest before anything runs: what
    cannot be, and in which step."""

    def __init__(self, script: Script, configure: Configure) -> None:
        self.script = script
        self.configure = configure
        self._options = dict(script.race)
        self._configs: dict[int, WorkerConfig] = {}
        self._documents: dict[int, str] = {}
        for number, step in enumerate(script.step, start=1):
            with _named(f"{script.name}, step {number}"):
                if step.race is not None:
                    self._configs[id(step)] = self._changed(step)
                if step.document is not None:
                    self._documents[id(step)] = self._document(step)

    def first(self) -> WorkerConfig:
        """What the worker begins with. Raises BadRequest."""
        with _named(f"{self.script.name}, [race]"):
            config = self.configure(self.script.race)
        return config if self.script.stream else msgspec.structs.replace(config, prompts=[])

    def check_replayable(self) -> None:
        """Raises BadRequest for a step that needs a worker."""
        for number, step in enumerate(self.script.step, start=1):
            if step.race is not None or step.document is not None or step.prompt is not None:
                where = f"{self.script.name}, step {number}"
                raise BadRequest(f"{where} asks for something new, which a recording cannot answer")

    async def play(self, app: KvtuiApp) -> None:
        """All steps; tells the person when one of them waits in vain, and leaves the app to them."""
        for number, step in enumerate(self.script.step, start=1):
            await self._take(step, app)
            if not await self._wait(step, app):
                where = f"step {number} of {len(self.script.step)}"
                app.notify(
                    f'{where}: waited {step.timeout:g} s for "{step.wait}" in vain; the script ends here.',
                    severity="error",
                    markup=False,
                )
                return
        await app.caption(None)

    async def _take(self, step: Step, app: KvtuiApp) -> None:
        if step.caption is not None:
            await app.caption(step.caption or None)
        if step.race is not None:
            await app.restart(self._configs[id(step)])
        if step.document is not None or step.prompt is not None:
            if step.fresh or step.document is not None:
                app.fresh = True
            app.post_message(Asked(self._documents.get(id(step), ""), step.prompt or ""))
        for key in step.key_names:
            app.simulate_key(key)
            await asyncio.sleep(KEY_GAP_S)

    async def _wait(self, step: Step, app: KvtuiApp) -> bool:
        match step.wait:
            case None:
                return True
            case str(condition):
                # What was asked has to arrive before "answered" can mean it.
                return await _until(lambda: conditions.holds(condition, app.state, step.engine, step.of), step.timeout)
            case seconds:
                await asyncio.sleep(seconds)
                return True

    def _changed(self, step: Step) -> WorkerConfig:
        self._options |= step.race or {}
        return self.configure(self._options)

    def _document(self, step: Step) -> str:
        from kvtui.prompts import built_in_document, check_size, read_text

        name = step.document or ""
        text = built_in_document() if name == "built-in" else read_text(Path(self.script.folder, name))
        check_size(
            (len(text.encode()) + 2) * step.repeat - 2, f"the document of {step.repeat:,} times {one_line(name)}"
        )
        return "\n\n".join([text] * step.repeat)


@contextlib.contextmanager
def _named(where: str) -> Iterator[None]:
    try:
        yield
    except BadRequest as fault:
        raise BadRequest(f"{where}: {fault}") from None


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(LOOK_EVERY_S)
    return True
