"""The app: takes events from a source, keeps the state, turns keys into commands."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.css.query import NoMatches
from textual.driver import Driver
from textual.notifications import Notify, SeverityLevel
from textual.screen import Screen
from textual.worker import get_current_worker

from engines import commands, events
from kvtui.captioned import Captioned
from kvtui.command_palette import Commands
from kvtui.connecting import Connect, connecting
from kvtui.ending import Ending
from kvtui.help_screen import HelpScreen
from kvtui.improvements import IMPROVEMENTS
from kvtui.inspection import Place
from kvtui.keys import LIVE
from kvtui.leaving import on_signals
from kvtui.literal import brief, one_line
from kvtui.looks import Look
from kvtui.menu import menu
from kvtui.messages import Asked, EventsArrived, FirstFrame, Pointed, SourceEnded
from kvtui.next_run import NextRun
from kvtui.outbox import Outbox
from kvtui.overlaid import is_open
from kvtui.panes.composer import AskInput
from kvtui.panes.lines import Lines
from kvtui.paste import with_quick_pastes
from kvtui.race_screen import RaceScreen
from kvtui.source import Restored, Source, SourceEndedError
from kvtui.state import RunState

if TYPE_CHECKING:
    from kvtui.player import Player

FRAME_S = 1 / 10
GC_EVERY_OBJECTS = 20_000
PREPARE_AFTER_S = 1.0  # the first figures are on the screen
BUDGET_STEP = 0.05
NOTICES, NOTICES_WHERE_SHORT = 3, 1  # at a time: more would cover what the engines say
SHORT = 14  # lines; with fewer, an answer's end is close to the last
TYPED_ACTIONS = {
    "pause",
    "step",
    "rerun",
    "budget",
    "engine",
    "cancel",
    "restart",
    "help",
    "zoom",
    "heat",
    "ask",
    "save_screen",
    "improve",
    "theme",
    "document",
    "machine",
    "present",
}
SEVERITIES: dict[str, SeverityLevel] = {"info": "information", "warning": "warning", "error": "error"}


class KvtuiApp(Ending):
    """`config` is what the worker starts with, `connect` makes its source, for this race and any other; `source`
    replaces the worker (a trace, another machine, a test)."""

    TITLE = "kvtui"
    RECORDED = False  # whether what is shown is over, and nobody can be asked for more
    AFTER_THE_END = "press w to start it again"  # what can be done when the source has ended
    CSS_PATH = Path(__file__).with_name("app.tcss")
    BINDINGS: ClassVar[list[BindingType]] = LIVE

    def __init__(
        self,
        config: commands.WorkerConfig,
        source: Source | None = None,
        *,
        connect: Connect | None = None,
        look: Look | None = None,
        player: Player | None = None,
        leave_after_play: bool = False,
    ) -> None:
        super().__init__()
        self._player, self._leave_after_play = player, leave_after_play
        self.outbox = Outbox(self)
        self.config = config = self.outbox.watch(config)
        self._connect = connect or connecting()
        self.source: Source = source if source is not None else self._connect(config)
        self.state = RunState()
        known = [engine for engine in events.ENGINE_LABELS if engine != events.SERVER or config.server is not None]
        self.catalogue = [*config.engines, *(e for e in known if e not in config.engines)]
        self.next_run = NextRun(config, self.catalogue)
        self.fresh = False  # whether the next question starts a new conversation
        self.ended = False
        self._started_loop: asyncio.AbstractEventLoop | None = None
        self._leaving_with: int | None = None
        self._shown = threading.Event()
        self.race = RaceScreen(config, self.catalogue)
        self.dress(look or Look())

    def get_default_screen(self) -> Screen[Any]:
        return self.race

    def dress(self, look: Look) -> None:
        super().dress(look)
        self.race.set_class(look.present, "-presenter")

    def get_driver_class(self) -> type[Driver]:
        return with_quick_pastes(super().get_driver_class())

    def run(self, *arguments: Any, **options: Any) -> Any:
        """As `App.run`; whatever ends the app, the worker ends too. Signals are heard from before the terminal is
        changed, so that none of them leaves it as the app has it."""
        restore = on_signals(self.leave_with, lambda: self.source.close())
        try:
            return super().run(*arguments, **options)
        finally:
            self.source.close()
            restore()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that are letters and signs are text while the input line has the focus, also for the footer."""
        return not (isinstance(self.focused, AskInput) and action in TYPED_ACTIONS)

    async def on_mount(self) -> None:
        self.app_resume_signal.subscribe(self, self._resumed)
        self._started_loop = asyncio.get_running_loop()
        if self._leaving_with is not None:
            self.exit(None, self._leaving_with)

    def leave_with(self, code: int) -> None:
        """Ends the app with that exit code, as soon as it runs. For signals: may come at any moment."""
        self._leaving_with = code
        if self._started_loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._started_loop.call_soon_threadsafe(self.exit, None, code)

    def _resumed(self, _: object) -> None:
        """After fg the terminal is empty, and only what changes would be painted."""
        self.refresh(layout=True)

    @on(FirstFrame)
    def _first_frame(self) -> None:
        # A frame makes thousands of short-lived objects. With the default thresholds, looking for cycles among them and
        # among all that the start left behind took a tenth of this process's time.
        gc.freeze()
        gc.set_threshold(GC_EVERY_OBJECTS, 10, 10)
        self.listen()  # not earlier: the worker takes both cores for its imports
        self.set_timer(PREPARE_AFTER_S, self.prepare)
        if self._player is not None:
            self.play(self._player)

    @work(exclusive=True, group="play")
    async def play(self, player: Player) -> None:
        await player.play(self)
        if self._leave_after_play:
            self.exit()

    async def on_unmount(self) -> None:
        await asyncio.to_thread(self.source.close)

    @work(thread=True, group="prepare", exit_on_error=False)
    def prepare(self) -> None:
        """Imports what the first figures do not need and a later key would wait for: numpy, the other screens."""
        for module in ("panes.raster", "document_screen", "cache_screen", "machine_screen"):
            importlib.import_module(f"kvtui.{module}")

    @work(thread=True, exclusive=True, group="source", exit_on_error=False)
    def listen(self) -> None:
        """Drains the source in a thread; posts at most one message a frame, and none before the last was shown."""
        worker, source = get_current_worker(), self.source
        try:
            source.start()
            while not worker.is_cancelled:
                begun_s = time.monotonic()
                batch = source.receive(0.25)
                if not batch:
                    continue
                self._shown.clear()
                self.post_message(EventsArrived(batch))
                while not self._shown.wait(0.25) and not worker.is_cancelled:
                    pass
                time.sleep(max(0.0, FRAME_S - (time.monotonic() - begun_s)))
        except Exception as end:  # whatever ends this thread must be seen, or the screen would load for ever
            if not worker.is_cancelled:
                reason = str(end) if isinstance(end, SourceEndedError) else f"{type(end).__name__}: {end}"
                self.post_message(SourceEnded(reason))

    @on(EventsArrived)
    async def _take(self, message: EventsArrived) -> None:
        try:
            for event in message.batch:
                if isinstance(event, Restored):
                    self.state = event.state
                    self._forget_pictures()
                else:
                    self._apply(event)
            if all(isinstance(event, events.Sample) for event in message.batch):
                self._show_machine()
            else:
                await self.refresh_race()
        finally:
            self._shown.set()

    def _forget_pictures(self) -> None:
        for screen in self.screen_stack:
            for pane in screen.query(Lines):
                pane.forget()
        self.race.jumped = True

    def _apply(self, event: events.AnyEvent) -> None:
        try:
            self.state.apply(event)
        except ValueError as fault:
            self.notify(str(fault), severity="warning", markup=False)
        self.outbox.heard(event)
        if isinstance(event, events.RunStarted):
            self.next_run.begun(self.state)
        elif isinstance(event, events.Notice):
            self.notify(brief(event.text), severity=SEVERITIES.get(event.level, "information"), markup=False)

    def _show_machine(self) -> None:
        """Of what is idle only this changes, four times a second."""
        if self.screen_stack and (show := getattr(self.screen, "show_machine", None)) is not None:
            show(self.state)

    async def refresh_race(self) -> None:
        """Shows the state as it is now, on the race's screen or on the one over it that shows it, too."""
        if not self.screen_stack:  # events may still come while the screens are taken down
            return
        show_state = getattr(self.screen, "show_state", None)
        if show_state is not None:
            show_state(self.state)
            return
        self.race.header.cancelling = self.outbox.cancelling
        invitation = "paste a document, or ask …"
        if self._follows_up():
            invitation = "ask a follow-up, or paste a document (ctrl+n: new conversation)"
        try:
            await self.race.show(
                self.state,
                budget=self.shown_budget(),
                changes=self.next_run.changes(self.state),
                ended=self.ended,
                invitation=invitation,
            )
        except NoMatches:  # events may still come while the screen is taken down
            if self.race.is_running:
                raise

    @on(Notify)
    def _make_room(self, message: Notify) -> None:
        """For a notice that comes: the oldest go, and those that said the same."""
        for old in list(self._notifications):
            if old.message == message.notification.message:
                self._unnotify(old, refresh=False)
        most = NOTICES_WHERE_SHORT if self.size.height < SHORT else NOTICES
        for old in list(self._notifications)[: 1 - most or None]:
            self._unnotify(old, refresh=False)

    @on(SourceEnded)
    async def _source_ended(self, message: SourceEnded) -> None:
        self.ended = bool(message.reason)
        if self.ended:
            self.outbox.put_all_back()
            last = self.state.notices[-1] if self.state.notices else None
            reason = last.text if self.state.started is None and last is not None and last.level == "error" else ""
            log = getattr(self.source, "log_path", None)
            where = f" · log: {log}" if log is not None else ""
            cause = brief(reason or message.reason)
            self.race.banner(f"✖ {cause} — {self.AFTER_THE_END}{where}")
            self.tell_beneath(f"{cause} — {self.AFTER_THE_END}")
        await self.refresh_race()

    def tell_beneath(self, what: str) -> None:
        """That something stands on the race's screen, where another one covers it."""
        if self.screen_stack and self.screen is not self.race:
            self.notify(what, severity="error", markup=False)

    def shown_budget(self) -> float | None:
        """For the header; None is not known."""
        return self.next_run.budget_of(self.state)

    def _follows_up(self) -> bool:
        """A conversation that was cancelled is gone from the caches."""
        current = [engine.current for engine in self.state.engines.values()]
        there = [r for r in current if r is not None and (r.outcome is None or r.outcome.outcome != "cancelled")]
        return not self.fresh and bool(there)

    @on(Asked)
    async def _asked(self, message: Asked) -> None:
        if self.ended:
            self.race.composer.put_back(message.document, message.question, message.name)
            self.notify("The worker has ended: Esc, then w starts it again. What you wrote is kept.", markup=False)
            return
        self.outbox.send(message, follow_up=self._follows_up())
        self.fresh = False
        if self.state.status == "paused":
            self.notify("Paused: press space to go on.", markup=False)
        elif self.state.busy:
            self.notify("Asked. It comes after what is in the stream.", markup=False)
        await self.refresh_race()

    def action_command_palette(self) -> None:
        if not CommandPalette.is_open(cast(App[object], self)):
            self.push_screen(Commands())

    async def action_quit(self) -> None:
        self.leave()

    def leave(self) -> None:
        """A model that never came is a fault of input, here as without a screen."""
        if not self.leaving:
            self.exit(None, 2 if self.ended and self.state.started is None else 0)

    def get_key_display(self, binding: Binding) -> str:
        """One key an engine, as many as there are."""
        engines = binding.action == "engine(1)"
        return f"1-{len(self.catalogue)}" if engines else super().get_key_display(binding)

    def action_pause(self) -> None:
        self.source.send(commands.Resume() if self.state.status == "paused" else commands.Pause())

    def action_step(self) -> None:
        if self.state.status != "paused":
            self.source.send(commands.Pause())
        self.source.send(commands.Step())

    def action_rerun(self) -> None:
        self.source.send(commands.Rerun())

    async def action_cancel(self) -> None:
        self.outbox.cancel()
        await self.refresh_race()

    async def action_budget(self, direction: int) -> None:
        asked = self.next_run.budget
        before = asked if asked is not None else self.next_run.budget_of(self.state)
        budget = round(min(1.0, max(BUDGET_STEP, before + direction * BUDGET_STEP)), 4)
        self.next_run.budget = budget
        self.source.send(commands.SetBudget(budget=budget))
        await self.refresh_race()

    async def action_improve(self, id: str) -> None:
        """An improvement on or off, for the next run."""
        improvement = next(i for i in IMPROVEMENTS if i.id == id)
        if self.next_run.ask_improvement(id):
            self.source.send(improvement.on)
            self.notify(f"{improvement.name}: {improvement.effect}.", markup=False)
        else:
            self.source.send(improvement.off)
        await self.refresh_race()

    async def action_engine(self, number: int) -> None:
        """Engines that are off are left out of the next run; one always stays."""
        if number > len(self.catalogue):
            return
        if not self.next_run.ask_engine(self.catalogue[number - 1]):
            self.notify("One engine has to stay.", severity="warning", markup=False)
            return
        self.source.send(commands.SetEngines(engines=self.next_run.engines))
        await self.refresh_race()

    async def action_new_conversation(self) -> None:
        self.fresh = True
        await self.refresh_race()
        self.race.action_ask()

    async def action_restart(self) -> None:
        if self.ended:
            await self._start_over()

    async def restart(self, config: commands.WorkerConfig) -> None:
        """Another race: the worker ends, and one of `config` begins."""
        self.workers.cancel_group(self, "source")
        await asyncio.to_thread(self.source.close)
        self.config = self.outbox.watch(config)
        self.source = self._connect(self.config)
        await self._start_over()

    async def caption(self, text: str | None) -> None:
        """A line for the audience, until the next one; None takes it away."""
        for screen in self._captioned():
            screen.caption(text)

    def action_present(self) -> None:
        """For an audience, and back."""
        on = not self.race.presented
        for screen in self._captioned():
            screen.present(on)

    def _captioned(self) -> list[Captioned[Any]]:
        return [screen for screen in self.screen_stack if isinstance(screen, Captioned)]

    async def _start_over(self) -> None:
        self.ended, self.next_run = False, NextRun(self.config, self.catalogue)
        self.state = RunState()
        self.outbox.watch(self.config)
        self.race.banner("")
        await self.race.start_over()
        await self.refresh_race()
        self.listen()

    def action_save_screen(self) -> None:
        from kvtui import screenshot

        screenshot.take(self)

    @on(Pointed)
    def _pointed(self, message: Pointed) -> None:
        self.action_cache(message.place)

    def action_open(self) -> None:
        from kvtui.file_picker import FilePicker

        if not is_open(self, FilePicker):
            self.push_screen(FilePicker(), self._picked)

    def _picked(self, path: Path | None) -> None:
        if path is not None:
            self.call_later(self._open, path)  # the picker itself is still there

    async def _open(self, path: Path) -> None:
        """The input line, where it will stand, is on the race's screen."""
        while self.screen is not self.race:
            await self.screen.dismiss()
        self.race.composer.open(path)

    def action_document(self) -> None:
        from kvtui.document_screen import DocumentScreen, first_to_read

        if is_open(self, DocumentScreen):
            return
        masked = not self.look.colors
        engine = first_to_read(self.state, self.race.active)
        self._cover(DocumentScreen(self.state, self.catalogue, self.source.send, engine, masked))

    def action_cache(self, place: Place | None = None) -> None:
        from kvtui.cache_screen import CacheScreen

        if not is_open(self, CacheScreen):
            self._cover(CacheScreen(self.state, self.catalogue, self.source.send, place, self.RECORDED))

    def action_machine(self) -> None:
        from kvtui.machine_screen import MachineScreen

        if not is_open(self, MachineScreen):
            self._cover(MachineScreen(self.state))

    def _cover(self, screen: Captioned[None]) -> None:
        """The race, which goes on beneath."""
        screen.go_on_from(self.race)
        self.push_screen(screen, self._race_again)

    async def _race_again(self, _: None) -> None:
        await self.refresh_race()

    def action_help(self) -> None:
        if not is_open(self, HelpScreen):
            self.push_screen(HelpScreen(own=getattr(self.screen, "KEYS", ()), engines=self._engine_keys()))

    def _engine_keys(self) -> list[tuple[str, str]]:
        """Number keys, and whom they stand for."""
        keys = []
        for number, engine in enumerate(self.catalogue, 1):
            there = engine in self.state.engines or self.state.started is None
            name = one_line(events.ENGINE_LABELS.get(engine, engine))
            keys.append((str(number), name if there else f"{name}, not in this run"))
        return keys

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Everything that has a key, and Textual's own; not its themes: engine colours are chosen for this one."""
        for command in super().get_system_commands(screen):
            if command.title not in ("Theme", "Screenshot"):
                yield command
        commands_of = getattr(screen, "get_commands", None)
        if commands_of is not None:
            yield from commands_of()
        yield from menu(self)
