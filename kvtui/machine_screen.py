"""The machine on the whole screen: graphs over time of its GPUs, its host, and the engines' traffic."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from kvtui.captioned import Captioned
from kvtui.help_screen import MACHINE_KEYS
from kvtui.machine import Place, place
from kvtui.overlaid import Dismissable
from kvtui.panes.gauges import Gauges
from kvtui.panes.key_footer import KeyFooter
from kvtui.state import RunState

WINDOWS_S = (30.0, 120.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)


class MachineScreen(Captioned[None], Dismissable[None]):
    """Shows a `RunState`; whoever owns the state calls `show_state` after each change."""

    AUTO_FOCUS = ""
    KEYS = MACHINE_KEYS
    # Not ClassVar: Textual declares them as variables of instances, too.
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (14, "-short"), (30, "-normal")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,g", "dismiss", "Back", key_display="esc"),
        Binding("plus,equals_sign", "span(-1)", "Time", key_display="+ −"),
        Binding("minus", "span(1)", "Longer", show=False),
        Binding("tab", "next_gpu(1)", "GPU"),
        Binding("shift+tab", "next_gpu(-1)", "GPU before", show=False),
    ]

    def __init__(self, state: RunState) -> None:
        super().__init__()
        self._state, self._window = state, 1
        self._chosen: Place | None = None
        self._gauges = Gauges()

    def compose(self) -> ComposeResult:
        yield self._gauges
        yield self.captions
        yield KeyFooter()

    def on_mount(self) -> None:
        self.show_state(self._state)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the race's screen that mean nothing here are not offered either."""
        if action == "next_gpu":
            return len(self._places()) > 1
        return hasattr(self, f"action_{action}")

    def show_state(self, state: RunState) -> None:
        several = len(self._places()) > 1
        self._state = state
        if several != (len(self._places()) > 1):
            self.refresh_bindings()
        if self._chosen not in self._places():  # its driver is lost, or a recording was taken back
            self._chosen = None
        self._gauges.show(state, WINDOWS_S[self._window], self._chosen)
        self.captions.show(state)

    show_machine = show_state

    def _places(self) -> list[Place | None]:
        """All GPUs together, then each where there are several, and each slice."""
        latest = self._state.machine.latest
        places = [place(gpu) for gpu in latest.gpus] if latest is not None else []
        return [None, *places] if len(places) > 1 else [None]

    def action_span(self, step: int) -> None:
        self._window = min(max(0, self._window + step), len(WINDOWS_S) - 1)
        self.show_state(self._state)

    def action_next_gpu(self, step: int) -> None:
        places = self._places()
        self._chosen = places[(places.index(self._chosen) + step) % len(places)]
        self.show_state(self._state)
