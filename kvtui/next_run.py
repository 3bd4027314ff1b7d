"""What a person wants from the next run on, and what of it the run on the screen does not have yet."""

from __future__ import annotations

from collections.abc import Sequence

from engines.commands import WorkerConfig
from kvtui import spelling
from kvtui.improvements import IMPROVEMENTS
from kvtui.names import name_of
from kvtui.state import RunState


class NextRun:
    """`engines` are wanted in the order of `catalogue`. What was not asked for since the start is never told, so that
    a recording, in which runs change by themselves, has nothing to wait for."""

    def __init__(self, config: WorkerConfig, catalogue: Sequence[str]) -> None:
        self._catalogue, self._start_budget = catalogue, config.budget
        self.budget: float | None = None  # None: that of the run on the screen
        self.engines = [engine for engine in catalogue if engine in config.engines]
        self.improved = {i.id for i in IMPROVEMENTS if i.wanted(config)}
        self._asked: set[str] = set()  # of IMPROVEMENTS' ids and "engines"

    def ask_engine(self, engine: str) -> bool:
        """On or off. False, and nothing changes, for the last one."""
        engines = [e for e in self._catalogue if (e in self.engines) != (e == engine)]
        if not engines:
            return False
        self.engines = engines
        self._asked.add("engines")
        return True

    def ask_improvement(self, id: str) -> bool:
        """On or off; which of the two."""
        self.improved ^= {id}
        self._asked.add(id)
        return id in self.improved

    def budget_of(self, state: RunState) -> float:
        """Of the run on the screen, as an engine reports it, or as it was asked for."""
        budget = told_budget(state)
        return self._start_budget if budget is None else budget

    def begun(self, state: RunState) -> None:
        """A run has been announced. It may have been on its way when something was asked for: then that is still to
        come. What no engine of the run tells of counts as done."""
        if self.budget == self.budget_of(state) or all("budget" not in e.knobs for e in state.engines.values()):
            self.budget = None
        if list(state.engines) == self.engines:
            self._asked.discard("engines")
        for i in IMPROVEMENTS:
            engine = state.engines.get(i.engine)
            if engine is None or i.told(engine.knobs) in (None, i.id in self.improved):
                self._asked.discard(i.id)

    def changes(self, state: RunState) -> list[str]:
        """In a few words each."""
        found = []
        before = self.budget_of(state)
        if self.budget is not None and self.budget != before:
            found.append(spelling.arrows(f"budget {before:.2f} → {self.budget:.2f}"))
        if "engines" in self._asked:
            found += [f"+{name_of(e)}" for e in self.engines if e not in state.engines]
            found += [f"−{name_of(e)}" for e in state.engines if e not in self.engines]
        for i in IMPROVEMENTS:
            if i.id in self._asked and i.engine in self.engines:
                engine, on = state.engines.get(i.engine), i.id in self.improved
                if engine is None or i.told(engine.knobs) != on:
                    found.append(f"{'+' if on else '−'}{i.short}")
        return found


def told_budget(state: RunState) -> float | None:
    """The first engine's that has one."""
    budgets = (engine.knobs.get("budget") for engine in state.engines.values())
    return next((float(budget) for budget in budgets if isinstance(budget, (int, float))), None)
