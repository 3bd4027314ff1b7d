"""The app on a run of another machine: the same screens, and keys to change between runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from engines import commands
from kvtui import figures, palette
from kvtui.help_screen import WATCH_KEYS, HelpScreen
from kvtui.literal import brief
from kvtui.messages import Asked, FirstFrame
from kvtui.next_run import told_budget
from kvtui.overlaid import is_open
from kvtui.panes.header import WORKER_ENDED
from kvtui.panes.lines import Piece
from kvtui.recorded import RecordedApp
from kvtui.transport import NEEDS_A_WORKER
from kvtui.watching import MOST_RUNS, WatchSource, whose

LOOK_EVERY_S = 0.5
NEEDS_ITS_WORKER = NEEDS_A_WORKER | {"Pause or resume", "Step"}


class WatchApp(RecordedApp):
    """Shows what `source` hears. Its columns are numbered as they stand."""

    AFTER_THE_END = "nothing more comes (q: quit)"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right_square_bracket", "next_run(1)", "Next run", key_display="[ ]"),
        Binding("left_square_bracket", "next_run(-1)", "Run before", show=False),
        Binding("l", "runs", "Runs"),
        Binding("space", "refuse('the pace')", "Pause", show=False),
        Binding("full_stop", "refuse('the pace')", "Step", show=False),
        Binding("r", "refuse('what is run')", "Rerun", show=False),
        Binding("plus,equals_sign,minus", "refuse('the budget')", "Budget", show=False),
        *(Binding(str(n), "refuse('the set of engines')", "Engines", show=False) for n in range(1, 10)),
        Binding("i,slash,ctrl+n,ctrl+o", "refuse('what is asked')", "Ask", show=False),
        Binding("a,f,k,v", "refuse('the improvements')", "Improvements", show=False),
        Binding("x", "refuse('what is cancelled')", "Cancel", show=False),
        Binding("w", "refuse('the worker')", "Restart worker", show=False),
    ]

    def __init__(self, source: WatchSource, **options: Any) -> None:
        super().__init__(commands.WorkerConfig(model="a remote run", engines=[]), source, **options)
        self.watching = source
        self.catalogue.clear()  # the screens have this list, too: it is filled in place
        self.race.header.replayed = self._place
        self.race.composer.display = False

    def worker_end(self) -> str:
        run = self.watching.run
        return brief(whose(run.name, self.state.end)) if run is not None and self.state.end else super().worker_end()

    def shown_budget(self) -> float | None:
        return told_budget(self.state)

    async def refresh_race(self) -> None:
        self.catalogue[:] = self.state.engines
        await super().refresh_race()

    @on(FirstFrame)
    def _look_now_and_then(self) -> None:
        """Who is there, and whether the broker is, changes without any event."""
        self.set_interval(LOOK_EVERY_S, self.race.header.redraw)

    def _place(self, labelled: bool) -> list[Piece]:
        """For the header: whether it is live, and which of how many runs it is."""
        source, run = self.watching, self.watching.run
        if self.ended:
            word, color = "✖ stopped", palette.now.error
        elif source.standing.state != "connected":
            word, color = "◌ waiting for the broker", palette.now.warning
        elif run is None:
            word, color = "◌ no run yet", palette.now.dim
        elif run.state == "live" and self.state.end:
            word, color = WORKER_ENDED, palette.now.error
        elif run.state == "live":
            word, color = "● live", palette.now.good
        else:
            word, color = ("✖ gone", palette.now.error) if run.state == "gone" else ("■ ended", palette.now.dim)
        pieces: list[Piece] = [(word, palette.style(color, bold=True))]
        if run is not None:
            number = source.runs.index(run) + 1 if run in source.runs else 1
            pieces += [
                (f"  {number}/{len(source.runs)} " if len(source.runs) > 1 else "  ", palette.style(palette.now.dim)),
                (run.name if labelled else "", palette.style(palette.now.foreground)),
                (f" {figures.clock(self.state.clock_s)} ", palette.style(palette.now.foreground, bold=True)),
            ]
        if source.crowded and labelled:
            pieces.insert(0, (f"more than {MOST_RUNS} runs  ", palette.style(palette.now.warning)))
        if source.refused and labelled:
            pieces.insert(0, (f"{source.refused:,} refused  ", palette.style(palette.now.warning)))
        return pieces

    def action_next_run(self, direction: int) -> None:
        runs = self.watching.runs
        others = [run.id for run in runs]
        if others in ([], [self.watching.watched]):
            self.notify("There is no other run.", markup=False)
            return
        here = others.index(self.watching.watched) if self.watching.watched in others else 0
        self.watching.choose(others[(here + direction) % len(others)])

    def action_runs(self) -> None:
        from kvtui.runs_screen import RunsScreen

        if not is_open(self, RunsScreen):
            self.push_screen(RunsScreen(self.watching.runs, self.watching.watched), self._chosen)

    def _chosen(self, run: str | None) -> None:
        if run is not None and not self.watching.choose(run):
            self.notify("That run is not there any more.", markup=False)

    def action_refuse(self, what: str) -> None:
        self.notify(f"This is another machine's run: {what} cannot be changed from here.", markup=False)

    def action_help(self) -> None:
        if not is_open(self, HelpScreen):
            own, engines = getattr(self.screen, "KEYS", ()), self._engine_keys()
            self.push_screen(HelpScreen(WATCH_KEYS, own=own, engines=engines))

    @on(Asked)
    def _refuse_question(self, message: Asked) -> None:
        message.prevent_default()
        self.action_refuse("what is asked")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for command in super().get_system_commands(screen):
            if command.title not in NEEDS_ITS_WORKER and not command.title.endswith(" on or off"):
                yield command
        yield SystemCommand("Runs", "All that are published there, to choose one (l)", self.action_runs)
        yield SystemCommand("Next run", "Of those that are published there (])", lambda: self.action_next_run(1))
        yield SystemCommand("Run before", "Of those that are published there ([)", lambda: self.action_next_run(-1))
