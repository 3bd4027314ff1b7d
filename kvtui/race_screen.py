"""The one screen: header, prompt stream, a column an engine, verdict, input."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static, Tab, Tabs

from engines.commands import WorkerConfig
from kvtui import figures, palette
from kvtui.captioned import Captioned
from kvtui.messages import FirstFrame
from kvtui.names import name_of
from kvtui.panes.column import Column
from kvtui.panes.composer import AskInput, Composer
from kvtui.panes.header import Header
from kvtui.panes.key_footer import KeyFooter
from kvtui.panes.legend import Legend
from kvtui.panes.machine_line import MachineLine
from kvtui.panes.prompts import Prompts
from kvtui.panes.splash import Splash
from kvtui.panes.verdict import Verdict
from kvtui.panes.vitals import state_of
from kvtui.state import RunState

QUIET_S = 1 / 4  # without events for so long, all figures are brought up to date

# Cells of the screen, and of a column where there are many: from when on they are side by side, and with air around.
WIDE_FROM, COLUMN_FROM, AIRY_COLUMN_FROM = 100, 24, 32

MOST_FACTS = 2  # of a tab
TAB_PADDING = 2  # cells


class RaceScreen(Captioned[None]):
    """Shows a `RunState`; whoever owns the state calls `show` after each change."""

    AUTO_FOCUS = ""
    # Not ClassVar: Textual declares them as variables of instances, too.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE_FROM, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny"),
        (14, "-short"),
        (30, "-normal"),
        (44, "-tall"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,shift+tab", "move(-1)", "Column left", show=False),
        Binding("right,tab", "move(1)", "Column right", show=False),
        Binding("escape", "back", "Back", show=False),
    ]

    active: reactive[str] = reactive("")

    def __init__(self, config: WorkerConfig, catalogue: list[str]) -> None:
        super().__init__()
        self._catalogue = catalogue  # engines in the order of their number keys
        self._columns: list[Column] = []
        self._state = RunState()
        self._turn = self._turn_before = 0
        self.jumped = False  # the next state does not follow from the last: figures have to jump at once, too
        self.header, self._splash = Header(config), Splash(config.model, config.engines)
        self._prompts, self._verdict = Prompts([prompt.title for prompt in config.prompts]), Verdict()
        self._legend, self._machine, self.composer = Legend(), MachineLine(), Composer()

    def compose(self) -> ComposeResult:
        yield self.header
        yield self._machine
        yield Static("", id="banner", markup=False)
        yield self._prompts
        yield self._splash
        yield Vertical(id="race")
        yield self._verdict
        yield self.captions
        yield self.composer
        yield KeyFooter()

    @property
    def _engines(self) -> list[str]:
        return [column.engine for column in self._columns]

    def on_mount(self) -> None:
        self.set_interval(QUIET_S, self._catch_up)
        self.app.theme_changed_signal.subscribe(self, lambda _: self._recolor())
        self.call_after_refresh(self.post_message, FirstFrame())

    async def show(
        self, state: RunState, *, budget: float | None, changes: list[str], ended: bool, invitation: str
    ) -> None:
        """Text at once, figures in turn. `changes` are what was asked for from the next run on, `invitation` what the
        input line says."""
        self._state = state
        self.composer.invite(invitation, state.started.context_limit if state.started else None)
        self.header.show(state, budget=budget, changes=changes, ended=ended)
        self._prompts.show(state)
        self.show_machine(state)
        if state.started is None:
            if self._columns:  # a recording was taken back to before its engines were ready
                await self.start_over()
            self._splash.show(state)
            self._show_rest()
            return
        if list(state.engines) != self._engines:
            await self._rebuild(list(state.engines))
            self._show_figures()
        for column in self._columns:
            if column.display:
                column.show_text(state)
        if self.jumped:
            self.jumped = False
            self._show_figures()
        else:
            self._show_some_figures()

    def show_machine(self, state: RunState) -> None:
        """After samples of the hardware, which come in idle hours, too."""
        self._machine.show(state)

    def _show_some_figures(self) -> None:
        """Figures of one column a frame, in turn: nobody reads them faster, all at once would hold up keys three times
        as long, and a repaint of their own would cost as much again as the text's."""
        self._turn += 1
        if self._columns:
            column = self._columns[self._turn % len(self._columns)]
            if column.display:
                column.show_figures(self._state)
        if self._turn % 3 == 0:
            self._show_rest()

    def _catch_up(self) -> None:
        if self._turn == self._turn_before and self.is_active:
            self._show_figures()
        self._turn_before = self._turn

    def _show_figures(self) -> None:
        for column in self._columns:
            if column.display:
                column.show_figures(self._state)
        self._show_rest()

    def _show_rest(self) -> None:
        self._verdict.show(self._state)
        self._legend.show(self._state)
        self.captions.show(self._state)
        if self.has_class("-narrow"):
            self._label_tabs()

    async def _rebuild(self, engines: list[str]) -> None:
        self._columns = []  # what is not mounted yet can be neither zoomed nor drawn
        race = await self._clear()
        # By their place: not every engine's name would do as an id ("h2o+").
        tabs = Tabs(*(Tab(self._label(engine), id=f"tab-{index}") for index, engine in enumerate(engines)))
        tabs.can_focus = False
        self._divide(len(engines))
        columns, self._legend = [Column(engine, self._number(engine)) for engine in engines], Legend()
        await race.mount(tabs, Horizontal(*columns, id="columns"), self._legend)
        self._columns = columns
        self._splash.display, race.display = False, True
        before, self.active = self.active, ""
        self.active = before if before in engines else engines[0] if engines else ""

    async def start_over(self) -> None:
        """Back to the splash, for a worker that starts again."""
        self._columns = []
        race = await self._clear()
        self._splash.display, race.display = True, False

    async def _clear(self) -> Vertical:
        """Without columns. Their focus would go to the input line, and keys would become text."""
        if not isinstance(self.focused, AskInput):
            self.set_focus(None)
        race = self.query_one("#race", Vertical)
        await race.remove_children()
        return race

    def _divide(self, columns: int) -> None:
        """Side by side as long as each column has room to be read, else one at a time, with tabs."""
        wide = max(WIDE_FROM, COLUMN_FROM * columns)
        airy = max(wide, AIRY_COLUMN_FROM * columns)
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (wide, "-dense"), (airy, "-wide")]
        self.set_class(self.size.width < wide, "-narrow")
        self.set_class(wide <= self.size.width < airy, "-dense")
        self.set_class(self.size.width >= airy, "-wide")

    def _engine_of(self, tab: Tab) -> str:
        """Empty for a tab of columns that are gone, or not there yet."""
        index = int((tab.id or "").removeprefix("tab-"))
        return self._columns[index].engine if tab.is_attached and index < len(self._columns) else ""

    def _number(self, engine: str) -> int:
        return self._catalogue.index(engine) + 1 if engine in self._catalogue else len(self._catalogue) + 1

    async def watch_active(self, active: str) -> None:
        for column in self._columns:
            chosen = column.engine == active
            column.set_class(chosen, "-active")
            if chosen and not isinstance(self.focused, AskInput):
                self.set_focus(column)  # at once: `focus` waits, and could be overtaken by the next key's
        for tabs in self.query(Tabs):
            tab = f"tab-{self._engines.index(active)}" if active in self._engines else ""
            if tab and tabs.query(f"#{tab}"):  # none where another race has begun, or all is taken down
                tabs.active = tab
        await self._zoom(self.has_class("-zoomed"))

    def banner(self, text: str) -> None:
        """A line under the header that stays until it is replaced; empty to take it away."""
        for banner in self.query("#banner").results(Static):  # none while the screen is taken down
            banner.update(text)
            banner.display = bool(text)

    def action_move(self, step: int) -> None:
        engines = self._engines
        if engines:
            at = engines.index(self.active) if self.active in engines else 0
            self.active = engines[(at + step) % len(engines)]

    async def action_zoom(self) -> None:
        await self._zoom(not self.has_class("-zoomed"))

    async def _zoom(self, zoomed: bool) -> None:
        self.set_class(zoomed, "-zoomed")
        for column in self._columns:
            await column.zoom(zoomed and column.engine == self.active, self._state)
        self._show_columns()

    def action_heat(self) -> None:
        self.toggle_class("-heat")

    def present(self, on: bool) -> None:
        super().present(on)
        self._show_columns()

    def action_ask(self) -> None:
        self.set_focus(self.composer.input)

    async def action_back(self) -> None:
        await self._zoom(False)

    def _show_columns(self) -> None:
        """Columns that come into sight take in what they missed."""
        self.call_after_refresh(self._refresh_columns)

    def _refresh_columns(self) -> None:
        for column in self._columns:
            if column.display:
                column.show_text(self._state)
        self._show_figures()

    @on(AskInput.Left)
    def _leave_input(self) -> None:
        column = next((c for c in self._columns if c.engine == self.active), None)
        self.set_focus(column)

    @on(Tabs.TabActivated)
    def _tab_chosen(self, message: Tabs.TabActivated) -> None:
        message.stop()
        if message.tab is message.tabs.active_tab:  # an older one's would go back, and be answered, for ever
            self.active = self._engine_of(message.tab) or self.active

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, Column) and event.widget is self.focused:  # not one of two keys ago
            self.active = event.widget.engine

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self.composer.take_paste(event.text)

    def on_resize(self, event: events.Resize) -> None:
        self._show_columns()

    def _recolor(self) -> None:
        """What was not drawn by lines holds colours of its own."""
        self._splash.recolor()
        self._label_tabs()
        self._show_columns()

    def _label_tabs(self) -> None:
        """In as many words as leave room for all tabs."""
        tabs = [(tab, self._engine_of(tab)) for tab in self.query(Tab)]
        for facts in range(MOST_FACTS, -1, -1):
            labels = [self._label(engine, facts) for _, engine in tabs]
            if sum(label.cell_length + TAB_PADDING for label in labels) <= self.size.width:
                break
        for (tab, _), label in zip(tabs, labels, strict=True):
            if not tab.label.is_same(label):
                tab.label = label

    def _label(self, engine: str, facts: int = 0) -> Content:
        """One engine in a tab's width: enough to compare all without switching. Of the `facts`, 1 is the speed, 2 the
        cache's size as well."""
        name = name_of(engine)
        state = self._state.engines.get(engine)
        request = state.current if state is not None else None
        if state is None or request is None:
            return Content.styled(name, palette.engine_color(engine))
        glyph, _ = state_of(request, self._state.status)
        told = f" {figures.speed(request.tokens_per_s):>4}/s" if facts else ""
        if state.cache_bytes and facts == MOST_FACTS:
            told += f" {figures.size(state.cache_bytes)}"
        if request.first_difference is not None:
            told += " ≠"
        return Content.assemble((f"{glyph} {name}", f"bold {palette.engine_color(engine)}"), told)
