"""Numbers as people read them: aligned, with units, of fixed width where they change while one looks."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from engines.sizes import counted as counted
from engines.sizes import size as size


def rate(bytes_per_s: float) -> str:
    return f"{size(bytes_per_s)}/s"


def known(size_bytes: float | None) -> str:
    """A size; an en dash for one that nobody tells."""
    return "–" if size_bytes is None else size(size_bytes)


def seconds(duration_s: float | None) -> str:
    """ "26 ms", "2.10 s", "75 s"; an en dash for what is not known yet."""
    if duration_s is None:
        return "–"
    if duration_s < 0.9995:
        return f"{duration_s * 1000:.{0 if duration_s >= 0.00995 else 1}f} ms"
    return f"{duration_s:.{2 if duration_s < 9.995 else 1 if duration_s < 99.95 else 0}f} s"


def speed(tokens_per_s: float | None) -> str:
    """Tokens a second in at most five characters."""
    if tokens_per_s is None:
        return "–"
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 999.5 else 1}f}"


def clock(elapsed_s: float) -> str:
    minutes, rest = divmod(max(0.0, elapsed_s), 60)
    return f"{int(minutes):02d}:{rest:04.1f}" if rest < 59.95 else f"{int(minutes) + 1:02d}:00.0"


def change(value: float, reference: float) -> str:
    """ "−70 %", "+12 %", "±0 %"; empty when there is nothing to compare with."""
    if reference <= 0:
        return ""
    percent = round(100 * (value / reference - 1))
    sign = "−" if percent < 0 else "+" if percent else "±"
    return f"{sign}{abs(percent):,} %"


def share(part: float) -> str:
    """Of 1, as "12.3 %" or "0.0123 %"; "<0.0001 %" for what is too small to tell."""
    percent = part * 100
    if percent < 1e-4:
        return "<0.0001 %"
    magnitude = math.floor(math.log10(percent))
    return f"{percent:.{max(0, min(4, 2 - magnitude))}f} %"


def percents(parts: Sequence[float]) -> list[str]:
    """Parts of 1 as whole percents: they add up to 100 where the parts are all there is. Neither 0 nor 100 for what is
    not quite that: "<1 %", ">99 %"."""
    exact = [100 * part for part in parts]
    whole = [math.floor(value) for value in exact]
    by_rest = sorted(range(len(parts)), key=lambda at: whole[at] - exact[at])
    for at in by_rest[: round(sum(exact)) - sum(whole)]:
        whole[at] += 1
    return [_percent(part, value) for part, value in zip(parts, whole, strict=True)]


def _percent(part: float, value: int) -> str:
    if value < 1 and part > 0:
        return "<1 %"
    return ">99 %" if value == 100 and part < 1 - 1e-9 else f"{value} %"


_STEPS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def ceiling(value: float) -> float:
    """The next round number, so that a scale jumps now and then rather than creeping all the time."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(f"{value:.0f}") - 1) if value >= 1 else 1.0
    while value < power:
        power /= 10
    return power * _STEPS[bisect.bisect_left(_STEPS, value / power * (1 - 1e-9))]


def position_ceiling(tokens: int) -> int:
    """The right edge of a scale of token positions: at least 64, with an eighth of headroom at most."""
    step = max(8, 1 << max(0, tokens.bit_length() - 4))
    return max(64, -(-tokens // step) * step)
