"""A recording that plays like a live run, and can be taken to any moment."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import commands, events
from kvtui.replay import FASTEST, TraceSource
from kvtui.snapshots import Snapshots
from kvtui.source import Restored, SourceEndedError
from kvtui.state import RunState
from kvtui.trace import TraceReader, TraceWriter
from tests.synthetic import Race, started

FRAME_S = 0.1


def write_race(path: Path, *races: Race, loading_s: float = 0.0) -> Path:
    """A trace with a frame every tenth of a second of the engines' clocks, after so long a time of loading."""
    at_s = 0.0
    writer = TraceWriter(path, lambda: at_s)
    while at_s < loading_s:
        writer.write([events.Loading(stage=f"stage {at_s:.0f}", fraction=at_s / loading_s)])
        at_s += 0.5
    writer.write([started(), events.Status(run="synthetic", state="racing")])
    offset_s = 0.0
    for race in races:
        race.start_s = offset_s
        writer.write([race.submitted()])
        for number, batch in itertools.groupby(race.merged(), key=lambda event: int(event.clock_s / FRAME_S)):
            at_s = loading_s + number * FRAME_S
            told = list(batch)
            writer.write(told)
            offset_s = max(offset_s, *(event.clock_s for event in told))
    writer.write([events.Status(run="synthetic", state="idle")])
    writer.close()
    return path


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TraceReader:
    path = tmp_path_factory.mktemp("traces") / "race.kvtrace"
    races = Race(0, prompt_tokens=96, new_tokens=12), Race(1, prompt_tokens=40, new_tokens=30, follow_up=True)
    return TraceReader(write_race(path, *races))


@pytest.fixture
def source(reader: TraceReader) -> Iterator[TraceSource]:
    source = TraceSource(reader)
    source.start()
    yield source
    source.close()


def plain(item: Any) -> Any:
    """Everything in a state, so that two can be compared."""
    if dataclasses.is_dataclass(item):
        return {f.name: plain(getattr(item, f.name)) for f in dataclasses.fields(item)}
    if isinstance(item, dict):
        return {key: plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [plain(value) for value in item]
    if isinstance(item, np.ndarray):
        return item.shape, item.dtype.str, item.tobytes()
    if isinstance(item, msgspec.Struct):
        return type(item).__name__, plain(msgspec.structs.asdict(item))
    return item


def played(reader: TraceReader, until_s: float = float("inf")) -> RunState:
    state = RunState()
    for frame in range(reader.frames_until(until_s)):
        state.apply_all(reader.events(frame))
    return state


def restored(source: TraceSource) -> RunState:
    (item, *_) = source.receive(1.0)
    assert isinstance(item, Restored)
    return item.state


def receive_until(source: TraceSource, condition: Callable[[], bool], state: RunState | None = None) -> RunState:
    """What the app does with what comes."""
    state = state or RunState()
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        for item in source.receive(0.05):
            if isinstance(item, Restored):
                state = item.state
            else:
                state.apply(item)
    return state


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(-1.0, 8.0), min_size=1, max_size=4), st.floats(0.2, 3.0), st.integers(10_000, 1 << 20))
def test_a_state_that_was_sought_is_the_state_that_was_played_to(
    reader: TraceReader, moments: list[float], every_s: float, limit_bytes: int
) -> None:
    source = TraceSource(reader)
    source._snapshots = Snapshots(every_s, limit_bytes)
    source.start()
    for at_s in moments:
        source.seek(at_s)
        state = restored(source)
        assert plain(state) == plain(played(reader, max(0.0, at_s)))
        assert source.position_s == min(max(0.0, at_s), source.duration_s)
        state.apply(events.Notice(level="info", text="the receiver's own"))  # must not come back with a later seek


def test_playing_on_after_a_seek_comes_to_the_same_end(reader: TraceReader, source: TraceSource) -> None:
    source.set_speed(FASTEST)
    source.seek(3.0)
    state = receive_until(source, lambda: source.ended)
    assert plain(state) == plain(played(reader))
    source.seek(1.0)
    assert plain(receive_until(source, lambda: source.ended)) == plain(played(reader))


def test_it_plays_at_its_pace(source: TraceSource) -> None:
    began_s = time.monotonic()
    source.set_speed(4.0)
    receive_until(source, lambda: source.position_s >= 2.0)
    assert 0.4 < time.monotonic() - began_s < 1.5


def test_a_pause_holds_it_and_steps_go_to_the_next_tokens(reader: TraceReader, source: TraceSource) -> None:
    source.send(commands.Pause())
    state = receive_until(source, lambda: source._told_paused)
    assert state.status == "paused"
    position_s = source.position_s
    assert source.receive(0.2) == []
    assert source.position_s == position_s

    def tokens() -> int:
        return sum(len(r.tokens) for engine in state.engines.values() for r in engine.requests.values())

    for _ in range(3):
        before = tokens()
        source.send(commands.Step())
        for event in source.receive(1.0):
            state.apply(event)  # type: ignore[arg-type]
        assert tokens() > before
        assert state.status == "paused"
    assert source.position_s > position_s
    source.send(commands.Resume())
    receive_until(source, lambda: state.status == "racing", state)


