"""What stands where a cache's picture will be: when it comes. An engine has one from its first tokens on that are
through all layers."""

from __future__ import annotations

from kvtui.panes.server_load import NOT_TOLD
from kvtui.panes.vitals import at_once
from kvtui.state import EngineState


def awaited(engine: EngineState | None) -> str:
    """One line, for an engine without a picture. A prompt is read at once, or piece by piece."""
    request = engine.current if engine is not None else None
    if engine is not None and engine.remote:
        return NOT_TOLD
    if request is None:
        return "a picture comes with a prompt"
    if request.outcome is not None:
        return "it ended before there was a picture"
    if request.tokens:
        return "a picture has not come yet"
    prefill = request.prefill
    if prefill is not None and prefill.tokens_done < prefill.tokens_total and not at_once(prefill):
        return "a picture comes with the first piece"
    return "a picture comes with the first token"
