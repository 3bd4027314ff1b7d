"""What all screens have in common: they bear what comes while a widget goes, and faster than they can be laid out."""

from __future__ import annotations

from textual import events
from textual.geometry import Offset
from textual.screen import Screen, ScreenResultType
from textual.widget import Widget


class Sturdy(Screen[ScreenResultType]):
    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """As Textual's, which finds a widget that was removed until the next layout, and then asks for its parent."""
        widget, offset = super().get_widget_and_offset_at(x, y)
        return (widget, offset) if widget is self or (widget is not None and widget.is_attached) else (None, None)

    async def _on_resize(self, event: events.Resize) -> None:
        """Of many sizes in a row only the newest is laid out: a large screen takes a tenth of a second."""
        if event.size != self.app.size:
            event.stop()
            event.prevent_default()
