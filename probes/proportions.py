"""Shares of counted answers, with 95 % intervals."""

from __future__ import annotations

from math import sqrt

Z_95 = 1.959964


def wilson(right: int, asked: int) -> tuple[float, float]:
    """Wilson's score interval of right / asked."""
    from scipy.stats import binomtest

    interval = binomtest(right, asked).proportion_ci(0.95, "wilson")
    return float(interval.low), float(interval.high)


def relative_drop(both: int, reference_only: int, other_only: int) -> tuple[float, float, float] | None:
    """How much smaller the other's share of right answers is than the reference's, as a share of the reference's, when
    both were asked the same questions; and its interval. The counts are questions that both, only the reference, and
    only the other answered rightly. None where the reference answered none.

    Bonett and Price's hybrid Wilson score interval of a ratio of paired proportions (Statistics in Medicine 25, 2006,
    3039-3047): it is not of width nothing when the two always agree.
    """
    reference, other = both + reference_only, both + other_only
    if not reference:
        return None
    asked = both + reference_only + other_only
    spread = sqrt((reference_only + other_only + 2) / ((reference + 1) * (other + 1)))
    parts = [sqrt((1 - (right + 1) / (asked + 2)) / (right + 1)) for right in (reference, other)]
    z = spread / sum(parts) * Z_95
    reference_low, reference_high = _score(reference, asked, z)
    other_low, other_high = _score(other, asked, z)
    return 1 - other / reference, 1 - other_high / reference_low, 1 - other_low / reference_high


def _score(right: int, asked: int, z: float) -> tuple[float, float]:
    """Wilson's interval at another level than 95 %."""
    middle, spread = 2 * right + z * z, z * sqrt(z * z + 4 * right * (1 - right / asked))
    return (middle - spread) / (2 * (asked + z * z)), (middle + spread) / (2 * (asked + z * z))
