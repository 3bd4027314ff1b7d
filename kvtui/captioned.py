"""Screens that speak to the audience: what a script says, and in presenter mode what the run gives rise to."""

from __future__ import annotations

from typing import Any

from textual.screen import ScreenResultType

from kvtui.panes.caption import CaptionBar
from kvtui.sturdy import Sturdy


class Captioned(Sturdy[ScreenResultType]):
    """Subclasses place `captions`, and show it each state."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.captions = CaptionBar()

    def caption(self, text: str | None) -> None:
        """A line of a script, until the next one; None takes it away."""
        self.set_class(text is not None, "-said")
        self.captions.override(text)

    @property
    def presented(self) -> bool:
        """Whether it is in presenter mode."""
        return self.has_class("-presenter")

    def present(self, on: bool) -> None:
        self.set_class(on, "-presenter")

    def go_on_from(self, other: Captioned[Any]) -> None:
        """Before it covers `other`: says what that says."""
        self.captions.go_on_from(other.captions)
        self.caption(other.captions.said)
        self.present(other.presented)
