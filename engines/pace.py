"""When a request came, when its tokens did, and what has moved meanwhile: the figures of its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from engines.link import Traffic


class Figures(TypedDict):
    """Those of `events.Outcome`: seconds, tokens a second, bytes; None where nothing came."""

    ttft_s: float | None
    tpot_s: float | None
    decode_tok_s: float | None
    h2d_bytes: int
    d2h_bytes: int


@dataclass
class Pace:
    """Moments on the engine's clock, and the link's bytes (to the device, to the host) before the request."""

    arrival_s: float = 0.0
    traffic_before: tuple[int, int] = (0, 0)
    first_token_s: float | None = None
    last_token_s: float | None = None

    @classmethod
    def from_now(cls, now_s: float, traffic: Traffic) -> Pace:
        return cls(now_s, (traffic.h2d_bytes, traffic.d2h_bytes))

    def token(self, now_s: float) -> None:
        """One more has come."""
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s

    def figures(self, new_tokens: int, traffic: Traffic) -> Figures:
        """So far, with that many tokens of the answer."""
        ttft_s = tpot_s = None
        if self.first_token_s is not None and self.last_token_s is not None:
            ttft_s = self.first_token_s - self.arrival_s
            if new_tokens > 1:
                tpot_s = (self.last_token_s - self.first_token_s) / (new_tokens - 1)
        h2d_before, d2h_before = self.traffic_before
        return Figures(
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            decode_tok_s=1 / tpot_s if tpot_s else None,
            h2d_bytes=traffic.h2d_bytes - h2d_before,
            d2h_bytes=traffic.d2h_bytes - d2h_before,
        )
