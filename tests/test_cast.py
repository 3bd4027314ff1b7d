"""Recordings of the terminal: what `asciinema play` is given, and what it must not be given."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from engines.errors import BadRequest
from kvtui.cast import CastWriter

ROOT = Path(__file__).parent.parent
SIZE = (80, 24)


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def read(path: Path) -> tuple[dict[str, Any], list[Any]]:
    header, *lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return header, lines


def test_a_frame_is_an_event_at_its_time(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-kitty")
    path = tmp_path / "talk.cast"
    cast = CastWriter(path, clock=clock)
    cast.add("\x1b[?1049h")
    cast.add("first ü▌")
    assert cast.end_frame(SIZE) == ""
    clock.now_s += 1.25
    cast.add("second\n")
    cast.end_frame(SIZE)
    cast.end_frame(SIZE)  # nothing was added
    header, lines = read(path)  # before it is closed: each frame is in the file at once
    cast.close()
    assert lines == [[0.0, "o", "\x1b[?1049hfirst ü▌"], [1.25, "o", "second\n"]]
    assert (header["version"], header["width"], header["height"]) == (2, 80, 24)
    assert header["env"] == {"TERM": "xterm-kitty"}
    assert isinstance(header["timestamp"], int)


def test_at_a_fixed_speed_each_frame_lasts_as_long(tmp_path: Path, clock: Clock) -> None:
    cast = CastWriter(tmp_path / "talk.cast", frames_per_s=4, clock=clock)
    for gap_s in (0.0, 0.001, 60.0):
        clock.now_s += gap_s
        cast.add("x")
        cast.end_frame(SIZE)
    assert [line[0] for line in read(tmp_path / "talk.cast")[1]] == [0.0, 0.25, 0.5]


def test_a_new_size_is_an_event_before_what_is_drawn_for_it(tmp_path: Path, clock: Clock) -> None:
    cast = CastWriter(tmp_path / "talk.cast", clock=clock)
    for size in (SIZE, (100, 30), (100, 30)):
        cast.add("x")
        cast.end_frame(size)
    assert [line[1:] for line in read(tmp_path / "talk.cast")[1]] == [
        ["o", "x"],
        ["r", "100x30"],
        ["o", "x"],
        ["o", "x"],
    ]


@pytest.mark.parametrize(
    "steering",
    [
        "\x1b[?1000h", "\x1b[?1003l", "\x1b[?1006h", "\x1b[?1015h", "\x1b[?1016h", "\x1b[?1004h", "\x1b[?2004h",
        "\x1b[?2048h", "\x1b[?2026$p", "\x1b[?2048$p", "\x1b[>25u", "\x1b[<u", "\x1b[c", "\x1b[6n",
        "\x1b]52;c;aGk=\x07", "\x1b]0;a title\x1b\\", "\x1b]8;;https://example.org\x1b\\",
    ],
)  # fmt: skip
def test_who_watches_keeps_mouse_keys_and_clipboard(steering: str, tmp_path: Path, clock: Clock) -> None:
    """Also when a sequence comes in pieces."""
    for cut in range(len(steering)):
        path = tmp_path / f"{cut}.cast"
        cast = CastWriter(path, clock=clock)
        cast.add("before" + steering[:cut])
        cast.end_frame(SIZE)
        cast.add(steering[cut:] + "after")
        cast.end_frame(SIZE)
        assert "".join(line[2] for line in read(path)[1]) == "beforeafter"


def test_what_draws_is_kept_as_it_is(tmp_path: Path, clock: Clock) -> None:
    drawn = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2026h\x1b[2;3H\x1b[0;1;38;2;1;2;3mtext\x1b[0m\x1b[?2026l\x1b[?25h"
    cast = CastWriter(tmp_path / "talk.cast", clock=clock)
    cast.add(drawn)
    cast.end_frame(SIZE)
    assert read(tmp_path / "talk.cast")[1] == [[0.0, "o", drawn]]


def test_half_a_surrogate_pair_is_no_reason_to_stop(tmp_path: Path, clock: Clock) -> None:
    cast = CastWriter(tmp_path / "talk.cast", clock=clock)
    cast.add("a\ud83db")
    assert cast.end_frame(SIZE) == ""
    assert read(tmp_path / "talk.cast")[1] == [[0.0, "o", "a?b"]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_ends_the_recording_with_one_notice(clock: Clock) -> None:
    cast = CastWriter(Path("/dev/full"), clock=clock)
    said = []
    for _ in range(3):
        cast.add("x")
        said.append(cast.end_frame(SIZE))
    assert said == ["the recording full ends here: No space left on device", "", ""]


def test_a_document_is_not_recorded_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadRequest, match="exists and is not a recording"):
        CastWriter(tmp_path / "notes.txt")
    with pytest.raises(BadRequest, match="cannot write"):
        CastWriter(tmp_path / "nowhere" / "talk.cast")


@pytest.mark.parametrize("text", ['{"name": "kvtui"}', '{"version": 3, "width": 80}\n', '{"version": 2}', "{", "[2]"])
def test_json_is_not_recorded_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "package.json").write_text(text)
    with pytest.raises(BadRequest, match="exists and is not a recording"):
        CastWriter(tmp_path / "package.json")
    assert (tmp_path / "package.json").read_text() == text


def test_a_recording_stays_until_the_next_one_begins(tmp_path: Path) -> None:
    path, old = tmp_path / "talk.cast", '{"version": 2, "width": 80, "height": 24}\n[0.0, "o", "' + "x" * 900 + '"]\n'
    path.write_text(old)
    CastWriter(path).close()
    assert path.read_text() == old
    cast = CastWriter(path)
    with pytest.raises(BadRequest, match="is being written already"):
        CastWriter(path)
    cast.add("new")
    cast.end_frame(SIZE)
    cast.close()
    assert [event[2] for event in read(path)[1]] == ["new"]


def spawn(*arguments: str, size: tuple[int, int] = (120, 36)) -> pexpect.spawn:
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    return pexpect.spawn(
        sys.executable,
        ["-m", "kvtui.cli", *arguments],
        cwd=ROOT,
        env=environment,
        dimensions=(size[1], size[0]),
        timeout=30,
    )


def test_the_app_is_recorded_as_the_terminal_saw_it(tmp_path: Path) -> None:
    path = tmp_path / "talk.cast"
    child = spawn("replay", "--speed", "8", "--record", str(path))
    child.expect("tok/s")
    child.setwinsize(30, 100)
    child.expect(r"< >")
    child.send("q")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    header, lines = read(path)
    assert (header["width"], header["height"]) == (120, 36)
    assert [line[2] for line in lines if line[1] == "r"] == ["100x30"]
    times = [line[0] for line in lines]
    assert times == sorted(times)
    drawn = "".join(line[2] for line in lines if line[1] == "o")
    assert "Paged (vLLM-style)" in drawn
    for mode in ("?1049", "?25", "?7"):  # whoever plays it gets their terminal back, too
        on, off = ("l", "h") if mode in ("?25", "?7") else ("h", "l")
        assert 0 <= drawn.find(f"\x1b[{mode}{on}") < drawn.rfind(f"\x1b[{mode}{off}")
    assert not re.search(r"\x1b\[\?(100\d|101\d|2004|2048)|\x1b\[[<>]|\$p|\x1b\]", drawn)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_the_app_goes_on_when_the_recording_cannot() -> None:
    child = spawn("replay", "--record", "/dev/full")
    child.expect("No space left")
    child.expect("tok/s")
    child.send("q")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
