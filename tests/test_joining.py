"""Joining a run in the middle: the snapshot, what follows it, and holes in between."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec.structs import replace

from engines import events
from kvtui.joining import HELD_BYTES, Joining
from kvtui.source import Restored
from kvtui.state import RunState
from probes import snapshot
from probes.topics import LIMIT_BYTES
from tests.synthetic import Race, started, whole_race
from tests.test_replay import plain


def numbered(race: list[events.AnyEvent]) -> list[events.AnyEvent]:
    return [replace(event, seq=number) for number, event in enumerate(race, 1)]


def pictured(race: list[events.AnyEvent], seq: int) -> snapshot.Snapshot:
    """What the publisher would retain after so many of the events."""
    picture = snapshot.Picture()
    for event in race[:seq]:
        picture.add(event)
    packed = snapshot.pack(picture, seq)
    assert packed is not None
    return snapshot.unpack(packed)


def shown(batch: list[events.AnyEvent | Restored], state: RunState) -> RunState:
    for event in batch:
        if isinstance(event, Restored):
            state = event.state
        else:
            state.apply(event)
    return state


def comparable(state: RunState) -> dict[str, Any]:
    """All of a state but what a snapshot leaves out: since when a cell is as it is, the graphs' points, and layers
    head by head that were seen before the cache's own picture."""
    told = plain(state)
    for engine in told["engines"].values():
        for left_out in ("memory_history", "transfer_history", "cache"):
            engine.pop(left_out)
        for request in engine["requests"].values():
            for name in ("busy_s", "hidden_s", "_hit_bytes"):
                request["traffic"][name] = pytest.approx(request["traffic"][name])
            request["interval_s"] = pytest.approx(request["interval_s"])
    return told


def two_prompts() -> list[events.AnyEvent]:
    first, second = Race(prompt_tokens=64, new_tokens=30, total=2), Race(1, prompt_tokens=48, new_tokens=20, total=2)
    race = [started(), events.Status(run="synthetic", state="racing", stream=["a", "b"]), first.submitted()]
    race += first.merged()
    second.start_s = max(event.clock_s for event in race)
    return [*race, second.submitted(), *second.merged(), events.Status(run="synthetic", state="idle")]


RACE = two_prompts()


@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 0.5, 0.7, 0.99, 1.0])
def test_a_snapshot_and_what_follows_is_the_whole(share: float) -> None:
    seq = round(share * len(RACE))
    whole = RunState()
    whole.apply_all(RACE)
    joining = Joining()
    state = shown(joining.snapshot(pictured(RACE, seq), retained=True), RunState())
    for event in numbered(RACE)[seq:]:
        state = shown([*joining.event(event, 100)], state)
    assert comparable(state) == comparable(whole)
    for engine in whole.engines.values():
        cache, other = engine.cache, state.engines[engine.id].cache
        assert cache is not None
        assert other is not None
        assert (cache.cells == other.cells).all()
        assert (cache.mass == other.mass).all()
        assert other.heads
        assert engine.memory_history.values[-1] == state.engines[engine.id].memory_history.values[-1]
        assert engine.transfer_history.values[-1] == state.engines[engine.id].transfer_history.values[-1]


def test_one_who_joins_has_the_graphs_past() -> None:
    seq = len(RACE) // 3
    whole = RunState()
    whole.apply_all(RACE[:seq])
    state = shown(Joining().snapshot(pictured(RACE, seq), retained=True), RunState())
    history = state.engines["infinigen"].memory_history
    assert history.clock_s == whole.engines["infinigen"].memory_history.clock_s
    assert len(history.clock_s) > 10


def test_a_retained_snapshot_may_be_old_until_something_follows_it() -> None:
    joining = Joining()
    joining.snapshot(pictured(RACE, 30), retained=True)
    assert joining.wants_snapshot
    (restored,) = joining.snapshot(pictured(RACE, 40), retained=False)
    assert isinstance(restored, Restored)
    assert not joining.wants_snapshot
    joining = Joining()
    joining.snapshot(pictured(RACE, 30), retained=True)
    joining.event(numbered(RACE)[30], 100)
    assert not joining.wants_snapshot


def test_what_is_in_the_snapshot_already_is_not_applied_again() -> None:
    joining = Joining()
    joining.snapshot(pictured(RACE, 40), retained=True)
    assert joining.event(numbered(RACE)[20], 100) == []
    assert joining.event(numbered(RACE)[39], 100) == []
    assert joining.event(numbered(RACE)[40], 100) == [RACE[40]]
    assert joining.event(numbered(RACE)[40], 100) == []


def test_after_a_hole_nothing_is_applied_until_a_snapshot_has_what_was_lost() -> None:
    joining, messages = Joining(), numbered(RACE)
    state = shown(joining.snapshot(pictured(RACE, 40), retained=True), RunState())
    state = shown([*joining.event(messages[40], 100)], state)
    for event in messages[45:60]:  # 41 to 44 never come
        assert joining.event(event, 100) == []
    assert joining.wants_snapshot
    assert joining.snapshot(pictured(RACE, 30), retained=True) == []  # older than what is shown
    state = shown(joining.snapshot(pictured(RACE, 60), retained=False), state)
    assert not joining.wants_snapshot
    for event in messages[60:]:
        state = shown([*joining.event(event, 100)], state)
    whole = RunState()
    whole.apply_all(RACE)
    assert comparable(state) == comparable(whole)


