"""The cache picture on the whole screen: every engine's, on one scale of positions, with a cursor to ask with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from engines.commands import Command, Focus
from kvtui import cache_view
from kvtui.cache_view import View
from kvtui.captioned import Captioned
from kvtui.help_screen import CACHE_KEYS
from kvtui.inspection import Place, position_in
from kvtui.overlaid import Dismissable
from kvtui.panes.cache_picture import CachePicture, gutter
from kvtui.panes.cache_title import CacheTitle
from kvtui.panes.inspector import Inspector
from kvtui.panes.key_footer import KeyFooter
from kvtui.panes.legend import Legend
from kvtui.panes.ruler import Ruler
from kvtui.state import EngineState, RunState

NOTICE_S = 4.0
QUIET_S = 1 / 4  # without events for so long, all pictures are brought up to date
PAN = 1 / 2  # of the window


class CacheScreen(Captioned[None], Dismissable[None]):
    """Shows a `RunState`; whoever owns the state calls `show_state` after each change. `catalogue` are the engines in
    the order of their number keys, `send` takes what the engines should know: which layer is looked at; those that are
    `recorded` heed it no more."""

    AUTO_FOCUS = ""
    KEYS = CACHE_KEYS
    # Not ClassVar: Textual declares them as variables of instances, too.
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-short"), (30, "-normal")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,c", "dismiss", "Back", key_display="esc"),
        Binding("left", "move(-1)", "Move", key_display="← →"),
        Binding("right", "move(1)", "Right", show=False),
        Binding("up", "row(-1)", "Up", show=False),
        Binding("down", "row(1)", "Down", show=False),
        Binding("plus,equals_sign", "zoom_in(1)", "Zoom", key_display="+ −"),
        Binding("minus", "zoom_in(-1)", "Zoom out", show=False),
        Binding("shift+left,pageup", "pan(-1)", "Pan", key_display="⇧← →"),
        Binding("shift+right,pagedown", "pan(1)", "Pan right", show=False),
        Binding("home", "place(0)", "First position", show=False),
        Binding("end,f", "follow", "Follow", key_display="f"),
        Binding("m", "mode", "Heads"),
        Binding("left_square_bracket", "layer(-1)", "Layer", key_display="[ ]"),
        Binding("right_square_bracket", "layer(1)", "Next layer", show=False),
        Binding("l", "log", "Log"),
        Binding("tab", "next_engine(1)", "Engine"),
        Binding("shift+tab", "next_engine(-1)", "Engine before", show=False),
        *(Binding(str(n), f"only({n})", f"Engine {n} only", show=False) for n in range(1, 10)),
        Binding("a", "only(0)", "All engines", show=False),
    ]

    def __init__(
        self,
        state: RunState,
        catalogue: list[str],
        send: Callable[[Command], None],
        place: Place | None = None,
        recorded: bool = False,
    ) -> None:
        super().__init__()
        self._recorded = recorded
        self._state, self._catalogue, self._send = state, catalogue, send
        self._tokens = self._longest()
        self._view = View(cursor=self._tokens - 1)
        if place is not None:
            self._view = View(cursor=place.position, layer=place.layer, head=place.head)
        self._counted_in = place.engine if place is not None else ""  # the engine whose position the cursor's is
        self._pictures: list[CachePicture] = []
        self._only = ""  # the one engine that is shown; empty: all
        self._focused_layer: int | None = None
        self._turn = self._turn_before = 0
        self._title, self._box, self._ruler, self._inspector = CacheTitle(), Vertical(), Ruler(), Inspector()
        self._legend = Legend()

    def compose(self) -> ComposeResult:
        yield self._title
        yield Vertical(self._box, self._ruler, self._inspector)
        yield self.captions
        yield self._legend
        yield KeyFooter()

    def on_mount(self) -> None:
        self.set_interval(QUIET_S, self._catch_up)
        self._rebuild()
        self._look(self._view)

    def on_unmount(self) -> None:
        if self._focused_layer is not None:
            self._send(Focus())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the race's screen that mean nothing here are not offered either."""
        return hasattr(self, f"action_{action}")

    def show_state(self, state: RunState) -> None:
        """One picture a call, in turn, as nobody sees them faster; all of them where the window has moved."""
        self._state = state
        if not self._box.is_attached:
            return
        if list(state.engines) != [picture.engine for picture in self._pictures]:
            self._rebuild()
        before = cache_view.window(self._view, self._tokens)
        self._clamp(self._view)
        self._turn += 1
        shown = self._shown()
        if before == cache_view.window(self._view, self._tokens) and shown:
            shown = [shown[self._turn % len(shown)]]
        self._draw(shown)

    def _look(self, view: View) -> None:
        """Shows everything as `view` says, and says which layer that is about."""
        self._clamp(view)
        if self._view.layer != self._focused_layer:
            self._focused_layer = self._view.layer
            self._send(Focus(layer=self._focused_layer))
        self._draw(self._shown())

    def _clamp(self, view: View) -> None:
        grown_from, self._tokens = self._tokens, self._longest()
        layers = max((engine.cache.layers for engine in self._state.engines.values() if engine.cache), default=0)
        heads = self._state.started.kv_heads if self._state.started is not None else 0
        self._view = cache_view.clamped(view, self._tokens, layers, heads, grown_from=grown_from)

    def _longest(self) -> int:
        return max((engine.cache.tokens for engine in self._state.engines.values() if engine.cache), default=0)

    def _draw(self, pictures: list[CachePicture]) -> None:
        for picture in pictures:
            picture.show(self._state.engines.get(picture.engine), self._view, self._tokens, self._cursor_in(picture))
        self._title.show(self._state, self._view, self._tokens)
        self.captions.show(self._state)
        self._legend.show(self._state)
        self._ruler.show(self._view, self._tokens)
        self._inspector.show(self._state, self._place() if self._tokens else None)

    def _place(self) -> Place:
        return Place(self._view.cursor, self._view.layer, self._view.head, self._counted_in)

    def _cursor_in(self, picture: CachePicture) -> int | None:
        """Where that engine has the token under the cursor."""
        engine = self._state.engines.get(picture.engine)
        return position_in(self._state, self._place(), engine) if engine is not None else None

    def _catch_up(self) -> None:
        if self._turn == self._turn_before:
            self._draw(self._shown())
        self._turn_before = self._turn

    def _rebuild(self) -> None:
        """A picture for each engine that there is."""
        if not self._box.is_attached:  # gone before it was there
            return
        engines = list(self._state.engines)
        number = {engine: n for n, engine in enumerate(self._catalogue, 1)}
        self._pictures = [CachePicture(e, number.get(e, len(number) + 1)) for e in engines]
        if self._only not in engines:
            self._only = ""
        self._box.remove_children()
        self._box.mount(*self._pictures)
        if not engines:
            self._box.mount(Static("Nothing has been read yet. Esc leads back.", id="nothing"))
        self._choose()

    def _choose(self) -> None:
        if (engine := self._state.engines.get(self._only)) is not None:
            self._count_in(engine)
        for picture in self._pictures:
            picture.display = self._only in ("", picture.engine)
        if self._view.heads:
            self._look_at_heads(self._view.layer or 0)
        self.call_after_refresh(lambda: self._draw(self._shown()))

    def _count_in(self, engine: EngineState) -> None:
        """From now on the cursor's position is this engine's; it stays on its token, if the engine has it."""
        position = position_in(self._state, self._place(), engine)
        self._counted_in = engine.id
        if position is not None:
            self._view = cache_view.placed(self._view, position, self._tokens)

    def _shown(self) -> list[CachePicture]:
        return [picture for picture in self._pictures if picture.display]

    def _columns(self) -> int:
        width = self._ruler.size.width
        return max(1, width - gutter(width))

    def action_move(self, cells: int) -> None:
        self._look(cache_view.moved(self._view, cells, self._tokens, self._columns()))

    def action_place(self, position: int) -> None:
        self._look(cache_view.placed(self._view, position, self._tokens))

    def action_pan(self, direction: int) -> None:
        _, span = cache_view.window(self._view, self._tokens)
        self._look(cache_view.panned(self._view, direction * max(1, round(span * PAN)), self._tokens))

    def action_zoom_in(self, steps: int) -> None:
        self._look(cache_view.zoomed(self._view, steps, self._tokens))

    def action_row(self, step: int) -> None:
        """Through the layers, or the heads where they are shown; before the first come all of them."""
        if self._view.heads:
            self._look(replace(self._view, head=_stepped(self._view.head, step)))
        else:
            self._look(replace(self._view, layer=_stepped(self._view.layer, step)))

    def action_layer(self, step: int) -> None:
        layer = _stepped(self._view.layer, step)
        if self._view.heads:
            self._look_at_heads(max(0, layer or 0))
        else:
            self._look(replace(self._view, layer=layer))

    def action_mode(self) -> None:
        if self._view.heads:
            self._look(replace(self._view, heads=False, head=None))
        else:
            self._look_at_heads(self._view.layer or 0)

    def _look_at_heads(self, wanted: int) -> None:
        """Of that layer, or, where nobody answers who could be asked for it, of the nearest one that was seen."""
        layer: int | None = wanted
        if self._recorded or self._state.status != "racing":
            engines = (self._state.engines.get(picture.engine) for picture in self._shown())
            seen = [engine.cache.heads for engine in engines if engine is not None and engine.cache is not None]
            layer = cache_view.seen_layer(self._view, wanted, seen)
            text = "No other layer has been seen head by head yet."
            if layer is not None:
                where = " in all engines" if any(wanted in layers for layers in seen) else ""
                text = f"Layer {wanted + 1} has not been seen head by head{where}: layer {layer + 1} is shown instead."
            if layer != wanted:
                self.notify(text, markup=False, timeout=NOTICE_S)
        if layer is not None or not self._view.heads:
            self._look(replace(self._view, heads=True, layer=layer or 0))

    def action_log(self) -> None:
        self._look(replace(self._view, log=not self._view.log))

    def action_follow(self) -> None:
        """Follows the tail; where it does so already, lets it go."""
        follows = self._view.follow and self._view.cursor >= self._tokens - 1
        self._look(replace(self._view, follow=False) if follows else cache_view.followed(self._view, self._tokens))

    def action_only(self, number: int) -> None:
        """One engine on the whole screen, by its number; 0: all."""
        chosen = next((picture.engine for picture in self._pictures if picture.number == number), "")
        if chosen or not number:
            self._only = chosen
            self._choose()

    def action_next_engine(self, step: int) -> None:
        choices = ["", *(picture.engine for picture in self._pictures)]
        self._only = choices[(choices.index(self._only) + step) % len(choices)]
        self._choose()

    @on(CachePicture.Picked)
    def _picked(self, message: CachePicture.Picked) -> None:
        self._counted_in = message.engine
        view = cache_view.placed(self._view, message.position, self._tokens)
        self._look(replace(view, head=message.row) if view.heads else replace(view, layer=message.row))

    @on(CachePicture.Wheeled)
    def _wheeled(self, message: CachePicture.Wheeled) -> None:
        self._look(cache_view.zoomed(self._view, message.steps, self._tokens, around=message.position))

    def on_resize(self, event: Any) -> None:
        self.call_after_refresh(lambda: self._draw(self._shown()))


def _stepped(row: int | None, step: int) -> int | None:
    """The next row; None stands before the first. What is too far is for `cache_view.clamped`."""
    after = (-1 if row is None else row) + step
    return None if after < 0 else after
