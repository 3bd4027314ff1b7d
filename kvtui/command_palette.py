"""Textual's palette of all commands, for people and keys that are faster than it."""

from __future__ import annotations

from textual import events, on
from textual.command import CommandPalette
from textual.errors import NoWidget
from textual.message import Message
from textual.widgets import Button, Input, OptionList

from kvtui.overlaid import Dismissable


class Commands(CommandPalette, Dismissable[None]):
    """A command is run once, however often it was chosen before the palette had gone."""

    def _on_click(self, event: events.Click) -> None:  # type: ignore[override]
        """Textual's own asks what is there, which is nothing once the terminal has become smaller than that."""
        try:
            self.get_widget_at(event.screen_x, event.screen_y)
        except NoWidget:
            event.prevent_default()

    @on(Input.Submitted)
    @on(Button.Pressed)
    @on(OptionList.OptionSelected)
    def _choose_once(self, message: Message) -> None:
        if not self.is_active:
            message.stop()
            message.prevent_default()
