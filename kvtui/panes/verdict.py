"""What this run has shown so far, in words that a person at the back of the room can read."""

from __future__ import annotations

from typing import Any

from kvtui import palette
from kvtui.panes.lines import Lines, Piece, pieces_len
from kvtui.state import RunState
from kvtui.verdict import Finding, findings

SHORT_BELOW = 100  # cells: not enough for two findings a line in full


class Verdict(Lines):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._findings: list[Finding] = []

    def show(self, state: RunState) -> None:
        self._findings = findings(state)
        self.redraw()

    def key(self) -> Any:
        return self._findings

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        dim = palette.style(palette.now.dim)
        lines: list[list[Piece]] = [[(" ", dim)]]
        for finding in self._findings:
            pieces: list[Piece] = [
                (f"{finding.what} ", dim),
                (finding.label, palette.style(palette.engine_color(finding.engine), bold=True)),
                (
                    f" {finding.short if width < SHORT_BELOW else finding.fact}",
                    palette.style(palette.now.foreground),
                ),
            ]
            gap: list[Piece] = [("   ", dim)] if len(lines[-1]) > 1 else []
            if gap and pieces_len(lines[-1]) + pieces_len(gap) + pieces_len(pieces) > width:
                lines.append([(" ", dim)])
                gap = []
            lines[-1] += [*gap, *pieces]
        return lines
