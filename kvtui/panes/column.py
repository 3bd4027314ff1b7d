"""One engine's column: everything about it from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from engines.events import ENGINE_LABELS
from kvtui import palette
from kvtui.improvements import Knob
from kvtui.literal import one_line
from kvtui.panes.heatmap import Heatmap
from kvtui.panes.memory import MemoryGraph
from kvtui.panes.podium import Podium, presented
from kvtui.panes.stream import Stream
from kvtui.panes.transfer import TransferGraph
from kvtui.panes.vitals import Vitals
from kvtui.state import RunState

THIN = 28  # cells; there a title has none to spare


class Column(Vertical, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_text(-1)", "Scroll text", show=False),
        Binding("down", "scroll_text(1)", "Scroll text", show=False),
        Binding("pageup", "scroll_text(-8)", "Scroll text", show=False),
        Binding("pagedown", "scroll_text(8)", "Scroll text", show=False),
    ]

    def __init__(self, engine: str, number: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.engine, self.number = engine, number
        self._vitals, self._stream, self._memory = Vitals(engine), Stream(engine), MemoryGraph(engine)
        self._heatmap, self._transfer, self._podium = Heatmap(engine), TransferGraph(engine), Podium(engine)
        self._named: Any = None
        self._plot: Any = None
        self.add_class(palette.css_name(engine) if engine in ENGINE_LABELS else "other")

    def compose(self) -> ComposeResult:
        yield from (self._vitals, self._podium, self._stream, self._memory, self._heatmap, self._transfer)

    def show_text(self, state: RunState) -> None:
        """What has to be as quick as the tokens are."""
        self._stream.show(state)

    def show_figures(self, state: RunState) -> None:
        """What people can read only so fast."""
        engine = state.engines.get(self.engine)
        audience = presented(self)
        thin = self.size.width < THIN
        if engine is not None and (engine.label, engine.knobs, audience, thin) != self._named:
            self._named = engine.label, dict(engine.knobs), audience, thin
            title = f"{self.number} {one_line(engine.label)}"
            self.border_title = Content(title if thin else f" {title} ")  # a string would be markup
            self.border_subtitle = Content("" if audience else one_line(", ".join(_knobs(engine.knobs))))
        for pane in (self._vitals, self._podium, self._memory, self._heatmap, self._transfer):
            pane.show(state)
        if self._plot is not None:
            self._plot.show(state)

    async def zoom(self, zoomed: bool, state: RunState) -> None:
        """With a plot of all engines when zoomed. plotext is imported only then."""
        if not self.is_attached:  # on its way out
            return
        if zoomed and self._plot is None:
            from kvtui.panes.comparison import Comparison

            self._plot = Comparison()
            await self.mount(self._plot, after=self._memory)
        elif not zoomed and self._plot is not None:
            plot, self._plot = self._plot, None
            await plot.remove()
        self.show_text(state)
        self.show_figures(state)

    def action_scroll_text(self, lines: int) -> None:
        self._stream.scroll_back(-lines)


def _knobs(knobs: Mapping[str, Knob]) -> list[str]:
    """As few words as the lower border has room for, improvements first: which budget is in the header, too."""
    shown = {name: value for name, value in knobs.items() if name not in _NOBODYS_CHOICE and value not in _OFF}
    if shown.get("scoring") == shown.get("prefill"):
        shown.pop("scoring", None)
    order = sorted(shown, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    return [_knob(name, shown[name]) for name in order]


_FIRST = ("anchors", "scoring", "prefetch", "prefill", "budget", "budget_tokens", "alpha")
_NOBODYS_CHOICE = ("arena_tokens", "victim")
_OFF: tuple[Knob, ...] = (None, 0, "off")  # False is 0


def _knob(name: str, value: Knob) -> str:
    if name in ("prefill", "scoring", "prefetch"):
        return f"{value} {name}"
    short = {"heavy_share": "heavy", "partial_ratio": "partial", "alpha": "α"}.get(name, name.replace("_", " "))
    if value is True:
        return short
    return f"{short} {value:g}" if isinstance(value, float) else f"{short} {value}"
