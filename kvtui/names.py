"""What engines are called where there is room for one word, and what one that chooses among them chose."""

from __future__ import annotations

from engines.events import ENGINE_LABELS, Decision
from kvtui.literal import one_line
from kvtui.state import PAGED


def name_of(engine: str) -> str:
    return "Paged" if engine == PAGED else ENGINE_LABELS.get(engine, engine)


def chosen(decision: Decision) -> tuple[str, str]:
    """The engine's name, and why it was chosen: one line each."""
    return one_line(name_of(decision.choice)), one_line(decision.reason)
