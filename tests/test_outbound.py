"""What waits for a broker: pictures give way to newer ones, words never do, and the order stays."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from engines import events
from kvtui.state import RunState
from probes import topics
from probes.outbound import Outbound, is_picture
from probes.spool import Spool
from tests.synthetic import Race, whole_race


def taken(outbound: Outbound) -> list[events.AnyEvent]:
    out = []
    while (event := outbound.take()) is not None:
        out.append(event)
    return out


def token(index: int) -> events.Token:
    return events.Token(engine="h2o", request=0, index=index, token_id=index, text=f" {index}", logprob=-0.1)


def sample(rss: int) -> events.Sample:
    return events.Sample(worker_rss_bytes=rss)


def test_of_pictures_the_newest_waits_in_its_place_and_words_all_wait() -> None:
    outbound = Outbound()
    for event in (token(0), sample(1), token(1), sample(2), token(2)):
        outbound.offer(event)
    assert len(outbound) == 4
    assert outbound.replaced == 1
    assert taken(outbound) == [token(0), token(1), sample(2), token(2)]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_gave_way_the_state_is_the_same_in_the_end(seed: int) -> None:
    """A broker that takes what it takes when it likes: the reducer behind it arrives where the engines are."""
    chance = random.Random(seed)
    outbound, state, whole = Outbound(), RunState(), RunState()
    race = whole_race(prompt_tokens=96, new_tokens=60)
    passed = 0
    for event in race:
        whole.apply(event)
        outbound.offer(event)
        if chance.random() < 0.02:
            for _ in range(chance.randrange(40)):
                if (sent := outbound.take()) is not None:
                    state.apply(sent)
                    passed += 1
    for event in taken(outbound):
        state.apply(event)
        passed += 1
    assert passed < len(race)
    assert outbound.replaced > 20
    for engine in whole.engines.values():
        other = state.engines[engine.id]
        assert other.requests[0].texts == engine.requests[0].texts
        assert other.requests[0].outcome == engine.requests[0].outcome
        assert other.requests[0].differs == engine.requests[0].differs
        assert other.memory == engine.memory
        assert other.requests[0].traffic.fetched_bytes == engine.requests[0].traffic.fetched_bytes
        assert engine.cache is not None
        assert other.cache is not None
        assert (other.cache.cells == engine.cache.cells).all()
        assert (other.cache.mass == engine.cache.mass).all()


def test_what_transfers_moved_is_added_up() -> None:
    moved = [e for e in Race(prompt_tokens=96, new_tokens=60).events_of("infinigen") if isinstance(e, events.Transfer)]
    outbound = Outbound()
    for event in moved:
        outbound.offer(event)
    (one,) = taken(outbound)
    assert isinstance(one, events.Transfer)
    assert one.h2d_bytes == sum(event.h2d_bytes for event in moved)
    assert one.d2h_bytes == sum(event.d2h_bytes for event in moved)
    assert one.busy_s == pytest.approx(sum(event.busy_s for event in moved))
    assert one.h2d_total_bytes == moved[-1].h2d_total_bytes
    assert one.clock_s - one.span_s == pytest.approx(moved[0].clock_s - moved[0].span_s)


def test_hit_rates_are_weighed_by_the_bytes_that_they_are_about() -> None:
    outbound = Outbound()
    common = {"engine": "infinigen", "h2d_total_bytes": 0, "d2h_total_bytes": 0, "span_s": 1.0, "busy_s": 0.0}
    common |= {"hidden_s": 0.0, "measured": False, "d2h_bytes": 0}
    outbound.offer(events.Transfer(**common, h2d_bytes=100, hit_rate=0.0))
    outbound.offer(events.Transfer(**common, h2d_bytes=0, saved_bytes=300, hit_rate=1.0))
    (one,) = taken(outbound)
    assert isinstance(one, events.Transfer)
    assert one.hit_rate == pytest.approx(0.75)


def test_a_damaged_picture_gives_way_like_any_other() -> None:
    outbound = Outbound()
    common = {"engine": "h2o", "request": 0, "tokens": 2, "layers": 1, "mass": b"", "mass_bins": 0}
    outbound.offer(events.Cache(**common, whole=True, states=b"garbage"))
    after = events.Cache(**common, whole=False, states=events.deflate(b"\1\1"))
    outbound.offer(after)
    assert taken(outbound) == [after]


def test_every_kind_of_event_is_one_or_the_other() -> None:
    never_lost = {"RunStarted", "Submitted", "Token", "TooLong", "Decision", "Outcome", "Status", "Notice"}
    for event in whole_race(prompt_tokens=40, new_tokens=5):
        assert is_picture(event) == (type(event).__name__ not in never_lost)
    assert is_picture(events.ServerLoad(engine="vllm-server"))


@pytest.mark.parametrize("logprob", [None, -0.5, float("-inf")])
@pytest.mark.parametrize("json", [False, True])
def test_a_token_is_sent_whatever_is_known_of_it(logprob: float | None, json: bool) -> None:
    """A server may tell no probability, and JSON knows no infinity."""
    said = events.Token(engine="vllm-server", request=0, index=0, token_id=-1, text="so", logprob=logprob)
    heard = topics.unpack(topics.pack(said, json=json))
    assert heard == (said if not json or logprob != float("-inf") else replace(said, logprob=topics.LEAST_LOGPROB))


def test_the_spool_keeps_order_through_its_file_and_uses_it_again() -> None:
    spool, expected = Spool(in_memory=3), []
    chance = random.Random(1)
    number = 0
    for _ in range(300):
        for _ in range(chance.randrange(6)):
            number += 1
            spool.push(number, token(number))
            expected.append(number)
        for _ in range(chance.randrange(6)):
            if expected:
                assert spool.first == expected[0]
                event = spool.pop()
                assert isinstance(event, events.Token)
                assert event.index == expected.pop(0)
        assert len(spool) == len(expected)
    assert spool.lost == 0


def test_what_the_disk_has_no_room_for_is_counted() -> None:
    spool = Spool(in_memory=2, limit_bytes=200)
    for number in range(1, 21):
        spool.push(number, token(number))
    assert 0 < spool.lost < 18
    assert len(spool) + spool.lost == 20
    kept = []
    while len(spool):
        kept.append(spool.first)
        spool.pop()
    assert kept == list(range(1, len(kept) + 1))
    with pytest.raises(IndexError):
        spool.pop()
