"""Drawing without a screen: wrapping, graphs, lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvtui.panes import graph
from kvtui.panes.lines import pieces_len, spread, to_strip
from kvtui.panes.stream import Wrapped

TEXT = st.text(alphabet=st.sampled_from("ab c\n漢🙂é[\x1b"), max_size=120)


def wrap(parts: list[str], width: int) -> list[str]:
    wrapped = Wrapped(width)
    for index, part in enumerate(parts):
        wrapped.add(part, index, 0)
    return ["".join(run.text for run in line) for line in wrapped.lines]


def test_words_stay_whole_though_they_come_in_pieces() -> None:
    assert wrap(["The light", "house", " kee", "per writes"], 12) == ["The ", "lighthouse ", "keeper ", "writes"]


def test_a_word_longer_than_the_line_is_cut() -> None:
    assert wrap(["x" * 25], 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_space_without_room_is_the_line_break() -> None:
    assert wrap(["smell", " of", " oil"], 5) == ["smell", "of ", "oil"]


@given(st.lists(TEXT, max_size=12), st.integers(2, 20))
def test_lines_fit_and_lose_no_word(parts: list[str], width: int) -> None:
    lines = wrap(parts, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join("".join(parts).replace("\x1b", "␛").split())


@given(st.lists(TEXT, max_size=12), st.integers(2, 20))
def test_breaking_as_it_comes_is_breaking_at_once_for_whole_words(parts: list[str], width: int) -> None:
    words = [word for part in parts for word in (" ", *part.split()) if len(word) <= width]
    spaced = [f"{word} " for word in words if word.strip()]
    assert wrap(spaced, width) == wrap(["".join(spaced)], width)


@given(
    st.lists(st.one_of(st.none(), st.tuples(st.floats(0, 1e9), st.floats(0, 1e9))), min_size=1, max_size=40),
    st.integers(1, 8),
)
def test_graphs_fill_their_lines(columns: list[tuple[float, float] | None], height: int) -> None:
    rows = graph.stacked(columns, height, 1e9, "#56b4e9")
    assert len(rows) == height
    assert all(pieces_len(row) == len(columns) for row in rows)


def test_the_same_bytes_are_the_same_height() -> None:
    def rows(column: tuple[float, float]) -> str:
        return "".join(text for row in graph.stacked([column], 4, 100, "#56b4e9") for text, _ in row)

    assert rows((50, 0)) == "  ██"
    assert rows((50, 25)) == " ▒██"
    assert rows((100, 0)) == "████"
    assert rows((0.1, 0)) == "   ▁"  # what is there shows


@given(st.text(max_size=40), st.text(max_size=40), st.integers(1, 30))
def test_lines_never_exceed_their_width(left: str, right: str, width: int) -> None:
    from kvtui.literal import one_line
    from kvtui.palette import style

    pieces = spread([(one_line(left), style())], [(one_line(right), style())], width)
    assert to_strip(pieces, width).cell_length <= width
