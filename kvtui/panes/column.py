"""One engine's column: everything about it from top to bottom."""

from __future__ import annotations

from typing import Any, ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content

from engines.events import ENGINE_LABELS, SERVER
from kvtui import palette
from kvtui.literal import one_line
from kvtui.names import OTHER, served
from kvtui.panes import borders
from kvtui.panes.heatmap import Heatmap
from kvtui.panes.memory import MemoryGraph
from kvtui.panes.podium import Podium, presented
from kvtui.panes.stream import Stream
from kvtui.panes.transfer import TransferGraph
from kvtui.panes.vitals import Vitals
from kvtui.state import RunState

THIN = 28  # cells; there a title has none to spare
AROUND_LABEL = 6  # cells of a border: its corners, a line and a space at each end


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
        model = served(state, engine) if engine is not None else ""
        named = (audience, thin, model, self.outer_size.width, palette.now.name)
        if engine is not None and (engine.label, engine.knobs, *named) != self._named:
            self._named = engine.label, dict(engine.knobs), *named
            title = f"{self.number} {one_line(engine.label)}"
            room = self.outer_size.width - AROUND_LABEL
            self.border_title = self._titled(title if thin else f" {title} ", model, room)
            self.border_subtitle = Content("" if audience else borders.knobs_told(engine.knobs, room))
        for pane in (self._vitals, self._podium, self._memory, self._heatmap, self._transfer):
            pane.show(state)
        if self._plot is not None:
            self._plot.show(state)

    async def zoom(self, zoomed: bool, state: RunState) -> None:
        """With a plot of all engines' bytes when zoomed, where it has any. plotext is imported only then."""
        if not self.is_attached:  # on its way out
            return
        if zoomed and self._plot is None and self.engine != SERVER:
            from kvtui.panes.comparison import Comparison

            self._plot = Comparison()
            await self.mount(self._plot, after=self._memory)
        elif not zoomed and self._plot is not None:
            plot, self._plot = self._plot, None
            await plot.remove()
        self.show_text(state)
        self.show_figures(state)

    def _titled(self, title: str, model: str, room: int) -> Content:
        """The engine's name and, of a server, its model's: that stands out when it is another model than here."""
        if self.engine != SERVER:
            return Content(title)  # a string would be markup
        ground = palette.now.background
        self.styles.border_title_background = ground  # the engine's colour ends with its name
        named = f" {borders.model_told(model, room - cell_len(title) - 1)}" if model else ""
        mark = f"bold {palette.now.warning}" if model.startswith(OTHER) else palette.now.dim
        color = palette.engine_color(self.engine)
        return Content.assemble((title, f"bold {ground} on {color}"), (named, f"{mark} on {ground}"))

    def action_scroll_text(self, lines: int) -> None:
        self._stream.scroll_back(-lines)
