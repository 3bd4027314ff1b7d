"""What a server tells of its KV cache, where the others have bytes: a share of all that it has, or nothing."""

from __future__ import annotations

import textwrap
from typing import Any

from engines.events import ServerLoad
from kvtui import figures, palette
from kvtui.panes import graph
from kvtui.panes.lines import Piece, ends, rule
from kvtui.state import EngineState

NOT_TOLD = "a server does not tell what it holds, token by token"


def usage(engine: EngineState, room: int) -> str:
    """Of the server's own KV cache, all its clients together; and when that was, where nobody looks any more. In fewer
    words where `room` is less than they need."""
    load = engine.load
    if load is None or load.kv_usage is None:
        return "unknown"
    share, when = _share(load.kv_usage), "" if _watched(engine) else f" at {figures.clock(load.clock_s)}"
    worded = f"{share} in use{when}"
    return worded if len(worded) <= room else share + when


def key(engine: EngineState) -> Any:
    return id(engine.load), engine.load_history.version, _watched(engine)


def _watched(engine: EngineState) -> bool:
    """Whether the figures are of now: a server is looked at while a request of ours runs."""
    return engine.current is not None and engine.current.status in ("prefill", "decode")


def _share(part: float) -> str:
    return figures.share(part) if part else "0 %"


def drawn(engine: EngineState, width: int, height: int, span_s: float) -> list[list[Piece]]:
    """A title, how busy the server is, and its usage over time, all of the cache being the full height."""
    dim, color = palette.style(palette.now.dim), palette.engine_color(engine.id)
    strong = palette.style(color, bold=True)
    load, used = engine.load or ServerLoad(), usage(engine, width - len("KV") - 3)
    label, peak = "KV memory 0–100 %", f", peak {_share(load.kv_usage_peak)}" if load.kv_usage_peak is not None else ""
    if len(label) + len(used) + len(peak) + 3 > width:
        label, peak = "KV memory" if len("KV memory") + len(used) + 3 <= width else "KV", ""
    lines = [rule([(label, dim)], [(used, strong), (peak, dim)], width)]
    if height >= 4:
        lines.append(ends(_busy(load, now=_watched(engine)), _hits(load), width))
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


def _busy(load: ServerLoad, now: bool) -> list[list[Piece]]:
    """Requests of all clients, now or when the usage was read, in more words and in fewer."""
    dim = palette.style(palette.now.dim)
    if load.running is None and load.waiting is None:
        return [[]]
    running, waiting = (f"{count:,}" if count is not None else "–" for count in (load.running, load.waiting))
    preempted = f", {load.preemptions:,} preempted" if load.preemptions is not None else ""
    queue = f"{running} running, {waiting} waiting" if now else f"{running} ran, {waiting} waited"
    return [[(queue + preempted, dim)], [(queue, dim)]]


def _hits(load: ServerLoad) -> list[list[Piece]]:
    if load.prefix_hit_share is None:
        return [[]]
    percent = f"{round(100 * load.prefix_hit_share)} %"
    dim, plain = palette.style(palette.now.dim), palette.style(palette.now.foreground)
    return [[(percent, plain), (" prefix hits", dim)], [(percent, plain), (" hits", dim)], []]
