"""Graphs of block characters on a scale that is given from outside, so that columns can be compared.

Textual's Sparkline stretches every series to its own range, and a plotext plot takes 8 ms to build at this size (twelve
of them a few times a second would be a fifth of a core); plotext draws the zoomed view, where axes matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtui import palette
from kvtui.panes.lines import Piece, joined

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def stacked(
    columns: Sequence[tuple[float, float] | None], height: int, scale: float, color: str, hatch: str = "▒"
) -> list[list[Piece]]:
    """One cell a column: the first value solid from the bottom up, the second hatched on top of it; None leaves a gap.
    The full `height` in lines is `scale`."""
    lower_style = palette.style(color)
    upper_color = palette.blend(palette.now.background, color, 0.5)
    upper_style = palette.style(upper_color)
    edge_style = lower_style if palette.now.flat else palette.style(color, upper_color)
    blank = palette.style()
    rows: list[list[Piece]] = []
    levels = [_levels(column, height, scale) for column in columns]
    for row in range(height - 1, -1, -1):
        cells: list[Piece] = []
        for low, top in levels:
            solid, filled = low - row * 8, top - row * 8
            if solid >= 8:
                cells.append(("█", lower_style))
            elif solid > 0:
                cells.append((_EIGHTHS[solid], edge_style if filled >= 8 else lower_style))
            elif filled >= 8:
                cells.append((hatch, upper_style))
            elif filled > 0:
                cells.append((_EIGHTHS[filled], upper_style))
            else:
                cells.append((" ", blank))
        rows.append(joined(cells))
    return rows


def bar(share: float, width: int, color: str) -> list[Piece]:
    """A horizontal bar of eighths on a faint track."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, rest = divmod(eighths, 8)
    text = "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")
    return [
        (text, palette.style(color, palette.now.faint)),
        (" " * (width - len(text)), palette.style(color, palette.now.faint)),
    ]


def _levels(column: tuple[float, float] | None, height: int, scale: float) -> tuple[int, int]:
    """Heights in eighths of a line: of the solid part, and of both. What is there at all shows at least one eighth."""
    if column is None or scale <= 0:
        return 0, 0
    lower, upper = (max(0.0, value) * height * 8 / scale for value in column)
    solid = max(1, round(lower)) if lower > 0 else 0
    total = max(solid + 1, round(lower + upper)) if upper > 0 else solid
    return min(solid, height * 8), min(total, height * 8)
