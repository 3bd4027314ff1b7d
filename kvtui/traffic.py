"""What the link has done for one request, from the first token of its answer on."""

from __future__ import annotations

from dataclasses import dataclass

from engines.events import Transfer


@dataclass
class Traffic:
    """Bytes to the device that were `fetched`, and those that were `saved` as the entries were there still; seconds
    that the link worked, and those of them that computation hid."""

    fetched_bytes: int = 0
    saved_bytes: int = 0
    busy_s: float = 0.0
    hidden_s: float = 0.0
    _hit_bytes: float = 0.0
    _looked_bytes: int = 0

    def add(self, event: Transfer) -> None:
        self.fetched_bytes += event.h2d_bytes
        self.saved_bytes += event.saved_bytes
        self.busy_s += event.busy_s
        self.hidden_s += event.hidden_s
        if event.hit_rate is not None:
            wanted = event.h2d_bytes + event.saved_bytes
            self._hit_bytes += event.hit_rate * wanted
            self._looked_bytes += wanted

    @property
    def hit_rate(self) -> float | None:
        """Share (0..1) of the selected entries that were on the device, each event's weighed by the bytes that it was
        about; None where nothing stays."""
        return self._hit_bytes / self._looked_bytes if self._looked_bytes else None

    @property
    def hidden_share(self) -> float | None:
        """0..1, of the time that the link worked; None while it did not."""
        return min(1.0, self.hidden_s / self.busy_s) if self.busy_s else None
