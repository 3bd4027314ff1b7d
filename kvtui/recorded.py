"""The app on a run whose worker is out of reach: over, or another machine's. How that worker ended stays on the screen,
as long as the state that is shown has it."""

from __future__ import annotations

from kvtui.app import KvtuiApp
from kvtui.literal import brief


class RecordedApp(KvtuiApp):
    RECORDED = True
    _told_end = ""

    def worker_end(self) -> str:
        """Why the worker ended, in one line; "" while it lives."""
        return brief(self.state.end)

    async def refresh_race(self) -> None:
        if not self.ended:  # else the banner says why nothing comes
            self._tell_end(self.worker_end())
        await super().refresh_race()

    def _tell_end(self, why: str) -> None:
        if why == self._told_end:
            return
        self._told_end = why
        self.race.banner(f"✖ {why}" if why else "")
        if why:
            self.tell_beneath(why)
