"""What engines are called where there is room for one word."""

from __future__ import annotations

from engines.events import ENGINE_LABELS
from kvtui.state import PAGED


def name_of(engine: str) -> str:
    return "Paged" if engine == PAGED else ENGINE_LABELS.get(engine, engine)