def test_the_end_is_no_end(reader: TraceReader, source: TraceSource) -> None:
    source.seek(1e9)
    state = receive_until(source, lambda: source.ended)
    assert state.status == "idle"
    assert source.receive(0.05) == []
    source.send(commands.Resume())  # once more
    state = receive_until(source, lambda: not source.ended)
    assert source.position_s < 1.0
    source.send(commands.Pause())
    source.seek(2.0)
    state = receive_until(source, lambda: source.position_s == 2.0 and source._told_paused and source._target_s is None)
    assert state.status == "paused"
    source.send(commands.Rerun())
    assert source.position_s == 0.0


def test_it_can_begin_anywhere(reader: TraceReader) -> None:
    source = TraceSource(reader, from_s=2.5)
    source.start()
    assert plain(restored(source)) == plain(played(reader, 2.5))
    source.start()  # again: from there, too
    assert plain(restored(source)) == plain(played(reader, 2.5))


def test_back_is_to_where_it_begins_and_not_into_the_loading(tmp_path: Path) -> None:
    reader = TraceReader(write_race(tmp_path / "x.kvtrace", Race(prompt_tokens=64, new_tokens=4), loading_s=4.0))
    source = TraceSource(reader, from_s=5.0)
    source.start()
    restored(source)
    source.send(commands.Rerun())
    assert source.position_s == 3.5
    assert restored(source).loading == events.Loading(stage="stage 4", fraction=0.875)
    source.seek(1e9)
    restored(source)
    source.send(commands.Resume())  # at the end: once more
    assert source.position_s == 3.5


def test_speed_has_bounds(source: TraceSource) -> None:
    source.set_speed(1e6)
    assert source.speed == FASTEST
    source.set_speed(0.0)
    assert source.speed == 1 / 8


def test_a_process_that_was_stopped_skips_nothing(source: TraceSource) -> None:
    source.receive(0.05)
    source._looked_s -= 3600  # as after Ctrl-Z and fg
    source.receive(0.05)
    assert source.position_s < 1.0


def test_closing_ends_it(source: TraceSource) -> None:
    source.close()
    with pytest.raises(SourceEndedError, match=r"^$"):
        source.receive(0.1)


def test_a_file_that_changes_while_it_plays_is_said(tmp_path: Path) -> None:
    path = write_race(tmp_path / "race.kvtrace", Race(prompt_tokens=64, new_tokens=4))
    source = TraceSource(TraceReader(path))
    source.start()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size // 2)
    source.seek(1e9)
    with pytest.raises(SourceEndedError, match=r"race\.kvtrace is damaged .* s in: "):
        source.receive(1.0)


def test_snapshots_stay_within_their_bounds(reader: TraceReader) -> None:
    state = played(reader)
    snapshots = Snapshots(every_s=1.0, limit_bytes=200_000)
    for frames in range(1, 400):
        snapshots.offer(frames, float(frames), state)
        assert sum(size for *_, size in snapshots._kept) <= 200_000
    assert len(snapshots._kept) > 2
    times = [at_s for _, at_s, *_ in snapshots._kept]
    assert times == sorted(times)
    assert snapshots.every_s > 1.0


def test_without_a_disk_nothing_is_kept_and_seeks_still_work(
    reader: TraceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    source = TraceSource(reader)
    source._snapshots = Snapshots(every_s=0.5)
    source.start()
    for at_s in (5.0, 4.0):
        source.seek(at_s)
        assert plain(restored(source)) == plain(played(reader, at_s))


def test_a_second_seek_is_made_from_what_was_kept(reader: TraceReader, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TraceSource(reader)
    source._snapshots = Snapshots(every_s=0.5)
    source.start()
    source.seek(5.0)
    restored(source)
    read: list[int] = []
    monkeypatch.setattr(reader, "events", lambda frame: read.append(frame) or TraceReader.events(reader, frame))
    source.seek(4.9)
    assert plain(restored(source)) == plain(played(reader, 4.9))
    assert read
    assert reader.at_s(min(read)) > 4.0 or read.count(min(read)) == 1


def test_a_shorter_text_after_a_seek_is_what_the_screen_shows() -> None:
    """A pane may only add to what it shows when the state went on; see `Lines.forget`."""
    from kvtui.panes.stream import Stream

    stream = Stream("vllm")
    stream._taken, stream._read = [(0, 5)], 0
    stream.forget()
    assert (stream._taken, stream._read, stream._wrapped.width) == ([], -1, 1)
