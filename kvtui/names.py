"""What engines are called where there is room for one word, what one that chooses among them chose, and which model a
server has."""

from __future__ import annotations

from engines.aliases import ALIASES
from engines.events import ENGINE_LABELS, Decision
from kvtui.literal import one_line
from kvtui.state import PAGED, EngineState, RunState

OTHER = "≠"


def name_of(engine: str) -> str:
    return "Paged" if engine == PAGED else ENGINE_LABELS.get(engine, engine)


def chosen(decision: Decision) -> tuple[str, str]:
    """The engine's name, and why it was chosen: one line each."""
    return one_line(name_of(decision.choice)), one_line(decision.reason)


def served(state: RunState, engine: EngineState) -> str:
    """The name of the model that a server has, one line; marked with "≠" when it is neither the local model's nor that
    of its repository. Empty where it is not told."""
    if engine.load is None or not engine.load.model:
        return ""
    model, here = engine.load.model, state.started.model if state.started is not None else ""
    return one_line(model if model in (here, ALIASES.get(here)) else f"{OTHER} {model}")
