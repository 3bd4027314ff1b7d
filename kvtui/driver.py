"""Textual's driver, with a second pair of eyes: what goes to the terminal goes into a recording too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.driver import Driver

if TYPE_CHECKING:
    from kvtui.cast import CastWriter


def recording(driver: type[Driver], cast: CastWriter) -> type[Driver]:
    """A driver class like `driver` that also feeds `cast`, frame by frame, and tells the person when it ends."""

    class RecordingDriver(driver):  # type: ignore[valid-type,misc]
        def write(self, data: str) -> None:
            super().write(data)
            cast.add(data)

        def flush(self) -> None:
            """Textual calls this after each repaint."""
            super().flush()
            ended = cast.end_frame(tuple(self._app.size))
            if ended:
                self._app.call_later(self._app.notify, ended, severity="warning", markup=False)

    return RecordingDriver
