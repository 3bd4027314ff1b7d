"""Pastes out of a terminal's bytes, whatever the reads look like; and a megabyte of one in a real pseudo-terminal."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtui.paste import END, HOLD_S, PATIENCE_S, START, PasteFilter
from tests.test_terminal import Terminal, terminal  # noqa: F401 - a fixture


def joined(parts: list[bytes | str]) -> list[bytes | str]:
    """Keys that came in several pieces as one."""
    whole: list[bytes | str] = []
    for part in parts:
        if isinstance(part, bytes) and whole and isinstance(whole[-1], bytes):
            whole[-1] += part
        else:
            whole.append(part)
    return whole


def fed(*reads: bytes) -> list[bytes | str]:
    """Reads that follow each other at once, then nothing for long."""
    pastes, parts = PasteFilter(), []
    for read in reads:
        parts += pastes.feed(read, 0.0)
    for late_s in (1.0, 1.0 + PATIENCE_S):
        parts += pastes.feed(b"", late_s)
    return joined(parts)


STREAM = b"a\x1b[A" + START + "naïve\r\x1b[31m [2".encode() + END + b"\x1b[B" + START + END + b"z\x1b"
EXPECTED: list[bytes | str] = [b"a\x1b[A", "naïve\r\x1b[31m [2", b"\x1b[B", "", b"z\x1b"]


@pytest.mark.parametrize("at", range(len(STREAM) + 1))
def test_a_read_may_end_anywhere(at: int) -> None:
    assert fed(STREAM[:at], STREAM[at:]) == EXPECTED


def test_byte_by_byte() -> None:
    assert fed(*(bytes([byte]) for byte in STREAM)) == EXPECTED


plain = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00")).filter(
    lambda text: "\x1b[20" not in text and not text.endswith(("\x1b", "\x1b[", "\x1b[2"))
)


@given(st.lists(st.tuples(plain, plain), max_size=5), st.data())
def test_keys_and_pastes_come_out_as_they_went_in(pieces: list[tuple[str, str]], data: st.DataObject) -> None:
    stream = b"".join(keys.encode() + START + pasted.encode() + END for keys, pasted in pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [part for keys, pasted in pieces for part in (keys.encode(), pasted) if part != b""]
    assert fed(*reads) == expected


@given(st.lists(st.binary(max_size=40)))
def test_nothing_is_held_for_ever(reads: list[bytes]) -> None:
    pastes = PasteFilter()
    for read in reads:
        list(pastes.feed(read, 0.0))
    list(pastes.feed(b"", PATIENCE_S))
    assert joined(list(pastes.feed(b"key", PATIENCE_S + 1))) == [b"key"]


def test_the_escape_key_waits_only_a_moment() -> None:
    pastes = PasteFilter()
    assert list(pastes.feed(b"\x1b", 1.0)) == []
    assert pastes.wait_s == HOLD_S
    assert list(pastes.feed(b"", 1.0 + HOLD_S / 2)) == []
    assert list(pastes.feed(b"", 1.0 + HOLD_S)) == [b"\x1b"]


def test_what_is_not_utf8_is_marked() -> None:
    assert fed(START + b"caf\xe9 \x00\xff" + END) == ["caf\ufffd \ufffd"]


def test_a_paste_without_an_end_gives_the_keyboard_back() -> None:
    pastes, now_s = PasteFilter(), 0.0
    assert list(pastes.feed(START + b"text" * 20, now_s)) == []
    parts: list[bytes | str] = []
    while not parts:  # keys of a person who wonders why nothing happens
        now_s += 0.3
        assert now_s < PATIENCE_S + 1
        parts += pastes.feed(b"q", now_s)
    assert parts == ["text" * 20 + "q" * 7]
    assert list(pastes.feed(b"q", now_s)) == [b"q"]


def test_a_slow_paste_is_waited_for() -> None:
    pastes = PasteFilter()
    assert list(pastes.feed(START, 0.0)) == []
    for second in range(20):
        assert list(pastes.feed(b"x" * 100, float(second))) == []
    assert list(pastes.feed(END + b"k", 20.0)) == ["x" * 2000, b"k"]


def test_a_megabyte_becomes_a_chip(terminal: Terminal) -> None:  # noqa: F811
    terminal.shows("tok/s")
    os.write(terminal.fd, b"i")
    terminal.shows("Leave input")
    stream = b"\xff" + START + b"line of text\r" * 80_000 + END + "ж".encode()  # \xff is no reason to end, either
    pasting = threading.Thread(target=os.write, args=(terminal.fd, stream))
    pasting.start()
    terminal.shows("pasted text · 1.04 MB")
    terminal.shows("ж")
    pasting.join()
    os.write(terminal.fd, b"\x11")
    assert terminal.code() == 0
