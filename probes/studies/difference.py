"""Whether two sets of measurements differ, or only seem to.

Repeats: Mann and Whitney's rank test, over all ways of sharing the figures out among the two where those can be gone
through. Counts: Fisher's exact test. Several tests at once: Holm's correction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import comb

ALPHA = 0.05
MOST_WAYS = 20_000  # of sharing out that are gone through; with more repeats, the normal approximation is good


@dataclass(frozen=True)
class Test:
    """`p` is two-sided, `least_p` the smallest that so many measurements could give. `rise` is above 0 where B has
    more than A, below where it has less."""

    p: float
    least_p: float
    rise: float


def of_repeats(a: list[float], b: list[float]) -> Test:
    """One figure or more of each."""
    import numpy as np
    from scipy import stats

    ranks = stats.rankdata([*a, *b])
    ranks_a, ranks_b = ranks[: len(a)], ranks[len(a) :]
    rise = float(ranks_b.mean() - ranks_a.mean())
    if len(set(ranks)) == 1 or len(ranks) == 2:
        p = 1.0  # there is one way only, or two that mirror each other
    elif comb(len(ranks), len(a)) > MOST_WAYS:
        p = stats.mannwhitneyu(a, b, method="asymptotic").pvalue
    elif len(set(ranks)) == len(ranks):
        p = stats.mannwhitneyu(a, b, method="exact").pvalue
    else:  # the table that "exact" looks in knows no ties
        p = stats.permutation_test(
            (ranks_a, ranks_b), lambda x, y, axis: x.sum(axis=axis), vectorized=True, n_resamples=np.inf
        ).pvalue
    return Test(min(1.0, float(p)), least_p_of_repeats(len(a), len(b)), rise)


def of_counts(right_a: int, asked_a: int, right_b: int, asked_b: int) -> Test:
    """How many of how many, each with one or more asked."""
    from scipy import stats

    p = stats.fisher_exact([[right_a, asked_a - right_a], [right_b, asked_b - right_b]]).pvalue
    least = stats.fisher_exact([[asked_a, 0], [0, asked_b]]).pvalue
    return Test(float(p), float(least), right_b / asked_b - right_a / asked_a)


def least_p_of_repeats(count_a: int, count_b: int) -> float:
    """When all of one lie above all of the other."""
    return min(1.0, 2 / comb(count_a + count_b, count_a))


def least_p_of_counts(count: int) -> float:
    """When all of one are right and none of the other's."""
    return min(1.0, 2 / comb(2 * count, count))


def enough(least_p: Callable[[int], float], tests: int) -> int:
    """How many on either side could tell a difference among so many tests."""
    count = 1
    while least_p(count) > ALPHA / max(1, tests):
        count += 1
    return count


def holm(p_values: list[float]) -> list[float]:
    """The values corrected for being several: each may be held against `ALPHA`. S. Holm, Scand. J. Stat. 6 (1979)."""
    corrected, so_far = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    for place, at in enumerate(order):
        so_far = max(so_far, min(1.0, (len(p_values) - place) * p_values[at]))
        corrected[at] = so_far
    return corrected


def judged(tests: list[Test]) -> list[tuple[str, float | None]]:
    """Of each test "differs", "no difference seen" or "too few to tell", and its corrected p. Tests that could not tell
    even alone, for how few were measured, are none of the family."""
    family = [at for at, test in enumerate(tests) if test.least_p <= ALPHA]
    corrected = dict(zip(family, holm([tests[at].p for at in family]), strict=True))
    left = sum(p > ALPHA for p in corrected.values())
    found: list[tuple[str, float | None]] = []
    for at, test in enumerate(tests):
        p = corrected.get(at)
        if p is not None and p <= ALPHA:
            found.append(("differs", p))
        elif p is None or test.least_p > ALPHA / left:
            found.append(("too few to tell", p))
        else:
            found.append(("no difference seen", p))
    return found
