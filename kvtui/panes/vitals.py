"""How one engine is doing: state, speed, latencies, and whether it still says what the paged engine says."""

from __future__ import annotations

from typing import Any

from rich.style import Style

from engines.events import Decision, Prefill
from kvtui import figures, palette
from kvtui.names import chosen
from kvtui.panes import graph
from kvtui.panes.lines import Lines, Piece, ends, spread
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


_WHOLE = {  # of the run's states, those that every request which has not ended shares
    "paused": ("‖", "paused"),
    "ended": ("■", "ended here"),
    "gone": ("✖", "broke off here"),
}
_OVER = ("ended", "gone")


def state_of(request: RequestState | None, status: str) -> tuple[str, str]:
    """Glyph and word; `status` is the run's."""
    if request is None:
        return _WHOLE[status] if status in _OVER else ("○", "waiting")
    if status in _WHOLE and request.outcome is None:
        return _WHOLE[status]
    return _STATES.get(request.status, ("○", request.status))


class Vitals(Lines):
    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._state: EngineState | None = None
        self._status = ""
        self._top_speed = 0.0

    def show(self, state: RunState) -> None:
        self._state = state.engines.get(self.engine)
        self._status = state.status
        current = [engine.current for engine in state.engines.values()]
        self._top_speed = max((r.tokens_per_s or 0.0 for r in current if r is not None), default=0.0)
        self.redraw()

    @property
    def _request(self) -> RequestState | None:
        return self._state.current if self._state is not None else None

    def key(self) -> Any:
        request = self._request
        if request is None:
            return self._status
        return (
            request.request,
            request.status,
            self._status,
            id(request.prefill),
            len(request.tokens),
            len(request.differs),
            request.outcome is None,
            id(request.decision),
            request.text_only,
            figures.ceiling(self._top_speed),
        )

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        request, color = self._request, palette.engine_color(self.engine)
        glyph, word = state_of(request, self._status)
        strong, dim = palette.style(color, bold=True), palette.style(palette.now.dim)
        bad = request is not None and request.status in ("device_oom", "error", "failed")
        mark = palette.style(palette.now.error, bold=True) if bad else strong
        speed = figures.speed(request.tokens_per_s) if request is not None else "–"
        state = [(f"{glyph} {word}", mark)]
        first = spread(
            state, [(f"{speed:>5}", palette.style(palette.now.foreground, bold=True)), (" tok/s", dim)], width
        )
        ttft, tpot = (
            (figures.seconds(request.ttft_s), figures.seconds(request.tpot_s)) if request is not None else ("–", "–")
        )
        latencies = ends(
            [[("TTFT ", dim), (ttft, strong)], [(ttft, strong)]],
            [[("TPOT ", dim), (f"{tpot:>7}", strong)], [("TPOT ", dim), (tpot, strong)]],
            width,
        )
        progress, decision = self._progress(request, color, width), request.decision if request is not None else None
        reading = request is not None and request.status in ("queued", "prefill")
        if decision is not None:  # takes the place of what says least at the time
            chosen = self._chosen(decision, strong, width)
            progress, latencies = (progress, chosen) if reading else (chosen, latencies)
        lines = [first, progress, latencies, self._match(request, width)]
        if height == 3:
            del lines[2 if (request is not None and request.status == "prefill") or decision is not None else 1]
        return lines

    def _chosen(self, decision: Decision, strong: Style, width: int) -> list[Piece]:
        engine, reason = chosen(decision)
        label, reason = f"→ {engine}", f": {reason}"
        room = max(0, width - len(label))
        if len(reason) > room:
            reason = reason[: max(0, room - 1)].rstrip() + "…" * (room > 0)
        return [(label, strong), (reason, palette.style(palette.now.dim))]

    def _progress(self, request: RequestState | None, color: str, width: int) -> list[Piece]:
        """Prefill's share while it runs, then speed on a scale that all engines share."""
        if request is None:
            return graph.bar(0, width, color)
        if request.status in ("prefill", "queued") or (not request.tokens and request.prefill is not None):
            remote = self._state is not None and self._state.remote
            label = " how far is not told" if remote else f" {_stage(request)}"
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
        asked = request.counted_tokens
        count = f"{'–' if asked is None else f'{asked:,}'} + {len(request.tokens):,}"
        worded = [f"{count} tokens", count]
        before = 0 if request.text_only else request.first_position  # who was sent it all has counted it all
        if before:  # the conversation's, with which they fill the context
            worded = [f"{before:,} before + {count} tokens", f"{before:,} + {count} tokens", f"{before:,} + {count}"]
        counts = [[(words, dim)] for words in worded]
        if self.engine == PAGED:
            return ends(counts, [[("the reference", dim)], []], width)
        if request.first_difference is not None:
            mark = palette.style(palette.now.background, palette.now.error, bold=True)
            where = f"from token {request.first_difference + 1:,} on"
            return ends([[(f"≠ differs {where}", mark)], [(f"≠ {where}", mark)]], [[]], width)
        if not request.differs:
            apart: list[Piece] = [("text only", dim)] if request.text_only else []
            return ends(counts, [apart, []], width)
        same = figures.counted(len(request.differs), "token")
        good = palette.style(palette.now.good, bold=True)
        return ends([[(f"= same as paged, {same}", good)], [(f"= same, {same}", good)]], [[]], width)


def _stage(request: RequestState) -> str:
    """How far the prefill is: by layers when all tokens go through at once, else by tokens."""
    prefill = request.prefill
    if prefill is None:
        return f"0 of {request.prompt_tokens:,}"
    if at_once(prefill):
        return f"layer {prefill.layers_done} of {prefill.layers_total}"
    what = "context " if request.first_position else ""
    return f"{what}{round(share_read(request) * prefill.tokens_total):,} of {prefill.tokens_total:,}"


def share_read(request: RequestState) -> float:
    """How much of the prompt has gone through, 0..1; a piece on its way counts by its layers."""
    prefill = request.prefill
    if prefill is None or not prefill.tokens_total:
        return 0.0
    if at_once(prefill):
        return prefill.layers_done / prefill.layers_total
    piece = prefill.step_tokens * prefill.layers_done / max(1, prefill.layers_total)
    return min(1.0, (prefill.tokens_done + piece) / prefill.tokens_total)


def at_once(prefill: Prefill) -> bool:
    """Whether the step holds the whole prompt (of older traces it is only known that it may)."""
    if prefill.step_tokens:
        return prefill.tokens_done == 0 and prefill.step_tokens == prefill.tokens_total
    return prefill.tokens_done in (0, prefill.tokens_total) and prefill.layers_done < prefill.layers_total
