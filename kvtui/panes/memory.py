"""KV memory of one engine: device and host bytes now and over time, on one scale for all."""

from __future__ import annotations

from typing import Any

from engines.events import KvState
from kvtui import figures, palette
from kvtui.names import name_of
from kvtui.panes import graph, server_load
from kvtui.panes.lines import Lines, Piece, ends, pieces_len, rule
from kvtui.panes.window import time_scale
from kvtui.state import EngineState, RunState
from kvtui.verdict import paged_bytes

NARROW, WIDE = 28, 90
_DISK = palette.GLYPHS[KvState.DISK]


class MemoryGraph(Lines):
    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine = engine
        self._state: EngineState | None = None
        self._all: list[tuple[str, str, int | None, int, int]] = []  # of every engine: id, label, bytes by tier
        self._reference = 0
        self._scale = 1.0
        self._span_s = 2.0

    def show(self, state: RunState) -> None:
        self._state = state.engines.get(self.engine)
        self._reference = paged_bytes(state, self.engine)
        self._all = [
            (e.id, e.label, None if e.remote else e.cache_bytes or 0, e.host_bytes or 0, e.disk_bytes)
            for e in state.engines.values()
        ]
        self._scale = figures.ceiling(max((e.memory_history.top for e in state.engines.values()), default=0.0))
        self._span_s = time_scale(state)
        self.redraw()

    def key(self) -> Any:
        engine = self._state
        if engine is not None and engine.remote:
            return server_load.key(engine), self._span_s
        if engine is None or engine.memory is None:
            return None
        return engine.memory_history.version, id(engine.memory), self._all, self._scale, self._span_s

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        dim, color = palette.style(palette.now.dim), palette.engine_color(self.engine)
        engine = self._state
        if engine is not None and engine.remote:
            return server_load.drawn(engine, width, height, self._span_s)
        if engine is None or engine.memory is None:
            return [rule([("KV memory", dim)], [], width)]
        strong = palette.style(color, bold=True)
        now, host = engine.cache_bytes or 0, engine.host_bytes or 0
        change = figures.change(now, self._reference) if now or self._reference else ""
        facts: list[Piece] = [
            ("█ device " if width >= NARROW else "█ ", palette.style(color)),
            (figures.size(now), strong),
        ]
        if change:
            facts.append((f" {change}", palette.style(palette.now.foreground, bold=True)))
        label = "KV memory" if width >= 34 or (not change and width >= NARROW) else "KV"
        if height == 1 and width >= WIDE:
            facts = self._legend(width - len(label) - 3)
        elif height < 4 and host and width >= WIDE // 2:
            facts += [("  ", dim), *self._below(engine)[0]]
        lines = [rule([(label, dim)], facts, width)]
        if height >= 4:
            lines.append(self._totals(engine, width))
        rows = height - len(lines)
        if rows > 0:
            columns: list[tuple[float, float] | None] = []
            for x in range(width):
                clock_s = engine.started_clock_s + (x + 1) * self._span_s / width
                held = engine.memory_history.held(min(clock_s, engine.clock_s))
                begun = engine.started_clock_s + x * self._span_s / width <= engine.clock_s
                columns.append((held[0], held[1]) if held is not None and begun else None)
            lines += graph.stacked(columns, rows, self._scale, color)
        return lines

    def _legend(self, width: int) -> list[Piece]:
        """Every engine's figures, for the plot of all of them below, as many as there is room for."""
        pieces: list[Piece] = []
        for full_names, words, below in ((True, True, True), (False, True, True), (False, False, True), (False,) * 3):
            pieces = []
            for id, label, device, host, disk in self._all:
                style, strong = (palette.style(palette.engine_color(id), bold=bold) for bold in (False, True))
                pieces.append((f"  █ {label if full_names else name_of(id)} {figures.known(device)}", strong))
                if host and below:
                    pieces.append((f" ⠒ {'host ' * words}{figures.size(host)}", style))
                if disk and below:
                    pieces.append((f" {_DISK} {'disk ' * words}{figures.size(disk)}", style))
            if pieces_len(pieces) <= width:
                break
        return pieces

    def _totals(self, engine: EngineState, width: int) -> list[Piece]:
        """The device's whole bill: weights and transients too, and the cap when there is one. Then what is below."""
        dim = palette.style(palette.now.dim)
        assert engine.memory is not None
        memory = engine.memory
        used = figures.size(sum(memory.device_bytes.values()))
        total = f"in all {used}"
        if memory.device_cap_bytes is not None:
            total = f"{used} of {figures.size(memory.device_cap_bytes)} cap"
        peak = f", peak {figures.size(memory.device_peak_bytes)}"
        terse = "" if engine.disk_bytes else used
        return ends([[(text, dim)] for text in (total + peak, total, terse)], self._below(engine), width)

    def _below(self, engine: EngineState) -> list[list[Piece]]:
        """The tiers below the device, as far as they are in use, in more words and in fewer."""
        style = palette.style(palette.engine_color(self.engine), bold=True)
        host, disk = figures.size(engine.host_bytes or 0), figures.size(engine.disk_bytes)
        if engine.disk_bytes:
            return [
                [(f"▒ host {host}  {_DISK} disk {disk}", style)],
                [(f"▒ {host} {_DISK} disk {disk}", style)],
                [(f"▒ {host} {_DISK} {disk}", style)],
            ]
        return [[(f"▒ host {host}", style)]] if engine.host_bytes else [[]]
