"""What a server tells of its KV cache, where the others have bytes: a share of all that it has, or nothing."""

from __future__ import annotations

import textwrap
from typing import Any

from engines.events import ServerLoad
from kvtui import figures, palette
from kvtui.literal import one_line
from kvtui.panes import graph
from kvtui.panes.lines import Piece, ends, rule
from kvtui.state import EngineState

NOT_TOLD = "a server does not tell what it holds, token by token"


def usage(engine: EngineState) -> str:
    """Of the server's own KV cache, all its clients together."""
    load = engine.load
    if load is None or load.kv_usage is None:
        return "unknown"
    return f"{figures.share(load.kv_usage) if load.kv_usage else '0 %'} in use"


def key(engine: EngineState) -> Any:
    return id(engine.load), engine.load_history.version


def drawn(engine: EngineState, width: int, height: int, span_s: float) -> list[list[Piece]]:
    """A title, how busy the server is, and its usage over time, all of the cache being the full height."""
    dim, color = palette.style(palette.now.dim), palette.engine_color(engine.id)
    strong = palette.style(color, bold=True)
    label = "KV memory" if width >= 34 else "KV"
    lines = [rule([(label, dim)], [(usage(engine), strong)], width)]
    load = engine.load or ServerLoad()
    if height >= 4:
        lines.append(ends(_busy(load), _hits(load), width))
    rows = height - len(lines)
    if rows > 0 and engine.load_history.clock_s:
        columns: list[tuple[float, float] | None] = []
        for x in range(width):
            begin_s, end_s = (engine.started_clock_s + (x + side) * span_s / width for side in (0, 1))
            held = engine.load_history.held(min(end_s, engine.clock_s))
            columns.append((held[0], 0.0) if held is not None and begin_s <= engine.clock_s else None)
        lines += graph.stacked(columns, rows, 1.0, color)
    elif rows > 0 and engine.load is not None:
        lines += told_nothing("the server tells nothing of its memory", width, rows)
    return lines


def told_nothing(words: str, width: int, height: int) -> list[list[Piece]]:
    quiet = palette.style(palette.now.dim, italic=True)
    return [[(line, quiet)] for line in textwrap.wrap(words, max(1, width))[: max(0, height)]]


def _busy(load: ServerLoad) -> list[list[Piece]]:
    """Requests of all clients, and which model, in more words and in fewer."""
    dim = palette.style(palette.now.dim)
    if load.running is None and load.waiting is None:
        return [[(one_line(load.model), dim)], []]
    running, waiting = (f"{count:,}" if count is not None else "–" for count in (load.running, load.waiting))
    preempted = f", {load.preemptions:,} preempted" if load.preemptions is not None else ""
    queue = f"{running} running, {waiting} waiting"
    return [[(text, dim)] for text in (f"{queue}{preempted} · {one_line(load.model)}", queue + preempted, queue)]


def _hits(load: ServerLoad) -> list[list[Piece]]:
    if load.prefix_hit_share is None:
        return [[]]
    percent = f"{round(100 * load.prefix_hit_share)} %"
    dim, plain = palette.style(palette.now.dim), palette.style(palette.now.foreground)
    return [[(percent, plain), (" prefix hits", dim)], [(percent, plain), (" hits", dim)], []]
