"""What this run has shown so far, in words that a person at the back of the room can read."""

from __future__ import annotations

from typing import Any

from kvtui import palette
from kvtui.panes.lines import Lines, Piece, pieces_len
from kvtui.state import RunState
from kvtui.verdict import Finding, findings

GAP = "   "
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
            roomy = (line for line in lines if pieces_len(line) + len(GAP) + pieces_len(pieces) <= width)
            line = next(roomy, None)
            if line is None and len(lines[0]) > 1:
                lines.append(line := [(" ", dim)])
            line = lines[0] if line is None else line
            line += [*([(GAP, dim)] if len(line) > 1 else []), *pieces]
        return lines
