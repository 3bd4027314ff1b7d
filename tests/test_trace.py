"""Traces on disk: what is written is what is read, and nothing else is ever taken for it."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from engines import commands, events, frames
from engines.errors import BadRequest
from kvtui import trace
from kvtui.trace import TraceReader, TraceWriter, TracingSource
from tests.scripted_source import ScriptedSource
from tests.synthetic import started, whole_race


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def write(path: Path, batches: list[list[events.AnyEvent]], step_s: float = 0.5) -> Path:
    clock = Clock()
    writer = TraceWriter(path, clock)
    for batch in batches:
        assert writer.write(batch) == ""
        clock.now_s += step_s
    writer.close()
    return path


def notes(count: int) -> list[list[events.AnyEvent]]:
    return [[events.Notice(level="info", text=f"note {i}")] for i in range(count)]


@pytest.fixture
def short(tmp_path: Path) -> Path:
    return write(tmp_path / "short.kvtrace", notes(6))


def what_comes_of(path: Path) -> list[list[events.AnyEvent]] | str:
    """All events, or what is said instead."""
    try:
        return list(TraceReader(path))
    except BadRequest as fault:
        return str(fault)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    race = whole_race(prompt_tokens=64, new_tokens=8)
    batches = [race[i : i + 7] for i in range(0, len(race), 7)]
    reader = TraceReader(write(tmp_path / "run.kvtrace", batches))
    assert list(reader) == batches
    assert len(reader) == len(batches)
    assert [reader.at_s(i) for i in range(3)] == [0.0, 0.5, 1.0]
    assert reader.duration_s == 0.5 * (len(batches) - 1)
    assert [reader.frames_until(s) for s in (-1, 0, 0.4, 0.5, 1e9)] == [0, 1, 1, 2, len(batches)]
    assert reader.header.schema == events.SCHEMA_VERSION
    assert not reader.cut_off


def test_a_trace_cut_off_anywhere_plays_to_where_it_ends(short: Path, tmp_path: Path) -> None:
    whole, raw = list(TraceReader(short)), short.read_bytes()
    cut, seen = tmp_path / "cut.kvtrace", set()
    for size in range(len(raw)):
        cut.write_bytes(raw[:size])
        read = what_comes_of(cut)
        if isinstance(read, str):
            assert not seen, "a longer beginning than one that played"
            assert "\n" not in read
        else:
            assert read == whole[: len(read)]
            seen.add(len(read))
    assert seen == {1, 2, 3, 4, 5}


def test_damage_anywhere_is_one_line_and_never_other_events(short: Path, tmp_path: Path) -> None:
    whole, raw = list(TraceReader(short)), short.read_bytes()
    damaged, refused = tmp_path / "damaged.kvtrace", 0
    for place in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF):
            damaged.write_bytes(raw[:place] + bytes([raw[place] ^ flip]) + raw[place + 1 :])
            read = what_comes_of(damaged)
            if isinstance(read, str):
                assert "\n" not in read
                refused += 1
            else:
                assert read == whole
    header = struct.unpack("<I", raw[:4])[0] + 4
    assert refused >= 3 * (len(raw) - header)  # of the header, only what is told about the run may change


@pytest.mark.parametrize(
    "garbage",
    [b"\0" * 300, b"\xff" * 300, random.Random(7).randbytes(300), b"not msgpack at all " * 20],
    ids=["zeros", "ones", "noise", "words"],
)
def test_garbage_between_frames_is_found_when_the_trace_is_opened(short: Path, garbage: bytes) -> None:
    raw = short.read_bytes()
    short.write_bytes(raw[:-80] + garbage + raw[-80:])
    with pytest.raises(BadRequest, match=r"short\.kvtrace is damaged .* s in \(byte [\d,]+\)$"):
        TraceReader(short)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "is empty"),
        (b"\x01", "is not a kvtui trace"),
        (b"A page of text, not a trace.\n" * 50, "is not a kvtui trace"),
        (bytes(4000), "is not a kvtui trace"),
        (b"\x7fELF" + random.Random(7).randbytes(4000), "is not a kvtui trace"),
        (struct.pack("<I", 0xFFFFFFFF) + bytes(100), "is not a kvtui trace"),
        (struct.pack("<I", 5) + b"\xa4only", "is not a kvtui trace"),
    ],
    ids=["empty", "byte", "text", "zeros", "program", "huge frame", "short frame"],
)
def test_what_is_no_trace_is_said_in_one_line(raw: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "some.file"
    path.write_bytes(raw)
    with pytest.raises(BadRequest) as fault:
        TraceReader(path)
    assert str(fault.value) == f"{path} {said}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"cannot read .*No such file"):
        TraceReader(tmp_path / "nowhere")
    with pytest.raises(BadRequest, match="is not a file"):
        TraceReader(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRequest, match="is not a file"):
        TraceReader(tmp_path / "pipe")


def test_another_schema_version_is_said(tmp_path: Path) -> None:
    path = tmp_path / "old.kvtrace"
    header = trace.TraceHeader(magic=trace.MAGIC, schema=9999, kvtui="7.0\x1b[2J", recorded="2031")
    with path.open("wb") as file:
        frames.write_frame(file, msgspec.msgpack.encode(header))
        frames.write_frame(file, b"whatever comes then")
    with pytest.raises(BadRequest, match=r"has events of schema 9999, from kvtui 7\.0␛") as fault:
        TraceReader(path)
    assert f"plays schema {events.SCHEMA_VERSION}" in str(fault.value)


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0x0FFFFFFF])
def test_absurd_lengths_take_no_memory(short: Path, size: int) -> None:
    """Also with a checksum that fits: then the frame counts as cut off."""
    head = trace.HEAD.pack(9.0, 0, 0)[:-4]
    check = trace.zlib.crc32(head, trace.zlib.crc32(struct.pack("<I", size)))
    with short.open("ab") as file:
        file.write(struct.pack("<I", size) + head + struct.pack("<I", check) + bytes(100))
    tracemalloc.start()
    try:
        if size > frames.MAX_FRAME_BYTES:
            with pytest.raises(BadRequest, match="damaged"):
                TraceReader(short)
        else:
            reader = TraceReader(short)
            assert (len(reader), reader.cut_off) == (6, True)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("at_s", [float("nan"), float("inf"), -1.0])
def test_impossible_times_are_damage(at_s: float, tmp_path: Path) -> None:
    path = write(tmp_path / "t.kvtrace", notes(1))
    with path.open("ab") as file:
        frames.write_frame(file, trace.pack(at_s, events.encode(notes(1)[0])))
    with pytest.raises(BadRequest, match="damaged"):
        TraceReader(path)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (b"\x81\xa4type\xa6Nobody", r"Invalid value 'Nobody' - at `\$\[0\]\.type`"),
        (b"\x81\xa4type\xa6Notice", "missing required field `level`"),
    ],
)
def test_an_event_of_another_schema_is_found_when_it_is_played(tmp_path: Path, event: bytes, said: str) -> None:
    path = write(tmp_path / "t.kvtrace", notes(1))
    with path.open("ab") as file:
        frames.write_frame(file, trace.pack(3.0, b"\x91" + event))
    reader = TraceReader(path)
    assert len(reader) == 2
    unknown = rf"t\.kvtrace has an event 3\.0 s in that schema {events.SCHEMA_VERSION} does not know, .*{said}"
    with pytest.raises(BadRequest, match=unknown):
        reader.events(1)


def test_what_is_no_event_at_all_is_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "t.kvtrace", notes(1))
    with path.open("ab") as file:
        frames.write_frame(file, trace.pack(3.0, b"\x91\xc1"))
    with pytest.raises(BadRequest, match=r"is damaged 3\.0 s in: "):
        TraceReader(path).events(1)


def test_a_field_that_a_later_kvtui_added_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "t.kvtrace", notes(1))
    later = {"type": "Notice", "level": "info", "text": "hello", "mood": "fine"}
    with path.open("ab") as file:
        frames.write_frame(file, trace.pack(3.0, msgspec.msgpack.encode([later])))
    assert TraceReader(path).events(1) == [events.Notice(level="info", text="hello")]


def test_what_old_readers_would_misread_raises_the_schema_version() -> None:
    """Fields that may be left out come and go. When this fails: raise `SCHEMA_VERSION`, record the shipped traces
    anew, and write down here what the new schema demands."""
    demanded = {
        kind.__name__: " ".join(field.name for field in msgspec.structs.fields(kind) if field.required)
        for kind in get_args(events.AnyEvent)
    }
    assert (events.SCHEMA_VERSION, demanded) == (
        2,
        {
            "Loading": "stage",
            "RunStarted": "model dtype device device_is_stand_in "
            "link engines layers kv_heads context_limit weights_bytes kv_bytes_per_token",
            "Submitted": "request title text offsets prompt_tokens",
            "Prefill": "request tokens_done tokens_total layers_done layers_total",
            "Token": "request index token_id text logprob",
            "Cache": "request tokens layers whole states mass mass_bins",
            "Heads": "request layer kv_heads tokens states mass",
            "Memory": "device_bytes host_bytes device_peak_bytes host_peak_bytes "
            "device_kv_peak_bytes host_kv_peak_bytes",
            "Transfer": "h2d_bytes d2h_bytes h2d_total_bytes d2h_total_bytes span_s busy_s hidden_s measured",
            "ServerLoad": "",
            "TooLong": "ticket title tokens room_tokens",
            "Decision": "request choice reason",
            "Outcome": "request outcome",
            "Sample": "",
            "Status": "state",
            "Notice": "level text",
        },
    )


def test_a_run_that_is_killed_leaves_all_that_happened(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run.kvtrace")
    for batch in notes(3):
        writer.write(batch)
    copy = shutil.copy(tmp_path / "run.kvtrace", tmp_path / "as a crash would leave it")
    assert list(TraceReader(Path(copy))) == notes(3)
    writer.close()


def test_a_document_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "thesis.md"
    path.write_text("Years of work.")
    with pytest.raises(BadRequest, match=r"thesis\.md exists and is not a trace"):
        TraceWriter(path)
    assert path.read_text() == "Years of work."
    again = write(tmp_path / "run.kvtrace", notes(5))
    assert len(TraceReader(write(again, [[started()]]))) == 1  # a trace may be


@pytest.mark.parametrize(
    "text", [b"notes on kvtrace files", b"\x30\0\0\0 kvtrace", b"kvtrace", b"\x30\0\0\0\x84\xa5magic\xa7kvtracf"]
)
def test_what_only_looks_like_a_trace_is_not_written_over(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "notes.kvtrace"
    path.write_bytes(text)
    with pytest.raises(BadRequest, match="exists and is not a trace"):
        TraceWriter(path)
    assert path.read_bytes() == text


def test_a_start_that_fails_leaves_the_old_trace_as_it_was(short: Path) -> None:
    before = short.read_bytes()
    TraceWriter(short).close()  # something else was wrong
    writer = TraceWriter(short)
    assert writer.write(notes(1)[0]) == ""  # the model was not to be had
    writer.close()
    assert short.read_bytes() == before
    writer = TraceWriter(short)
    writer.write(notes(1)[0])
    writer.write([started()])
    assert list(TraceReader(short)) == [notes(1)[0], [started()]]  # before it is closed: a killed run leaves it
    writer.write(notes(1)[0])
    assert len(TraceReader(short)) == 3
    writer.close()


def test_two_runs_do_not_write_one_trace(short: Path) -> None:
    first = TraceWriter(short)
    with pytest.raises(BadRequest, match="is being written already"):
        TraceWriter(short)
    first.close()
    TraceWriter(short).close()


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRequest, match="is a pipe"):
        TraceWriter(tmp_path / "pipe")


@pytest.mark.parametrize(
    "event",
    [
        msgspec.structs.replace(started(), layers=1 << 62),
        msgspec.structs.replace(started(), engines=[events.EngineInfo(id="a\x1b[2J", label="")]),
        events.Status(state="idle", clock_s=float("nan")),
        events.Status(state="idle", wall_s=float("inf")),
        events.Status(state="idle", clock_s=-5.0),
        events.Status(state="idle", engine="no such engine, and a long name"),
        events.Prefill(request=0, tokens_done=-1, tokens_total=1, layers_done=0, layers_total=1),
        events.Submitted(request=0, title="", text="", offsets=[1 << 62], prompt_tokens=1),
        events.Cache(request=0, tokens=1 << 20, layers=1 << 10, whole=True, states=b"", mass=b"", mass_bins=1),
        events.Heads(request=0, layer=0, kv_heads=1 << 15, tokens=1 << 15, states=b"", mass=b""),
    ],
)
def test_what_cannot_have_happened_is_one_line(tmp_path: Path, event: events.AnyEvent) -> None:
    reader = TraceReader(write(tmp_path / "strange.kvtrace", [[event]]))
    with pytest.raises(BadRequest, match=r"is damaged 0\.0 s in: .* cannot be$"):
        list(reader)


def test_times_beyond_all_runs_are_refused_when_the_trace_is_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "strange.kvtrace", notes(1))
    with path.open("ab") as file:
        frames.write_frame(file, trace.pack(1e17, events.encode(notes(1)[0])))
    with pytest.raises(BadRequest, match="is damaged"):
        TraceReader(path)


def test_a_folder_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"cannot write .*run\.kvtrace: No such file"):
        TraceWriter(tmp_path / "nowhere" / "run.kvtrace")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_ends_the_trace_with_one_notice_and_the_run_goes_on() -> None:
    source = TracingSource(ScriptedSource([started()], *notes(3)), TraceWriter(Path("/dev/full")))
    source.start()
    said = [event for _ in range(4) for event in source.receive(1.0)]
    texts = [event.text for event in said if isinstance(event, events.Notice)]
    ended = "the trace full ends here (No space left on device); the run goes on"
    assert texts == [ended, "note 0", "note 1", "note 2"]
    source.close()


def test_a_trace_that_is_deleted_is_said(tmp_path: Path) -> None:
    path = tmp_path / "run.kvtrace"
    writer = TraceWriter(path)
    assert writer.write(notes(1)[0]) == ""
    path.unlink()
    assert "it was deleted" in writer.write(notes(1)[0])
    assert writer.write(notes(1)[0]) == ""


def test_a_tracing_source_passes_everything_on(tmp_path: Path) -> None:
    inner = ScriptedSource([started()], *notes(1))
    writer = TraceWriter(tmp_path / "run.kvtrace")
    source = TracingSource(inner, writer)
    source.start()
    assert [list(source.receive(1.0)), list(source.receive(1.0)), list(source.receive(0.01))] == [
        [started()],
        *notes(1),
        [],
    ]
    source.send(commands.Pause())
    assert inner.sent == [commands.Pause()]
    assert source.log_path == inner.log_path
    source.close()
    assert inner.closed
    writer.close()
    assert list(TraceReader(tmp_path / "run.kvtrace")) == [[started()], *notes(1)]


def test_the_trace_that_ships_is_small_and_whole() -> None:
    path = Path(trace.__file__).with_name("data") / "demo.kvtrace"
    reader = TraceReader(path)
    assert path.stat().st_size < 1_500_000
    assert not reader.cut_off
    assert isinstance(next(iter(reader))[0], events.RunStarted)  # the race at once, no loading
