"""A remote run as a `Source`, through a real broker: joined in the middle, past garbage, restarts and the end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiomqtt
import msgspec
import pytest
from msgspec.structs import replace

from engines import events
from kvtui.outcomes import _waiting, print_outcomes
from kvtui.source import Restored, SourceEndedError
from kvtui.state import RunState
from kvtui.watching import BATCH_CELLS, MOST_RUNS, WatchSource
from probes import snapshot, topics
from probes.broker import Broker, parse
from probes.connection import Standing
from probes.publisher import Publisher
from probes.subscriber import Message, Subscriber
from tests.mqtt_brokers import RealBroker, free_port, wait_until
from tests.synthetic import whole_race
from tests.test_joining import comparable


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealBroker]:
    broker = RealBroker(tmp_path)
    broker.start()
    yield broker
    broker.stop()


def at(real: RealBroker) -> Broker:
    return parse(f"mqtt://127.0.0.1:{real.port}/kv", environment={})


def watch(real: RealBroker) -> WatchSource:
    source = WatchSource(Subscriber(at(real)))
    source.start()
    return source


def receive_until(source: WatchSource, condition, state: RunState | None = None, patience_s: float = 20) -> RunState:
    """Applies what comes until the state is so."""
    state, deadline_s = state or RunState(), time.monotonic() + patience_s
    while not condition(state):
        assert time.monotonic() < deadline_s, "it did not come to that"
        for event in source.receive(0.1):
            if isinstance(event, Restored):
                state = event.state
            else:
                state.apply(event)
    return state


def done(state: RunState) -> bool:
    return len(state.engines) == 3 and all(e.requests and e.requests[0].outcome for e in state.engines.values())


def publish_raw(broker: Broker, *messages: tuple[str, bytes, bool]) -> None:
    """As anybody may who reaches the broker: topic after the prefix, payload, retained."""

    async def publish() -> None:
        async with aiomqtt.Client(broker.host, broker.port) as client:
            for name, payload, retain in messages:
                await client.publish(f"{broker.prefix}/{name}", payload, qos=1, retain=retain)

    asyncio.run(publish())


RACE = whole_race(prompt_tokens=64, new_tokens=24)


def test_joined_in_the_middle_it_arrives_at_the_same_state(real: RealBroker) -> None:
    middle = len(RACE) // 2
    whole = RunState()
    whole.apply_all(RACE)
    with closing(Publisher(at(real))) as publisher:
        publisher.start()
        publisher.publish(RACE[:middle])
        wait_until(lambda: publisher.standing.state == "connected" and publisher.waiting == 0)
        with closing(watch(real)) as source:
            state = receive_until(source, lambda state: state.started is not None)
            assert not done(state)
            for event in RACE[middle:]:
                publisher.publish([event])
            state = receive_until(source, done, state)
            assert source.watched == publisher.run
            assert source.refused == 0
            told = comparable(state)
            assert isinstance(told, dict)
            notices = told.pop("notices")
            assert notices == []
            expected = comparable(whole)
            assert isinstance(expected, dict)
            expected.pop("notices")
            for engine in [*told["engines"].values(), *expected["engines"].values()]:
                engine.pop("transfer")  # what was moved since the last that arrived: the totals are compared
                for request in engine["requests"].values():
                    request.pop("prefill")
            assert told["engines"] == expected["engines"]


def test_it_says_how_a_run_ended_and_its_last_picture_stays(real: RealBroker) -> None:
    publisher = Publisher(at(real))
    publisher.start()
    publisher.publish(RACE)
    with closing(watch(real)) as source:
        state = receive_until(source, done)
        assert source.run is not None
        assert source.run.state == "live"
        assert source.run.model == "smollm2-135m"
        publisher.close()
        state = receive_until(source, lambda state: bool(state.notices), state)
        assert "has ended" in state.notices[-1].text
        assert source.run.state == "ended"
        assert state.engines["vllm"].requests[0].outcome is not None


def test_several_runs_and_a_change_between_them(real: RealBroker) -> None:
    other_race = [replace(event, run="other") for event in whole_race(prompt_tokens=40, new_tokens=5)]
    with closing(Publisher(at(real))) as first, closing(Publisher(at(real))) as second:
        first.start()
        first.publish(RACE)
        wait_until(lambda: first.standing.state == "connected" and not first.waiting)
        with closing(watch(real)) as source:
            receive_until(source, lambda state: state.run == "synthetic" and done(state))
            second.start()
            second.publish(other_race)
            receive_until(source, lambda _: len(source.runs) == 2, RunState())
            assert source.watched == first.run
            source.choose(second.run)
            state = receive_until(source, lambda state: state.run == "other" and done(state))
            assert len(state.engines["vllm"].requests[0].tokens) == 5
            source.choose(first.run)
            state = receive_until(source, lambda state: state.run == "synthetic" and done(state))
            assert len(state.engines["vllm"].requests[0].tokens) == 24


def test_a_restarted_broker_is_joined_again(real: RealBroker) -> None:
    middle = len(RACE) // 2
    with closing(Publisher(at(real))) as publisher:
        publisher.start()
        publisher.publish(RACE[:middle])
        with closing(watch(real)) as source:
            state = receive_until(source, lambda state: state.started is not None)
            real.stop()
            wait_until(lambda: source.standing.state == "waiting" and publisher.standing.state == "waiting")
            publisher.publish(RACE[middle:])
            real.start()
            state = receive_until(source, done, state, 40)
            whole = RunState()
            whole.apply_all(RACE)
            for engine in whole.engines.values():
                assert state.engines[engine.id].requests[0].texts == engine.requests[0].texts
                cache, other = engine.cache, state.engines[engine.id].cache
                assert cache is not None
                assert other is not None
                assert (cache.cells == other.cells).all()


def test_garbage_in_the_prefix_is_refused_and_the_run_goes_on(real: RealBroker) -> None:
    chance = random.Random(5)
    middle = len(RACE) // 2
    with closing(Publisher(at(real))) as publisher:
        publisher.start()
        publisher.publish(RACE[:middle])
        with closing(watch(real)) as source:
            state = receive_until(source, lambda state: state.started is not None)
            kinds = [*topics.KINDS, topics.SNAPSHOT, topics.PRESENCE]
            garbage = [
                (f"{publisher.run}/h2o/{chance.choice(kinds[:-1])}", chance.randbytes(chance.randrange(1, 300)), False)
                for _ in range(200)
            ]
            huge = events.Submitted(request=0, title="x", text="x" * (5 << 20), offsets=[], prompt_tokens=1)
            cells = events.Cache(
                engine="h2o", request=0, tokens=1 << 27, layers=4000, whole=True, states=b"", mass=b"", mass_bins=1
            )
            never = replace(RACE[-1], clock_s=float("inf"), seq=3)
            garbage += [
                (f"{publisher.run}/h2o/token", msgspec.msgpack.encode([1, 2, {"type": "Token"}]), False),
                (f"{publisher.run}/h2o/token", b"[" * 100_000, False),
                (f"{publisher.run}/h2o/token", b'{"type":' * 50_000, False),
                (f"{publisher.run}/h2o/token", b"\x81" * 100_000, False),
                (f"{publisher.run}/h2o/submitted", msgspec.msgpack.encode(huge), False),
                (f"{publisher.run}/h2o/cache", msgspec.msgpack.encode(cells), False),
                (f"{publisher.run}/h2o/outcome", msgspec.msgpack.encode(never), False),
                (f"{publisher.run}/all/snapshot", events.deflate(b"\0" * (65 << 20)), False),
                ("no run of ours/all/presence", b"{}", False),
                (f"{publisher.run}/all/presence", b"\xff", False),
                ("stranger/all/presence", topics.pack(topics.Presence(run="another", state="live"), json=True), False),
                ("stranger/all/presence", b'{"run": "stranger", "state": "dancing"}', False),
                ("a/b/c/d/e", b"x", False),
            ]
            publish_raw(at(real), *garbage)
            publisher.publish(RACE[middle:])
            state = receive_until(source, done, state, 40)
            assert source.refused > 100
            assert [run.id for run in source.runs] == [publisher.run]
            assert source.watched == publisher.run
            assert len(state.engines["h2o"].requests[0].tokens) == 24


class Told(Subscriber):
    """Hears what a test says, without any broker."""

    def __init__(self) -> None:
        super().__init__(parse(f"mqtt://127.0.0.1:{free_port()}/kv", environment={}))
        self.said: list[Message] = []

    def start(self) -> None:
        pass

    def take(self, timeout_s: float) -> list[Message]:
        if not self.said:
            time.sleep(min(timeout_s, 0.05))  # as the real one waits: a thread that asks again and again stalls others
        said, self.said = self.said, []
        return said


def test_a_flood_of_runs_is_bounded_and_their_names_are_literal() -> None:
    subscriber = Told()
    source = WatchSource(subscriber)
    for number in range(3 * MOST_RUNS):
        presence = topics.Presence(run=f"r{number}", state="live", host="\x1b[2J[bold]\n", model="\x07")
        subscriber.said.append(Message(f"r{number}", topics.PRESENCE, topics.pack(presence, json=False), True))
    source.receive(0.0)
    assert len(source.runs) == MOST_RUNS
    assert "\x1b" not in source.runs[0].name
    assert "\n" not in source.runs[0].name
    assert "\x07" not in source.runs[0].model


def here(source: WatchSource, subscriber: Told, run: str, state: str, day: int = 1) -> list[events.AnyEvent | Restored]:
    """A presence, and what comes of it."""
    presence = topics.Presence(run=run, state=state, since=f"2026-01-{day:02}T03:04:05+01:00")
    subscriber.said.append(Message(run, topics.PRESENCE, topics.pack(presence, json=False), True))
    return [*source.receive(0.0), *source.receive(0.0)]


@pytest.mark.parametrize("live_only", [False, True])
def test_a_live_run_is_found_behind_any_number_of_gone_ones(live_only: bool) -> None:
    subscriber = Told()
    source = WatchSource(subscriber, live_only=live_only)
    for number in range(MOST_RUNS + 20):
        here(source, subscriber, f"left{number}", "gone", day=1 + number % 28)
    watched = source.watched
    here(source, subscriber, "alive", "live")
    assert source.watched == "alive"
    assert source.runs[-1].id == "alive"
    assert len(source.runs) == MOST_RUNS
    assert not source.crowded
    oldest = [run for run in source.runs if run.since.startswith("2026-01-01") and run.state == "gone"]
    assert [run.id for run in oldest] == ([watched] if watched is not None else [])  # the oldest have made room
    here(source, subscriber, "old", "gone", day=0)  # which is no date
    assert all(run.id != "old" for run in source.runs)


def test_what_is_watched_or_wanted_makes_no_room() -> None:
    subscriber = Told()
    source = WatchSource(subscriber)
    for number in range(MOST_RUNS):
        here(source, subscriber, f"left{number}", "gone", day=1 if number < 3 else 2)
    assert source.watched == "left0"
    assert source.choose("left1")
    for number in range(2):
        presence = topics.Presence(run=f"alive{number}", state="live", since="no date")
        subscriber.said.append(Message(f"alive{number}", topics.PRESENCE, topics.pack(presence, json=False), True))
    source._heard(subscriber.take(0.0)[0])
    assert {"left0", "left1", "alive0"} <= {run.id for run in source.runs}
    assert "left2" not in {run.id for run in source.runs}


def test_a_run_that_is_not_kept_is_never_chosen() -> None:
    subscriber = Told()
    source = WatchSource(subscriber, live_only=True)
    for number in range(MOST_RUNS):
        here(source, subscriber, f"r{number}", "live")
    assert not source.crowded
    here(source, subscriber, "more", "live")
    assert source.crowded
    assert source.watched == "r0"
    assert not source.choose("more")
    source.receive(0.0)
    assert source.run is not None
    here(source, subscriber, "r7", "gone")
    here(source, subscriber, "more", "live")  # with its next announcement
    assert [run.id for run in source.runs if run.id in ("r7", "more")] == ["more"]
    source._wanted = "r7"  # chosen in another thread, just before it made room
    source.receive(0.0)
    assert source.watched == "r0"


def test_who_comes_back_is_joined_anew() -> None:
    """The columns have said that it is gone, and nothing that follows would take that back."""
    subscriber = Told()
    source = WatchSource(subscriber)
    state = RunState()

    def apply(batch: list[events.AnyEvent | Restored]) -> None:
        nonlocal state
        for event in batch:
            if isinstance(event, Restored):
                state = event.state
            else:
                state.apply(event)

    def snap() -> None:
        picture = snapshot.Picture()
        for event in RACE[: len(RACE) // 2]:
            picture.add(event)
        packed = snapshot.pack(picture, len(RACE) // 2)
        assert packed is not None
        subscriber.said.append(Message("r", topics.SNAPSHOT, packed, False))
        apply([*source.receive(0.0)])

    apply(here(source, subscriber, "r", "live"))
    snap()
    assert state.status == "racing"
    apply(here(source, subscriber, "r", "gone"))
    assert state.over
    apply(here(source, subscriber, "r", "live"))
    snap()
    assert state.status == "racing"


@pytest.mark.parametrize("live_only", [False, True])
def test_what_a_crash_left_gives_way_to_a_live_run(live_only: bool) -> None:
    subscriber = Told()
    source = WatchSource(subscriber, live_only=live_only)

    def say(run: str, state: str) -> None:
        presence = topics.Presence(run=run, state=state)
        subscriber.said.append(Message(run, topics.PRESENCE, topics.pack(presence, json=False), True))
        source.receive(0.0)
        source.receive(0.0)

    say("left", "gone")
    assert source.watched == (None if live_only else "left")
    say("alive", "live")
    assert source.watched == "alive"
    say("other", "live")
    assert source.watched == "alive"
    say("alive", "gone")
    say("third", "live")
    assert source.watched == "alive"
    source.choose("left")
    source.receive(0.0)
    say("fourth", "live")
    assert source.watched == "left"


def test_a_flood_of_pictures_comes_in_small_batches() -> None:
    """The screen's keys are heard between two of them."""
    subscriber = Told()
    source = WatchSource(subscriber)
    presence = topics.pack(topics.Presence(run="r", state="live"), json=False)
    announced = replace(RACE[0], layers=100, context_limit=1 << 18)
    first = snapshot.Snapshot(seq=0, said=[announced])
    subscriber.said.append(Message("r", topics.PRESENCE, presence, True))
    source.receive(0.0)
    source.receive(0.0)
    packed = events.deflate(msgspec.msgpack.encode(first))
    subscriber.said.append(Message("r", topics.SNAPSHOT, packed, False))
    tokens = BATCH_CELLS // 200  # two of them are a batch
    cells = events.deflate(bytes(100 * tokens))
    for seq in range(1, 8):
        event = events.Cache(
            engine="h2o", request=0, tokens=tokens, layers=100, whole=True, states=cells, mass=b"", mass_bins=0, seq=seq
        )
        subscriber.said.append(Message("r", "cache", topics.pack(event, json=False), False))
    too_large = replace(event, tokens=1 << 19, seq=8)
    subscriber.said.append(Message("r", "cache", topics.pack(too_large, json=False), False))
    assert [type(event) for event in source.receive(0.0)] == [Restored]
    sizes = [len(source.receive(0.0)) for _ in range(4)]
    assert sum(sizes) == 7
    assert max(sizes) == 3
    assert source.refused == 1


