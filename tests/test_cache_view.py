"""Moving about in the full-screen cache picture: numbers only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtui import cache_view
from kvtui.cache_view import SPAN_LEAST, View, column_of, line_of, position_at, rows_for, source_at

TOKENS = st.integers(0, 200_000)
VIEWS = st.builds(
    View,
    cursor=st.integers(-5, 250_000),
    start=st.integers(-5, 250_000),
    span=st.none() | st.integers(1, 250_000),
    follow=st.booleans(),
    heads=st.booleans(),
    layer=st.none() | st.integers(-3, 60),
    head=st.none() | st.integers(-3, 20),
)
COLUMNS = st.integers(1, 300)


def shown(view: View, tokens: int) -> View:
    return cache_view.clamped(view, tokens, 30, 3)


def holds(view: View, tokens: int) -> None:
    """What is true of every view on screen."""
    start, span = cache_view.window(view, tokens)
    assert SPAN_LEAST <= span <= cache_view.whole(tokens)
    assert 0 <= start <= max(0, tokens - 1)
    assert start <= view.cursor < start + span
    assert 0 <= view.cursor <= max(0, tokens - 1)
    assert view.layer is None or 0 <= view.layer < 30
    assert view.head is None or (view.heads and 0 <= view.head < 3)
    assert view.layer is not None or not view.heads
    if view.follow:
        assert start + span >= tokens


@given(VIEWS, TOKENS)
def test_clamping_makes_any_view_valid_and_does_it_once(view: View, tokens: int) -> None:
    once = shown(view, tokens)
    holds(once, tokens)
    assert shown(once, tokens) == once


@given(
    VIEWS,
    TOKENS,
    st.lists(
        st.tuples(st.sampled_from(["zoom", "pan", "move", "place", "follow"]), st.integers(-400, 400)), max_size=8
    ),
    COLUMNS,
)
def test_no_sequence_of_moves_leaves_what_there_is(
    view: View, tokens: int, moves: list[tuple[str, int]], columns: int
) -> None:
    view = shown(view, tokens)
    for move, by in moves:
        if move == "zoom":
            view = cache_view.zoomed(view, max(-3, min(3, by)), tokens, around=by if by > 3 else None)
        elif move == "pan":
            view = cache_view.panned(view, by, tokens)
        elif move == "move":
            view = cache_view.moved(view, by, tokens, columns)
        elif move == "place":
            view = cache_view.placed(view, by * 100, tokens)
        else:
            view = cache_view.followed(view, tokens)
        view = shown(view, tokens)
        holds(view, tokens)


@given(st.integers(2_000, 200_000), st.data(), st.integers(64, 300))
def test_zooming_in_keeps_the_cursor_in_its_place(tokens: int, data: st.DataObject, columns: int) -> None:
    cursor = data.draw(st.integers(0, tokens - 1))
    view = shown(View(cursor=cursor, follow=False), tokens)
    start, span = cache_view.window(view, tokens)
    near = shown(cache_view.zoomed(view, 1, tokens), tokens)
    begin, size = cache_view.window(near, tokens)
    assert near.cursor == cursor
    assert size == span // 2
    if 0 < begin < cache_view.tail(tokens, size):
        assert abs(column_of(cursor, begin, size, columns) - column_of(cursor, start, span, columns)) <= 1


@given(st.integers(0, 5_000), st.integers(1, 20_000), COLUMNS, st.data())
def test_cells_and_positions_agree(start: int, span: int, columns: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(start, start + span - 1))
    column = column_of(position, start, span, columns)
    assert 0 <= column < columns
    first = position_at(column, start, span, columns)
    assert start <= first <= position
    assert column_of(first, start, span, columns) == column
    if span <= columns:
        assert first == position


@given(st.integers(1, 64), st.integers(1, 40))
def test_lines_and_layers_agree(layers: int, lines: int) -> None:
    rows = rows_for(layers, lines)
    assert 0 < rows <= 2 * lines
    for layer in range(layers):
        line = line_of(layer, layers, rows)
        assert 0 <= line < lines
        assert line_of(source_at(line, layers, rows), layers, rows) == line


def test_the_tail_is_followed_in_jumps() -> None:
    view = shown(View(span=512, cursor=0), 4_000)
    starts = [cache_view.clamped(view, tokens, 30, 3, grown_from=tokens - 1).start for tokens in range(4_000, 4_033)]
    assert len(set(starts)) <= 4
    assert starts[-1] - starts[0] == 32


def test_a_cursor_on_the_newest_token_stays_on_the_newest() -> None:
    view = shown(View(cursor=99), 100)
    assert cache_view.clamped(view, 120, 30, 3, grown_from=100).cursor == 119
    assert cache_view.clamped(replace(view, cursor=98), 120, 30, 3, grown_from=100).cursor == 98
    assert cache_view.clamped(replace(view, follow=False), 120, 30, 3, grown_from=100).cursor == 99


def test_panning_back_and_forth() -> None:
    view = shown(View(span=512, cursor=3_990), 4_000)
    back = shown(cache_view.panned(view, -256, 4_000), 4_000)
    assert (back.start, back.cursor, back.follow) == (view.start - 256, 3_734, False)
    assert shown(cache_view.panned(back, 10_000, 4_000), 4_000).start == view.start


@pytest.mark.parametrize("layers", [30, 24])
def test_a_layer_that_is_no_more_becomes_the_last(layers: int) -> None:
    view = View(layer=29)
    assert cache_view.clamped(view, 100, layers, 3).layer == layers - 1
    assert cache_view.clamped(view, 100, 0, 0).layer == 29  # nothing is known of layers yet


@pytest.mark.parametrize(
    ("view", "wanted", "layer"),
    [
        (View(), 0, 4),  # which all engines were seen in, unlike the nearer 2
        (View(layer=9), 9, 8),
        (View(heads=True, layer=4), 4, 4),
        (View(heads=True, layer=4), 5, 8),
        (View(heads=True, layer=8), 7, 4),
        (View(heads=True, layer=8), 9, None),
        (View(heads=True, layer=4), 3, None),
        (View(heads=True, layer=9), 9, 8),  # of the engines that are shown now
    ],
)
def test_the_nearest_layer_that_was_seen_in_most_engines(view: View, wanted: int, layer: int | None) -> None:
    assert cache_view.seen_layer(view, wanted, [{2, 4, 8}, {4, 8}, {4, 8, 12}]) == layer
    assert cache_view.seen_layer(view, wanted, [set(), set()]) is None
