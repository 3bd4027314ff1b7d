"""The choice of an engine: what must hold for any memory and any need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.classify import TASKS
from engines.controller import EXACT_ORDER, EXACT_TASKS, TOLERANT_ORDER, Need, decide

MIB = 1 << 20
sizes = st.integers(0, 200 * MIB)
needs_of_engines = st.dictionaries(st.sampled_from(EXACT_ORDER), st.builds(Need, sizes, sizes), min_size=1)
caps = st.one_of(st.none(), sizes)


@st.composite
def probabilities(draw: st.DrawFn) -> dict[str, float]:
    shares = draw(st.lists(st.floats(0.001, 1), min_size=len(TASKS), max_size=len(TASKS)))
    return {task: share / sum(shares) for task, share in zip(TASKS, shares, strict=True)}


def fits(need: Need, free: int | None, free_host: int | None) -> bool:
    return (free is None or need.device_bytes <= free) and (free_host is None or need.host_bytes <= free_host)


@given(probabilities(), needs_of_engines, caps, caps)
def test_what_does_not_fit_is_never_chosen_while_something_fits(tasks, needs, free, free_host):
    choice = decide(tasks, 1000, needs, free, free_host)
    assert choice.engine in needs
    assert "\n" not in choice.reason
    if any(fits(need, free, free_host) for need in needs.values()):
        assert fits(needs[choice.engine], free, free_host)
    else:
        assert needs[choice.engine].device_bytes == min(need.device_bytes for need in needs.values())


@given(probabilities(), needs_of_engines, sizes, sizes, sizes, sizes)
def test_more_memory_never_means_a_lesser_engine(tasks, needs, free, more, free_host, more_host):
    if not any(fits(need, free, free_host) for need in needs.values()):
        return
    exact = sum(tasks[task] for task in EXACT_TASKS) >= 0.4
    order = EXACT_ORDER if exact else TOLERANT_ORDER
    before = order.index(decide(tasks, 1000, needs, free, free_host).engine)
    assert order.index(decide(tasks, 1000, needs, free + more, free_host + more_host).engine) <= before
    assert order.index(decide(tasks, 1000, needs, None, None).engine) <= before


NEEDS = {
    "vllm": Need(72 * MIB),
    "h2o+": Need(25 * MIB),
    "infinigen+": Need(40 * MIB, 70 * MIB),
    "infinigen": Need(12 * MIB, 70 * MIB),
}


def sure(task: str) -> dict[str, float]:
    return {other: 0.95 if other == task else 0.01 for other in TASKS}


def test_the_papers_rule() -> None:
    for task in TASKS:
        assert decide(sure(task), 3071, NEEDS, 100 * MIB).engine == "vllm"
        assert decide(sure(task), 3071, NEEDS, None).engine == "vllm"
        tight = decide(sure(task), 3071, NEEDS, 64 * MIB).engine
        assert tight == ("infinigen+" if task in EXACT_TASKS else "h2o+")
    assert decide(sure("lookup"), 3071, NEEDS, 30 * MIB).engine == "infinigen"
    assert decide(sure("lookup"), 3071, NEEDS, 30 * MIB, 10 * MIB).engine == "h2o+"
    assert decide(sure("chat"), 3071, NEEDS, 20 * MIB).engine == "infinigen"


def test_a_fact_is_not_risked_on_a_guess() -> None:
    unsure = {"writing": 0.55, "lookup": 0.3, "reasoning": 0.15}
    assert decide(unsure, 3071, NEEDS, 64 * MIB).engine == "infinigen+"


def test_reasons_say_what_was_weighed() -> None:
    reason = decide(sure("lookup"), 3071, NEEDS, 64 * MIB).reason
    assert reason == "lookup in 3,071 tokens, 67.1 MB free: paged would need 75.5 MB, so InfiniGen+ keeps every fact"
    assert decide(sure("chat"), 20, NEEDS, None).reason == "chat in 20 tokens: paged fits, with 75.5 MB"
    reason = decide(sure("chat"), 20, NEEDS, 64 * MIB).reason
    assert reason == (
        "chat in 20 tokens, 67.1 MB free: paged would need 75.5 MB, so H2O+ keeps the pace and may lose a fact"
    )
    reason = decide(sure("reasoning"), 20, NEEDS, 64 * MIB, 10 * MIB).reason
    assert "paged would need 75.5 MB, so H2O+" in reason
    assert "nothing fits, and InfiniGen needs least, 12.6 MB" in decide(sure("code"), 20, NEEDS, MIB).reason