def test_another_schema_is_refused() -> None:
    subscriber = Told()
    source = WatchSource(subscriber)
    presence = topics.Presence(run="r", state="live", schema=events.SCHEMA_VERSION + 1)
    subscriber.said.append(Message("r", topics.PRESENCE, topics.pack(presence, json=False), True))
    source.receive(0.0)
    assert source.runs == ()
    assert source.refused == 1


def test_json_is_watched_as_well(real: RealBroker) -> None:
    with closing(Publisher(at(real), json=True)) as publisher:
        publisher.start()
        with closing(watch(real)) as source:
            receive_until(source, lambda _: source.run is not None)
            publisher.publish(RACE)
            state = receive_until(source, done)
            assert source.refused == 0
            cache = state.engines["h2o"].cache
            assert cache is not None


def test_without_a_screen_outcomes_are_printed_until_the_end(real: RealBroker, capsys) -> None:
    publisher = Publisher(at(real))
    publisher.start()
    publisher.publish(RACE)
    wait_until(lambda: publisher.standing.state == "connected" and not publisher.waiting)
    out = io.StringIO()
    code: list[int] = []
    printing = threading.Thread(target=lambda: code.append(print_outcomes(WatchSource(Subscriber(at(real))), out)))
    printing.start()
    wait_until(lambda: out.getvalue().count("\n") >= 3)
    publisher.close()
    printing.join(20)
    assert code == [0]
    lines = out.getvalue().splitlines()
    assert {line.split("  ")[1] for line in lines} == {"vllm", "h2o", "infinigen"}
    assert all(line.startswith("prompt 1  ") and "24 tokens" in line for line in lines)
    assert "has ended" in capsys.readouterr().err


def test_without_a_screen_it_says_where_it_waits() -> None:
    source = WatchSource(Told())
    source._subscriber.standing = Standing("waiting", "Connection refused")
    assert _waiting(source) == f"waiting for the broker {source.place}: Connection refused"


def test_an_ended_source_says_so() -> None:
    source = WatchSource(Told())
    source.close()
    with pytest.raises(SourceEndedError, match=r"^$"):
        source.receive(0.0)


@pytest.mark.slow
def test_fifty_watchers_see_the_same(real: RealBroker) -> None:
    middle = len(RACE) // 2
    with closing(Publisher(at(real))) as publisher, contextlib.ExitStack() as stack:
        publisher.start()
        publisher.publish(RACE[:middle])
        sources = [stack.enter_context(closing(watch(real))) for _ in range(50)]
        states = [receive_until(source, lambda state: state.started is not None) for source in sources]
        publisher.publish(RACE[middle:])
        for source, state in zip(sources, states, strict=True):
            final = receive_until(source, done, state, 60)
            assert len(final.engines["infinigen"].requests[0].tokens) == 24
            assert source.refused == 0
