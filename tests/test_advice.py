"""Which candidate is advised: by hand, and what must hold whatever was measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.advice import ASPECTS, ORDERS, Candidate, Figure, Limits, judge, missed, told
from tests.test_imports import HEAVY, modules_after


def candidate(name: str, device: float, accuracy: float, tpot: float, ttft: float = 1.0) -> Candidate:
    return Candidate(name, *(Figure(value) for value in (device, accuracy, tpot, ttft)))


PAGED = candidate("paged", 1e9, 1.0, 0.030)
H2O = candidate("h2o", 4e8, 0.44, 0.025)
PLUS = candidate("h2o+", 4.1e8, 0.99, 0.0295)
INFINIGEN = candidate("infinigen", 5e8, 1.0, 0.1)
ALL = [PAGED, H2O, PLUS, INFINIGEN]


def names(*arguments: object, **limits: float) -> list[str]:
    return [one.name for one in judge(ALL, Limits(**limits), *arguments).fitting]  # type: ignore[arg-type]


def test_the_fastest_that_fits_is_advised_and_a_small_difference_decides_nothing() -> None:
    assert names() == ["h2o", "h2o+", "paged", "infinigen"]
    # 29.5 and 30 ms are as fast as each other, and both as accurate: the smaller one is taken.
    advice = judge(ALL, Limits(accuracy=0.9))
    assert [one.name for one in advice.fitting] == ["h2o+", "paged", "infinigen"]
    assert advice.why == "as fast as paged to within 5%, and smaller"
    assert advice.decided_by == "device_bytes"
    assert judge(ALL, Limits()).why == "the fastest of 4 that fit"


def test_what_is_preferred_decides() -> None:
    assert names("memory")[0] == "h2o+"  # as small as H2O to within 5 %, and more accurate
    assert names("accuracy")[0] == "h2o+"  # as accurate as the full cache, and a little faster
    assert names("accuracy", device_bytes=3e8) == []


def test_the_nearest_miss_is_the_one_that_is_beyond_by_least() -> None:
    advice = judge(ALL, Limits(device_bytes=3.9e8, accuracy=0.9, tpot_s=0.02))
    assert (advice.best, advice.runner_up, advice.why) == (None, None, "")
    # paged 2.56 times the memory, h2o 2.05 times too few right, h2o+ 1.48 times the time, infinigen 5 times.
    assert advice.nearest is not None
    assert advice.nearest.candidate is PLUS
    assert [(miss.aspect, round(miss.excess, 3)) for miss in advice.nearest.misses] == [
        ("device_bytes", 1.051),
        ("tpot_s", 1.475),
    ]
    assert missed(advice.nearest.misses[1]) == "29.5 ms a token, at most 20 ms asked for"
    assert judge([H2O], Limits(accuracy=0.9)).nearest.misses[0].excess == pytest.approx(0.9 / 0.44)  # type: ignore[union-attr]


def test_what_is_not_known_or_lost_is_within_no_limit() -> None:
    unknown, lost = replace(PLUS, accuracy=None), replace(PLUS, lost="ran out of device memory")
    assert judge([unknown], Limits(accuracy=0.0001)).best is None
    assert judge([unknown], Limits(accuracy=0.0001)).nearest is None
    assert judge([unknown], Limits()).best is unknown
    advice = judge([lost], Limits())
    assert advice.best is None
    assert advice.refused[0].candidate is lost
    assert told("accuracy", None) == "the full cache's accuracy not known"


def test_figures_in_words_say_where_they_come_from() -> None:
    assert told("tpot_s", Figure(0.0412, "modelled link")) == "41.2 ms a token (modelled link)"
    assert told("ttft_s", Figure(12.3)) == "first token after 12.3 s"
    assert told("accuracy", Figure(0.985)) == "98.5% of the full cache's accuracy"
    assert told("device_bytes", Figure(1.5e9)) == "1.50 GB of device memory"


def test_an_only_one_and_equals_are_called_that() -> None:
    assert judge([PAGED], Limits()).why == "the only one that fits"
    assert judge([PAGED, replace(PAGED, name="same")], Limits()).why == "as good as same in all that is known"


@pytest.mark.parametrize("module", ["probes.advice", "kvtui.verdict"])
def test_the_face_can_judge_without_torch(module: str) -> None:
    assert not modules_after(f"import {module}") & (HEAVY | {"numpy", "scipy", "textual"})


figures = st.none() | st.floats(1e-3, 1e3).map(Figure)
candidates = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdef"),
        figures,
        st.none() | st.floats(0, 1.2).map(Figure),
        figures,
        figures,
        st.sampled_from(["", "", "", "lost"]),
    ),
    max_size=7,
)
limits = st.builds(
    Limits, *[st.none() | st.floats(1e-3, 1e3), st.none() | st.floats(0.01, 1)] + [st.none() | st.floats(1e-3, 1e3)] * 2
)
prefer = st.sampled_from(sorted(ORDERS))


def dominates(one: Candidate, other: Candidate) -> bool:
    pairs = [(one.cost(aspect), other.cost(aspect)) for aspect in ASPECTS]
    return all(mine <= its for mine, its in pairs) and any(mine < its for mine, its in pairs)


@settings(max_examples=60, deadline=None)
@given(candidates, limits, prefer)
def test_a_dominated_candidate_is_never_advised(found: list[Candidate], asked: Limits, prefer: str) -> None:
    best = judge(found, asked, prefer).best
    assert best is None or not any(dominates(other, best) for other in found)


@settings(max_examples=60, deadline=None)
@given(candidates, limits, prefer, st.sampled_from(ASPECTS), st.floats(0, 1))
def test_a_tighter_limit_never_lets_a_refused_one_in(
    found: list[Candidate], asked: Limits, prefer: str, aspect: str, share: float
) -> None:
    limit = getattr(asked, aspect)
    if aspect == "accuracy":
        tighter = 1.5 * share if limit is None else limit + share
    else:
        tighter = 1e3 * share if limit is None else limit * share
    before = judge(found, asked, prefer)
    after = judge(found, replace(asked, **{aspect: tighter}), prefer)
    refused = {id(refusal.candidate) for refusal in before.refused}
    assert refused <= {id(refusal.candidate) for refusal in after.refused}


@settings(max_examples=60, deadline=None)
@given(candidates, limits, prefer)
def test_everyone_is_judged_once_and_refused_for_a_reason(found: list[Candidate], asked: Limits, prefer: str) -> None:
    advice = judge(found, asked, prefer)
    judged = [*map(id, advice.fitting), *(id(refusal.candidate) for refusal in advice.refused)]
    assert sorted(judged) == sorted(map(id, found))
    for refusal in advice.refused:
        assert refusal.candidate.lost or refusal.misses
        assert all(miss.excess > 1 or math.isinf(miss.excess) for miss in refusal.misses)
