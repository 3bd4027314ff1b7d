"""The part of the app that dresses it: colours, characters, and for whom the screen is."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import App
from textual.binding import Binding
from textual.filter import LineFilter

from kvtui import palette, spelling
from kvtui.looks import Look


class Dressing(App[None]):
    """`dress` before the app runs; `t` changes between dark and light while it does."""

    look = Look()

    def dress(self, look: Look) -> None:
        self.look = look
        self._show_look()

    def _show_look(self) -> None:
        """Everything is drawn anew by Textual, with the palette that is there by then."""
        palette.use(self.look.palette)
        spelling.use(self.look.ascii)
        self.register_theme(palette.now.theme())
        self.theme = palette.now.name
        self.set_class(not self.look.colors, "-mono")
        self.set_class(self.look.ascii, "-ascii")

    def get_line_filters(self) -> Sequence[LineFilter]:
        return self.look.filters(super().get_line_filters())

    def get_key_display(self, binding: Binding) -> str:
        return spelling.keys(super().get_key_display(binding))

    def action_theme(self) -> None:
        if not self.look.colors:
            self.notify("There are no colours here: the terminal's own are used.", markup=False)
            return
        self.look.dark = not self.look.dark
        self._show_look()
