"""How one engine is doing: state, speed, latencies, and whether it still says what the paged engine says."""

from __future__ import annotations

from typing import Any

from engines.events import Prefill
from kvtui import figures, palette
from kvtui.panes import graph
from kvtui.panes.lines import Lines, Piece, spread
from kvtui.state import PAGED, EngineState, RequestState, RunState

_STATES = {
    "queued": ("○", "queued"),
    "prefill": ("◔", "prefill"),
    "decode": ("●", "decoding"),
    "ok": ("✓", "done"),
    "idle": ("○", "idle"),
    "device_oom": ("✖", "out of memory"),
    "error": ("✖", "failed"),
    "failed": ("✖", "failed"),
    "cancelled": ("◼", "cancelled"),
}


def state_of(request: RequestState | None, paused: bool) -> tuple[str, str]:
    """Glyph and word."""
    if request is None:
        return "○", "waiting"
    if paused and request.outcome is None:
        return "‖", "paused"
    return _STATES.get(request.status, ("○", request.status))


class Vitals(Lines):
    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._state: EngineState | None = None
        self._paused = False
        self._top_speed = 0.0

    def show(self, state: RunState) -> None:
        self._state = state.engines.get(self.engine)
        self._paused = state.status == "paused"
        current = [engine.current for engine in state.engines.values()]
        self._top_speed = max((r.tokens_per_s or 0.0 for r in current if r is not None), default=0.0)
        self.redraw()

    @property
    def _request(self) -> RequestState | None:
        return self._state.current if self._state is not None else None

    def key(self) -> Any:
        request = self._request
        if request is None:
            return self._paused
        return (
            request.request,
            request.status,
            self._paused,
            id(request.prefill),
            len(request.tokens),
            len(request.differs),
            request.outcome is None,
            figures.ceiling(self._top_speed),
        )

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        request, color = self._request, palette.engine_color(self.engine)
        glyph, word = state_of(request, self._paused)
        strong, dim = palette.style(color, bold=True), palette.style(palette.now.dim)
        bad = request is not None and request.status in ("device_oom", "error", "failed")
        mark = palette.style(palette.now.error, bold=True) if bad else strong
        speed = figures.speed(request.tokens_per_s) if request is not None else "–"
        state = [(f"{glyph} {word}", mark)]
        first = spread(
            state, [(f"{speed:>5}", palette.style(palette.now.foreground, bold=True)), (" tok/s", dim)], width
        )
        latencies = spread(
            [("TTFT ", dim), (figures.seconds(request.ttft_s if request is not None else None), strong)],
            [("TPOT ", dim), (f"{figures.seconds(request.tpot_s if request is not None else None):>7}", strong)],
            width,
        )
        lines = [first, self._progress(request, color, width), latencies, self._match(request, width)]
        if height == 3:
            del lines[1 if request is None or request.status != "prefill" else 2]
        return lines

    def _progress(self, request: RequestState | None, color: str, width: int) -> list[Piece]:
        """Prefill's share while it runs, then speed on a scale that all engines share."""
        if request is None:
            return graph.bar(0, width, color)
        if request.status in ("prefill", "queued") or (not request.tokens and request.prefill is not None):
            label = f" {_stage(request)}"
            return [
                *graph.bar(share_read(request), max(0, width - len(label)), color),
                (label, palette.style(palette.now.dim)),
            ]
        scale = figures.ceiling(self._top_speed)
        return graph.bar((request.tokens_per_s or 0.0) / scale, width, color)

    def _match(self, request: RequestState | None, width: int) -> list[Piece]:
        dim = palette.style(palette.now.dim)
        if request is None:
            return []
        count = f"{request.prompt_tokens:,} + {len(request.tokens):,} tokens"
        if self.engine == PAGED:
            return spread([(count, dim)], [("the reference", dim)], width)
        if request.first_difference is not None:
            where = f"≠ differs from token {request.first_difference + 1:,} on"
            return spread([(where, palette.style(palette.now.background, palette.now.error, bold=True))], [], width)
        if not request.differs:
            return [(count, dim)]
        same = f"= same as paged, {len(request.differs):,} tokens"
        return [(same, palette.style(palette.now.good, bold=True))]


def _stage(request: RequestState) -> str:
    """How far the prefill is: by layers when all tokens go through at once, else by tokens."""
    prefill = request.prefill
    if prefill is None:
        return f"0 of {request.prompt_tokens:,}"
    if _by_layers(prefill):
        return f"layer {prefill.layers_done} of {prefill.layers_total}"
    return f"{prefill.tokens_done:,} of {prefill.tokens_total:,}"


def share_read(request: RequestState) -> float:
    """How much of the prompt has gone through, 0..1."""
    prefill = request.prefill
    if prefill is None or not prefill.tokens_total:
        return 0.0
    if _by_layers(prefill):
        return prefill.layers_done / prefill.layers_total
    return min(1.0, prefill.tokens_done / prefill.tokens_total)


def _by_layers(prefill: Prefill) -> bool:
    return prefill.tokens_done in (0, prefill.tokens_total) and prefill.layers_done < prefill.layers_total
