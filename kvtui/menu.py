"""The commands of the app, as its palette lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from engines import events
from kvtui.improvements import IMPROVEMENTS

if TYPE_CHECKING:
    from kvtui.app import KvtuiApp


def menu(app: KvtuiApp) -> Iterator[SystemCommand]:
    """Everything that has a key."""
    yield SystemCommand("Pause or resume", "Stop and go on with all engines (space)", app.action_pause)
    yield SystemCommand("Step", "While paused: one step for each engine (.)", app.action_step)
    yield SystemCommand("Rerun", "The running conversation's stream, with fresh caches (r)", app.action_rerun)
    yield SystemCommand("Cancel", "End what is running and queued (x)", app.action_cancel)
    yield SystemCommand("Budget up", "From the next run on (+)", lambda: app.action_budget(1))
    yield SystemCommand("Budget down", "From the next run on (−)", lambda: app.action_budget(-1))
    for i in IMPROVEMENTS:
        effect = f"{i.effect[0].upper()}{i.effect[1:]} ({i.key})"
        yield SystemCommand(f"{i.name} on or off", effect, lambda id=i.id: app.action_improve(id))
    for number, engine in enumerate(app.catalogue, 1):
        title = f"{events.ENGINE_LABELS.get(engine, engine)} on or off"
        yield SystemCommand(title, f"From the next run on ({number})", lambda n=number: app.action_engine(n))
    yield SystemCommand("Zoom column", "One engine on the whole screen (enter)", app.race.action_zoom)
    yield SystemCommand("Larger cache pictures", "More lines for layers × positions (h)", app.race.action_heat)
    yield SystemCommand("Presenter mode", "Large, with captions, for an audience (p)", app.action_present)
    yield SystemCommand("Light or dark", "The other of the two (t)", app.action_theme)
    yield SystemCommand("Document", "Its words, fading where an engine has let them go (d)", app.action_document)
    yield SystemCommand("Cache on the whole screen", "Zoom, heads, what is known of a token (c)", app.action_cache)
    yield SystemCommand("Machine", "GPU, link, CPU and memory over time (g)", app.action_machine)
    yield SystemCommand("Ask", "To the input line (i)", app.race.action_ask)
    yield SystemCommand("Open a file", "The document that the next question is about (ctrl+o)", app.action_open)
    yield SystemCommand("New conversation", "From the input line on (ctrl+n)", app.action_new_conversation)
    yield SystemCommand("Restart worker", "After it ended (w)", app.action_restart)
    yield SystemCommand("Save screen", "As a picture, SVG (s)", app.action_save_screen)
    yield SystemCommand("Suspend", "Back to the shell; fg goes on (ctrl+z)", app.action_suspend_process)
    yield SystemCommand("Help", "All keys, and what the glyphs mean (?)", app.action_help)
