"""The stretch of time that all graphs show: the current conversation, from its beginning."""

from __future__ import annotations

from kvtui.state import RunState

_STEPS_S = (2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)


def time_scale(state: RunState) -> float:
    """Seconds from the left edge to the right: the longest conversation, rounded up, so that graphs grow to the right
    and are squeezed now and then instead of sliding all the time."""
    longest_s = max((engine.clock_s - engine.started_clock_s for engine in state.engines.values()), default=0.0)
    return float(next((step for step in _STEPS_S if step >= longest_s), longest_s))