def test_a_hole_that_is_filled_late_needs_no_snapshot_to_go_on() -> None:
    joining, messages = Joining(), numbered(RACE)
    joining.snapshot(pictured(RACE, 40), retained=True)
    assert joining.event(messages[41], 100) == []
    assert joining.event(messages[40], 100) == [RACE[40], RACE[41]]


def test_what_comes_before_the_snapshot_waits_for_it() -> None:
    joining, messages = Joining(), numbered(RACE)
    for event in messages[35:50]:
        assert joining.event(event, 100) == []
    state = shown(joining.snapshot(pictured(RACE, 40), retained=True), RunState())
    whole = RunState()
    whole.apply_all(RACE[:50])
    assert comparable(state) == comparable(whole)
    assert not joining.wants_snapshot


def test_a_number_out_of_all_bounds_does_not_stop_a_run_for_good() -> None:
    """Somebody else publishes under its name: what follows is shown, and the next snapshot forgets them."""
    joining, messages = Joining(), numbered(RACE)
    joining.snapshot(pictured(RACE, 40), retained=True)
    assert joining.event(replace(messages[40], seq=1 << 27), 100) == []
    assert joining.event(messages[40], 100) == [RACE[40]]
    joining.snapshot(pictured(RACE, 41), retained=False)
    assert not joining.wants_snapshot
    assert joining.event(messages[41], 100) == [RACE[41]]


def test_what_is_said_again_counts_once() -> None:
    """An engine that was preempted says its tokens again."""
    race = whole_race(prompt_tokens=40, new_tokens=12)
    place = max(i for i, event in enumerate(race) if isinstance(event, events.Token) and event.engine == "h2o")
    again = [e for e in race if isinstance(e, events.Token) and e.engine == "h2o"][4:]
    race[place + 1 : place + 1] = [replace(event, text=event.text.upper()) for event in again]
    whole = RunState()
    whole.apply_all(race)
    state = shown(Joining().snapshot(pictured(race, len(race)), retained=True), RunState())
    assert state.engines["h2o"].requests[0].text == whole.engines["h2o"].requests[0].text
    assert whole.engines["h2o"].requests[0].text.endswith(again[-1].text.upper())


def test_another_run_begins_from_nothing() -> None:
    rerun = [replace(event, run="again") for event in whole_race(prompt_tokens=40, new_tokens=8)]
    race = [*RACE, *rerun]
    whole = RunState()
    whole.apply_all(race)
    found = pictured(race, len(race))
    joined, known = (
        comparable(state) for state in (shown(Joining().snapshot(found, retained=True), RunState()), whole)
    )
    # The machine is watched over all runs, and what moved in an earlier one is not retained.
    assert joined.pop("machine")["links"].keys() == known.pop("machine")["links"].keys()
    assert joined == known
    assert len(found.said) <= len(rerun) + 3


def test_a_snapshot_stays_within_its_limit_and_keeps_the_newest_answer() -> None:
    picture, chance = snapshot.Picture(), random.Random(3)
    for request in range(3):
        for index in range(10):  # text that cannot be packed
            text = chance.randbytes(200_000).hex()
            picture.add(events.Token(engine="h2o", request=request, index=index, token_id=1, text=text, logprob=-1))
    packed = snapshot.pack(picture, 30)
    assert packed is not None
    assert len(packed) <= LIMIT_BYTES
    answers = {event.request for event in snapshot.unpack(packed).said if isinstance(event, events.Token)}
    assert answers == {2}


@pytest.mark.parametrize("packed", [b"", b"garbage", events.deflate(b"garbage"), events.deflate(b"\x81\xa3seq\x01")])
def test_a_snapshot_from_outside_may_be_anything(packed: bytes) -> None:
    with pytest.raises(ValueError):
        snapshot.unpack(packed)


def test_a_snapshot_that_swells_is_refused() -> None:
    with pytest.raises(ValueError):
        snapshot.unpack(events.deflate(b"\0" * (snapshot.UNPACKED_LIMIT_BYTES + 1)))


def test_what_comes_too_early_is_bounded_by_its_size_and_the_next_snapshot_goes_on() -> None:
    joining, messages = Joining(), numbered(RACE)
    shown(joining.snapshot(pictured(RACE, 10), retained=False), RunState())
    most = HELD_BYTES // (4 << 20)
    for event in messages[20 : 40 + most]:
        joining.event(event, 4 << 20)
        joining.event(event, 4 << 20)  # said twice, it is held once
    assert joining.wants_snapshot
    (restored, *following) = joining.snapshot(pictured(RACE, 20), retained=True)
    assert isinstance(restored, Restored)
    assert following == RACE[20 : 20 + most]
    assert not joining.wants_snapshot
    assert joining.event(messages[20 + most], 4 << 20) == [RACE[20 + most]]
    assert joining.event(messages[22 + most], HELD_BYTES) == []  # what was held is let go of
    assert joining.event(messages[21 + most], 100) == RACE[21 + most : 23 + most]
