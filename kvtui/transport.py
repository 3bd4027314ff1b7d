"""The app on a recording: the same screens, with keys that move through time in place of those that need a worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual import on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from engines import commands, events
from kvtui import figures, palette
from kvtui.help_screen import REPLAY_KEYS, HelpScreen
from kvtui.messages import Asked, FirstFrame
from kvtui.overlaid import is_open
from kvtui.panes.lines import Piece
from kvtui.panes.scrubber import Scrubber
from kvtui.recorded import RecordedApp
from kvtui.replay import TraceSource
from kvtui.trace import TraceReader

SEEK_S = 5.0
LOOK_EVERY_S = 0.25
NEEDS_A_WORKER = {
    "Rerun",
    "Cancel",
    "Budget up",
    "Budget down",
    "Ask",
    "Open a file",
    "New conversation",
    "Restart worker",
}


class ReplayApp(RecordedApp):
    """Shows what `source` plays."""

    AFTER_THE_END = "the recording cannot be played on (q: quit)"
    BINDINGS: ClassVar[list[BindingType]] = [
        # Square brackets too, but document and cache have those for themselves.
        Binding("less_than_sign", f"seek(-{SEEK_S})", "Seek", key_display="< >"),
        Binding("left_square_bracket", f"seek(-{SEEK_S})", "Back", show=False),
        Binding("right_square_bracket,greater_than_sign", f"seek({SEEK_S})", "Forward", show=False),
        Binding("left_curly_bracket", "speed(0.5)", "Speed", key_display="{ }"),
        Binding("right_curly_bracket", "speed(2)", "Faster", show=False),
        Binding("0", "rewind", "Beginning", show=False),
        Binding("r", "rewind", "Beginning", show=False),
        Binding("plus,equals_sign", "refuse('the budget')", "Budget", show=False),
        Binding("minus", "refuse('the budget')", "Budget", show=False),
        *(Binding(str(n), "refuse('the set of engines')", "Engines", show=False) for n in range(1, 10)),
        Binding("i,slash,ctrl+n,ctrl+o", "refuse('what was asked')", "Ask", show=False),
        Binding("a,f,k,v", "refuse('the improvements')", "Improvements", show=False),
        Binding("x", "refuse('what was cancelled')", "Cancel", show=False),
        Binding("w", "refuse('the worker')", "Restart worker", show=False),
    ]

    def __init__(self, source: TraceSource, **options: Any) -> None:
        super().__init__(config_of(source.reader), source, **options)
        self.recording = source
        source.shown = lambda: self.state
        self._scrubber = Scrubber()
        self.race.header.replayed = self._place
        self.race.composer.display = False

    @on(FirstFrame)
    async def _mount_scrubber(self) -> None:
        await self.race.mount(self._scrubber, after=self.race.composer)
        self.set_interval(LOOK_EVERY_S, self._show_place)

    async def refresh_race(self) -> None:
        await super().refresh_race()
        self._show_place()

    def _show_place(self) -> None:
        """Time goes on where nothing was said, too."""
        self.race.header.redraw()
        recording = self.recording
        self._scrubber.show(recording.position_s / recording.duration_s if recording.duration_s else 1.0)

    def _place(self, labelled: bool) -> list[Piece]:
        """For the header: how it plays, where it is, and how long it is."""
        recording = self.recording
        if self.ended:
            word, color = "✖ stopped", palette.now.error
        elif recording.ended:
            word, color = "■ cut off here" if recording.reader.cut_off else "■ end", palette.now.dim
        elif recording.paused:
            word, color = "‖ paused", palette.now.warning
        else:
            word, color = "▶ replay", palette.now.good
        now, end = figures.clock(recording.position_s), figures.clock(recording.duration_s)
        return [
            (f"{word} ×{recording.speed:g}", palette.style(color, bold=True)),
            ("  recording " if labelled else "  ", palette.style(palette.now.dim)),
            (now, palette.style(palette.now.foreground, bold=True)),
            (f" / {end} ", palette.style(palette.now.dim)),
        ]

    def action_pause(self) -> None:
        stands = self.recording.paused or self.recording.ended
        self.recording.send(commands.Resume() if stands else commands.Pause())

    def action_step(self) -> None:
        if not self.recording.paused:
            self.recording.send(commands.Pause())
        self.recording.send(commands.Step())

    def action_seek(self, seconds: float) -> None:
        self.recording.seek(self.recording.position_s + seconds)
        self._show_place()

    def action_rewind(self) -> None:
        self.recording.send(commands.Rerun())

    def action_speed(self, factor: float) -> None:
        self.recording.set_speed(self.recording.speed * factor)
        self._show_place()

    def action_refuse(self, what: str) -> None:
        self.notify(f"This is a recording: {what} cannot be changed any more.", markup=False)

    def action_help(self) -> None:
        if not is_open(self, HelpScreen):
            own, engines = getattr(self.screen, "KEYS", ()), self._engine_keys()
            self.push_screen(HelpScreen(REPLAY_KEYS, own=own, engines=engines))

    @on(Scrubber.Moved)
    def _moved(self, message: Scrubber.Moved) -> None:
        self.recording.seek(message.share * self.recording.duration_s)

    @on(Asked)
    def _refuse_question(self, message: Asked) -> None:
        message.prevent_default()
        self.action_refuse("what was asked")

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for command in super().get_system_commands(screen):
            if command.title not in NEEDS_A_WORKER and not command.title.endswith(" on or off"):
                yield command
        yield SystemCommand("Back", f"{SEEK_S:g} seconds of the recording ([)", lambda: self.action_seek(-SEEK_S))
        yield SystemCommand("Forward", f"{SEEK_S:g} seconds of the recording (])", lambda: self.action_seek(SEEK_S))
        yield SystemCommand("Slower", "Half the speed ({)", lambda: self.action_speed(0.5))
        yield SystemCommand("Faster", "Double the speed (})", lambda: self.action_speed(2.0))
        yield SystemCommand("Beginning", "Of the recording (0)", self.action_rewind)


def config_of(reader: TraceReader) -> commands.WorkerConfig:
    """What the recorded run was started with, as far as the screen asks."""
    for batch in reader:
        for event in batch:
            if isinstance(event, events.RunStarted):
                budgets = [info.knobs.get("budget") for info in event.engines]
                budget = next((float(b) for b in budgets if isinstance(b, (int, float))), 0.3)
                return commands.WorkerConfig(
                    model=event.model, engines=[info.id for info in event.engines], budget=budget
                )
    return commands.WorkerConfig()
