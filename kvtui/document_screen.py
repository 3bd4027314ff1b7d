"""The document on the whole screen: its words as an engine has them, or what each of them has left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding, BindingType

from engines.commands import Command, Focus
from kvtui.captioned import Captioned
from kvtui.fading import RESCUED, Kind
from kvtui.help_screen import DOCUMENT_KEYS
from kvtui.inspection import Place
from kvtui.names import name_of
from kvtui.overlaid import Dismissable
from kvtui.panes.document import DocumentPane
from kvtui.panes.document_header import DocumentHeader, DocumentLegend
from kvtui.panes.inspector import Inspector
from kvtui.panes.key_footer import KeyFooter
from kvtui.panes.search_bar import SearchBar
from kvtui.reading import ALL, Reading
from kvtui.state import PAGED, RunState

NOTICE_S = 3.0  # short: notices cover words
LOOK_S = 1.0  # between looks at the whole document, for its figures and its map


def first_to_read(state: RunState, chosen: str) -> str:
    """The engine to open the document with: the `chosen` one, or if that is the paged one, which never forgets, the
    first that has evicted anything."""
    forgetful = (e.id for e in state.engines.values() if e.cache is not None and e.cache.evicted_tokens >= 1)
    return next(forgetful, chosen) if chosen in ("", PAGED) else chosen


class DocumentScreen(Captioned[None], Dismissable[None]):
    """Shows a `RunState`; whoever owns the state calls `show_state` after each change. `catalogue` are the engines in
    the order of their number keys, `send` takes what the engines should know: which layer is looked at. `masked`:
    evicted words are dots from the beginning, for terminals without colours."""

    AUTO_FOCUS = ""
    KEYS = DOCUMENT_KEYS
    # Not ClassVar: Textual declares them as variables of instances, too.
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-short"), (30, "-normal")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", key_display="esc"),
        Binding("d", "dismiss", "Back to the race", show=False),
        Binding("tab", "next_engine(1)", "Engine"),
        Binding("shift+tab", "next_engine(-1)", "Engine before", show=False),
        *(Binding(str(n), f"choose({n})", f"Engine {n}", show=False) for n in range(1, 10)),
        Binding("a", "choose(0)", "All engines", show=False),
        Binding("left", "move(-1)", "Move", key_display="← →"),
        Binding("right", "move(1)", "Next token", show=False),
        Binding("up", "move_lines(-1)", "Up", show=False),
        Binding("down", "move_lines(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "home", "Beginning", show=False),
        Binding("end", "end", "End", show=False),
        Binding("n", "evicted", "Evicted"),
        Binding("N", "rescued", "Rescued", key_display="N"),
        Binding("slash", "search", "Search", key_display="/"),
        Binding("f", "found(1)", "Next match", show=False),
        Binding("F", "found(-1)", "Match before", show=False),
        Binding("left_square_bracket", "layer(-1)", "Layer", key_display="[ ]"),
        Binding("right_square_bracket", "layer(1)", "Next layer", show=False),
        Binding("m", "mask", "Dots"),
    ]

    def __init__(
        self,
        state: RunState,
        catalogue: list[str],
        send: Callable[[Command], None],
        engine: str = ALL,
        masked: bool = False,
    ) -> None:
        super().__init__()
        self._state, self._catalogue, self._send = state, catalogue, send
        self._reading = Reading(engine)
        self._layer: int | None = None
        self._around = False  # whether the last step of the search was
        self._header = DocumentHeader(self._reading, catalogue)
        self._pane, self._legend = DocumentPane(self._reading), DocumentLegend(self._reading)
        self._pane.masked = self._legend.masked = masked
        self._inspector, self._search_bar = Inspector(), SearchBar()

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._pane
        yield self._inspector
        yield self.captions
        yield self._legend
        yield self._search_bar
        yield KeyFooter()

    def on_mount(self) -> None:
        self.set_interval(LOOK_S, self._look)
        self._reading.take(self._state)
        self.captions.show(self._state)
        self.call_after_refresh(self._look)

    def on_unmount(self) -> None:
        if self._layer is not None:
            self._send(Focus())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the race's screen that mean nothing here are not offered either."""
        return hasattr(self, f"action_{action}")

    def get_commands(self) -> Iterable[SystemCommand]:
        """For the command palette."""
        yield SystemCommand("Next evicted word", "In no layer any more (n)", self.action_evicted)
        yield SystemCommand("Next rescued word", "Fetched back or an anchor (N)", self.action_rescued)
        yield SystemCommand("Search the document", "Its words, whatever the case (/)", self.action_search)
        yield SystemCommand("Next match", "Of the search (f)", lambda: self.action_found(1))
        yield SystemCommand("Match before", "Of the search (F)", lambda: self.action_found(-1))
        yield SystemCommand("Evicted words as letters or dots", "Dots show without colours (m)", self.action_mask)
        yield SystemCommand("All engines over one text", "A line of glyphs each (a)", lambda: self.action_choose(0))
        yield SystemCommand("Next engine", "Its words alone (tab)", lambda: self.action_next_engine(1))
        yield SystemCommand("Next layer", "To be told of (])", lambda: self.action_layer(1))
        yield SystemCommand("Layer before", "To be told of ([)", lambda: self.action_layer(-1))
        yield SystemCommand("Beginning of the document", "Its first word (home)", self.action_home)
        yield SystemCommand("End of the document", "And on with what is added (end)", self.action_end)
        yield SystemCommand("Back to the race", "From the document (esc)", self.action_dismiss)

    def show_state(self, state: RunState) -> None:
        self._state = state
        self._pane.show(state)
        self.captions.show(state)
        self._show_cursor()
        self._count()

    def _look(self) -> None:
        self._reading.look()
        self._draw()

    @on(DocumentPane.Moved)
    def _draw(self) -> None:
        self._pane.redraw()
        self._header.redraw()
        self._legend.redraw()
        self._show_cursor()

    def _show_cursor(self) -> None:
        """What is known of the token under it."""
        place = None
        if not self._reading.empty:
            script = self._reading.script
            place = Place(script.position_of(self._reading.cursor), self._layer, engine=script.engine)
        self._inspector.show(self._state, place)

    # Engines

    def action_choose(self, number: int) -> None:
        """0 is all of them."""
        if number == 0:
            self._choose(ALL)
        elif number <= len(self._catalogue) and self._catalogue[number - 1] in self._state.engines:
            self._choose(self._catalogue[number - 1])

    def action_next_engine(self, step: int) -> None:
        choices = [*self._state.engines, ALL]
        at = choices.index(self._reading.engine) if self._reading.engine in choices else 0
        self._choose(choices[(at + step) % len(choices)])

    def _choose(self, engine: str) -> None:
        self._reading.choose(engine)
        self._look()

    # Moving

    def action_move(self, tokens: int) -> None:
        self._reading.move(tokens)
        self._draw()

    def action_move_lines(self, lines: int) -> None:
        self._reading.move_lines(lines)
        self._draw()

    def action_page(self, pages: int) -> None:
        self._reading.page(pages)
        self._draw()

    def action_home(self) -> None:
        self._reading.home()
        self._draw()

    def action_end(self) -> None:
        self._reading.end()
        self._draw()

    def action_evicted(self) -> None:
        self._jump("evicted everywhere", Kind.EVICTED)

    def action_rescued(self) -> None:
        self._jump("fetched back or held by an anchor", *RESCUED)

    def _jump(self, what: str, *kinds: Kind) -> None:
        around = self._reading.jump(*kinds)
        if around is None:
            text = f"No token is {what} in {name_of(self._reading.engine)}."
            if self._reading.engine == ALL:
                other = self._reading.elsewhere(*kinds)
                text = f"No token is {what} in any engine."
                if other is not None:
                    text = f"No token of this text is {what}; {name_of(other)} has such in its own: tab goes there."
            self.notify(text, markup=False, timeout=NOTICE_S)
        elif around:
            self.notify(f"Around the end: the first one that is {what}.", markup=False, timeout=NOTICE_S)
        self._draw()

    def action_layer(self, step: int) -> None:
        """Through the layers, and all of them between the last and the first."""
        layers = max((engine.cache.layers for engine in self._state.engines.values() if engine.cache), default=0)
        at = (0 if self._layer is None else self._layer + 1) + step
        at %= layers + 1
        self._layer = at - 1 if at else None
        self._send(Focus(layer=self._layer))
        self._show_cursor()

    def action_mask(self) -> None:
        self._pane.masked = self._legend.masked = not self._pane.masked
        self._draw()

    # Searching

    def action_search(self) -> None:
        self._legend.display = False
        self._search_bar.open()

    @on(SearchBar.Searched)
    def _searched(self, message: SearchBar.Searched) -> None:
        self._around = False
        self._reading.find(message.query)
        self._draw()
        self._count()

    @on(SearchBar.Stepped)
    def _stepped(self, message: SearchBar.Stepped) -> None:
        self.action_found(message.by)

    def action_found(self, by: int) -> None:
        """To the match after the current one, or before; to the field, while nothing is searched for."""
        if self._reading.search is None:
            self.action_search()
            return
        self._around = self._reading.find_next(by)
        self._draw()
        self._count()

    @on(SearchBar.Accepted)
    def _accepted(self) -> None:
        self.set_focus(None)
        self._count()

    async def action_back(self) -> None:
        """From a search to the document, from there to the race."""
        if self._search_bar.display:
            self._search_bar.action_close()
        else:
            await self.action_dismiss()

    @on(SearchBar.Closed)
    def _search_closed(self) -> None:
        self._reading.find("")
        self._legend.display = True
        self.set_focus(None)
        self._draw()

    def _count(self) -> None:
        search = self._reading.search
        if search is None:
            self._search_bar.say("")
        elif not len(search):
            self._search_bar.say("nothing found")
        else:
            keys = "" if self._search_bar.has_focus_within else "  f next  F before"
            around = "around the end · " * self._around
            self._search_bar.say(f"{around}{search.current + 1:,} of {len(search):,}{keys}")
