"""The runs that are published under a prefix, to choose one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from kvtui.overlaid import Dialog
from kvtui.watching import Run

_SIGNS = {"live": "●", "ended": "■", "gone": "✖"}


class RunsScreen(Dialog[str | None]):
    """The live ones first, and the newest of each. Dismissed with a run's id, or with None when the person would rather
    stay."""

    DEFAULT_CSS = """
    RunsScreen { align: center middle; }
    RunsScreen > Vertical { width: 76; max-width: 96%; height: auto; max-height: 92%; border: round $foreground;
                            background: $panel; padding: 0 2; border-title-style: bold; }
    RunsScreen OptionList { background: $panel; border: none; height: auto; max-height: 20; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,l,q", "dismiss", "Stay")]

    def __init__(self, runs: Sequence[Run], watched: str | None) -> None:
        super().__init__()
        self._runs = sorted(runs, key=lambda run: (run.state != "live", -run.since_s))
        self._watched = watched

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title, box.border_subtitle = " Runs ", " enter: watch it · esc: stay "
            if self._runs:
                yield OptionList(*(Option(self._line(run), id=run.id) for run in self._runs))
            else:
                yield OptionList(Option(Content("none yet"), disabled=True))

    def on_mount(self) -> None:
        ids = [run.id for run in self._runs]
        if self._watched in ids:
            self.query_one(OptionList).highlighted = ids.index(self._watched)

    @on(OptionList.OptionSelected)
    def _selected(self, message: OptionList.OptionSelected) -> None:
        message.stop()
        self.dismiss(message.option.id)

    def _line(self, run: Run) -> Content:
        here = "  (shown)" if run.id == self._watched else ""
        return Content.assemble(
            (f"{_SIGNS.get(run.state, '')} {run.state:<6}", "bold"),
            f" {run.name}  {run.model}  ",
            (f"{run.since[:16].replace('T', ' ')}{here}", "dim"),
        )
