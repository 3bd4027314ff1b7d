"""The first line of the full-screen cache picture: what is shown, and how."""

from __future__ import annotations

from typing import Any

from kvtui import palette
from kvtui.cache_view import View, window
from kvtui.panes.lines import Lines, Piece, pieces_len, spread
from kvtui.state import RunState

_RUNS = {"racing": "▶ racing", "paused": "‖ paused", "idle": "■ idle", "ended": "■ ended", "gone": "✖ gone"}


class CacheTitle(Lines):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._view, self._tokens, self._layers, self._status = View(), 0, 0, ""

    def show(self, state: RunState, view: View, tokens: int) -> None:
        self._view, self._tokens, self._status = view, tokens, state.status
        self._layers = state.started.layers if state.started is not None else 0
        self.redraw()

    def key(self) -> Any:
        return palette.now.name, self._view, self._layers, self._status, window(self._view, self._tokens)

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        view, dim = self._view, palette.style(palette.now.dim)
        strong = palette.style(palette.now.foreground, bold=True)
        what = "layers × positions"
        if view.heads:
            of = f" of {self._layers}" if self._layers else ""
            what = f"KV heads × positions of layer {(view.layer or 0) + 1}{of}"
        start, span = window(view, self._tokens)
        left: list[Piece] = [(" cache  ", strong), (what, strong)]
        right: list[Piece] = [(f"{start:,}–{start + span:,}", strong), (f"  {_RUNS.get(self._status, '')} ", dim)]
        more: list[Piece] = [(f"   {'log' if view.log else 'linear'} brightness", dim)]
        more.append(("   follows the tail" if view.follow else "   window stays", dim))
        if pieces_len(left) + pieces_len(more) + pieces_len(right) + len("positions  ") < width:
            left, right = [*left, *more], [("positions ", dim), *right]
        return [spread(left, right, width)]
