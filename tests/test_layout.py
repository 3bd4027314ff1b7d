"""Lines of any text at any width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvtui.layout import Layout, line_starts
from kvtui.literal import literal

ALPHABET = "ab c\t\n漢🙂é\x1b\u202e\u0301\u200d\u200b\u3000"
TEXT = st.text(alphabet=st.sampled_from(ALPHABET), max_size=80)


def lines(text: str, width: int, dense: bool = False) -> list[str]:
    layout = Layout(width, dense=dense)
    layout.grow(text)
    return [text[slice(*layout.span(line))] for line in range(len(layout))]


def visible(line: str) -> str:
    """Without white space at its end, and what stands on it."""
    while line and (line[-1] in " \t\n\u3000" or not cell_len(literal(line[-1]))):
        line = line[:-1]
    return line


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("", 10, []),
        ("The lighthouse keeper writes", 12, ["The ", "lighthouse ", "keeper ", "writes"]),
        ("smell of oil", 5, ["smell ", "of ", "oil"]),  # the space hangs over the line's end
        ("x" * 25, 10, ["x" * 10, "x" * 10, "x" * 5]),
        ("one\n\ntwo\n", 10, ["one\n", "\n", "two\n"]),
        ("漢字漢字", 5, ["漢字", "漢字"]),  # two cells each
        ("ab漢字 cd", 4, ["ab漢", "字 ", "cd"]),
        ("漢字", 1, ["漢", "字"]),  # wider than the line
        ("a\tb", 5, ["a\t", "b"]),  # a tab is four
        ("ab\u202ecd", 8, ["ab\u202e", "cd"]),  # ⟨202E⟩ is six
        ("e\u0301e\u0301e", 2, ["e\u0301e\u0301", "e"]),  # an accent is none
        ("ab\n\u0301c", 9, ["ab\n", "\u0301c"]),  # it never goes to the line before
        ("\u200d" * 3, 4, ["\u200d" * 3]),
    ],
)
def test_lines(text: str, width: int, expected: list[str]) -> None:
    assert lines(text, width) == expected


def test_dense_lines_have_no_empty_ones_between() -> None:
    assert lines("one\n\n\ntwo\nthree", 10, dense=True) == ["one\n\n\n", "two\n", "three"]


@given(TEXT, st.integers(1, 20), st.booleans())
def test_lines_fit_and_lose_nothing(text: str, width: int, dense: bool) -> None:
    found = lines(text, width, dense)
    assert "".join(found) == text
    assert all(found)
    for line in found:
        seen = visible(line)
        assert "\n" not in seen.lstrip("\n")
        assert dense or "\n" not in line[:-1]
        assert cell_len(literal(seen)) <= width or len(seen) == 1


@given(st.lists(st.text(alphabet="abcde", min_size=1, max_size=8), max_size=30), st.integers(8, 20))
def test_words_stay_whole(words: list[str], width: int) -> None:
    assert " ".join(lines(" ".join(words), width)).split() == words


@given(st.lists(TEXT, max_size=6), st.integers(1, 20), st.booleans())
def test_growing_is_laying_out_at_once(parts: list[str], width: int, dense: bool) -> None:
    layout, text = Layout(width, dense=dense), ""
    for part in parts:
        text += part
        layout.grow(text)
    assert layout.starts == line_starts(text, width, dense)
    again = Layout(width, dense=dense)
    for end in range(0, len(text) + 7, 7):
        again.grow(text, end)
    assert again.starts == layout.starts


@given(TEXT.filter(bool), st.integers(1, 20))
def test_every_character_is_in_a_line(text: str, width: int) -> None:
    layout = Layout(width)
    layout.grow(text)
    for character in range(len(text)):
        start, end = layout.span(layout.line_of(character))
        assert start <= character < end
