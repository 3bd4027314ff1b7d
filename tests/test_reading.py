"""Reading a conversation: tokens and their positions, moving, switching engines, searching, jumping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from engines import events
from engines.events import KvState, pack_cell
from kvtui.fading import Kind
from kvtui.literal import literal
from kvtui.manuscript import Address, Manuscript
from kvtui.matches import Matches
from kvtui.reading import ALL, LAID_OUT_AT_ONCE, Reading
from kvtui.state import RunState
from tests.synthetic import started

NASTY = "ab c\t\n漢🙂é\x1b\u202e\u0301\u200d[/]"


def asked(text: str, ends: list[int], request: int = 0, engine: str = "", position: int = 0) -> events.Submitted:
    return events.Submitted(
        run="synthetic",
        engine=engine,
        request=request,
        title="title",
        text=text,
        offsets=ends,
        prompt_tokens=len(ends),
        first_position=position,
        follow_up=request > 0,
    )


def said(engine: str, *texts: str, request: int = 0, first: int = 0) -> list[events.AnyEvent]:
    return [
        events.Token(
            run="synthetic",
            engine=engine,
            request=request,
            index=first + index,
            token_id=hash(text) & 0xFFFF,
            text=text,
            logprob=0.0,
        )
        for index, text in enumerate(texts)
    ]


def picture(engine: str, column: list[KvState]) -> events.Cache:
    """Two layers, both alike."""
    cells = np.array([[pack_cell(s, s in (KvState.DEVICE, KvState.FETCHED)) for s in column]] * 2, np.uint8)
    return events.Cache(
        run="synthetic",
        engine=engine,
        request=0,
        tokens=len(column),
        layers=2,
        whole=True,
        states=events.deflate(cells.tobytes()),
        mass=events.deflate(b"\0\0"),
        mass_bins=1,
    )


def state_of(*batch: events.AnyEvent) -> RunState:
    state = RunState()
    state.apply_all([started(), *batch])
    return state


def words(count: int) -> tuple[str, list[int]]:
    """A text of numbers, a token each."""
    text, ends = "", []
    for number in range(count):
        text += f"{number:04} "
        ends.append(len(text))
    return text, ends


def reading_of(state: RunState, engine: str = "vllm", width: int = 50, lines: int = 10) -> Reading:
    reading = Reading(engine)
    reading.take(state)
    reading.resize(width, lines)
    return reading


def shown(reading: Reading) -> list[str]:
    """The tokens that begin the lines on the screen."""
    return [reading.script.text[slice(*reading.layout.span(line))][:4] for line in reading.visible()]


def test_a_conversation_is_one_text_with_positions() -> None:
    state = state_of(asked("Hi there", [2, 8]), *said("h2o", "Oh", "", " 漢"))
    state.apply_all([asked("More?", [4, 5], request=1, engine="h2o", position=5), *said("h2o", "No", request=1)])
    script = Manuscript("h2o")
    script.take(state.engines["h2o"])
    assert script.text == "Hi thereOh 漢More?No"
    assert [script.text[slice(*script.span(token))] for token in range(len(script))] == (
        ["Hi", " there", "Oh", "", " 漢", "More", "?", "No"]
    )
    assert [script.position_of(token) for token in range(8)] == list(range(8))
    assert [script.token_of(character) for character in (0, 2, 8, 10, 11, 12, 99)] == [0, 1, 2, 4, 4, 5, 7]
    assert script.address_of(4) == Address(0, True, 2)
    assert [script.find(script.address_of(token)) for token in range(8)] == list(range(8))
    assert script.find(Address(0, True, 40)) == 4
    assert script.find(Address(7, True, 0)) is None


def test_a_manuscript_goes_on_and_begins_anew() -> None:
    state = state_of(asked("Hi", [2]), *said("vllm", "one"))
    script = Manuscript("vllm")
    assert script.take(state.engines["vllm"])
    state.apply_all(said("vllm", " two", first=1))
    assert script.take(state.engines["vllm"])
    assert script.text == "Hione two"
    state.apply_all(said("vllm", " other", first=1))  # preempted and recomputed
    assert script.take(state.engines["vllm"])
    state.apply_all(said("vllm", "1", first=0))
    assert not script.take(state.engines["vllm"])
    assert script.text == "Hi1"
    state.apply(asked("Ho", [2]))  # run again
    assert not script.take(state.engines["vllm"])
    assert script.text == "Ho"
    assert not script.take(None)
    assert (script.text, len(script)) == ("", 0)


@pytest.mark.parametrize("ends", [[9, 3, 4], [2, 2, 99], [0, 0, 0]])
def test_offsets_that_make_no_sense_are_borne(ends: list[int]) -> None:
    script = Manuscript("vllm")
    script.take(state_of(asked("four", ends)).engines["vllm"])
    assert script.ends == sorted(script.ends)
    assert script.ends[-1] == len(script.text) == 4


@given(st.lists(st.text(alphabet=st.sampled_from(NASTY), max_size=6), min_size=1, max_size=12), st.integers(1, 12))
def test_each_cell_belongs_to_the_token_that_is_shown_there(pieces: list[str], width: int) -> None:
    text, ends = "".join(pieces), [len("".join(pieces[: index + 1])) for index in range(len(pieces))]
    reading = reading_of(state_of(asked(text, ends)), width=width, lines=100)
    for line in range(len(reading.layout)):
        start, end = reading.layout.span(line)
        owners = [
            next(token for token, stop in enumerate(ends) if character < stop)
            for character in range(start, end)
            for _ in range(cell_len(literal(text[character])) if text[character] != "\n" else 0)
        ]
        assert [reading.token_at(line, cell) for cell in range(len(owners))] == owners
        assert reading.token_at(line, 999) == reading.script.token_of(end - 1)


def test_moving() -> None:
    reading = reading_of(state_of(asked(*words(1000))))
    assert shown(reading)[0] == "0000"
    reading.move(1)
    reading.move_lines(1)
    assert (reading.cursor, reading.top_line) == (11, 0)
    reading.move_lines(9)
    assert (reading.cursor, reading.top_line) == (101, 1)  # only as far as needed
    reading.page(1)
    assert (reading.cursor, shown(reading)[0]) == (101, "0100")  # a line of the last page stays
    reading.scroll(-4)
    assert (reading.cursor, shown(reading)[0]) == (101, "0060")
    reading.scroll(20)
    assert (reading.cursor, shown(reading)[0]) == (261, "0260")  # the cursor stays on the screen, in its column
    reading.end()
    assert (reading.cursor, shown(reading)[-1]) == (999, "0990")
    reading.page(1)
    reading.move(1)
    reading.move_lines(3)
    assert reading.cursor == 999
    reading.home()
    reading.page(-1)
    reading.move(-1)
    assert (reading.cursor, reading.top) == (0, 0)


def test_the_cursor_never_rests_where_nothing_is_shown() -> None:
    reading = reading_of(state_of(asked("", []), *said("vllm", "", "a", "", "", "漢", "")))
    assert reading.cursor in (0, 1)
    reading.home()
    assert reading.cursor == 1
    reading.move(1)
    assert reading.cursor == 4
    reading.move(1)
    assert reading.cursor == 4
    reading.end()
    assert reading.cursor == 4


def test_a_resize_keeps_what_is_at_the_top() -> None:
    reading = reading_of(state_of(asked(*words(1000))))
    reading.go(505)
    reading.scroll(5)
    top = shown(reading)[0]
    for width in (23, 200, 7, 50):
        reading.resize(width, 10)
        assert int(top) in reading.tokens_of(reading.visible()[:1]), width
    assert shown(reading)[0] == top


def test_it_follows_the_end_until_it_is_moved() -> None:
    text, ends = words(200)
    state = state_of(asked(text, ends))
    reading = reading_of(state)
    reading.end()
    state.apply_all(said("vllm", *(f"+{n:03} " for n in range(40))))
    reading.take(state)
    assert (reading.cursor, shown(reading)[-1]) == (239, "+030")
    reading.move(-1)
    state.apply_all(said("vllm", "x " * 200, first=40))
    reading.take(state)
    assert reading.cursor == 238


def test_another_engine_has_the_same_words_in_the_same_place() -> None:
    text, ends = words(300)
    state = state_of(
        asked(text, ends),
        *said("vllm", *"abcdef"),
        *said("h2o", *"ab"),
        *(events.Outcome(run="synthetic", engine=engine, request=0, outcome="ok") for engine in ("vllm", "h2o")),
        asked(text, ends, request=1, engine="vllm", position=306),
        asked(text[5:], [end - 5 for end in ends[1:]], request=1, engine="h2o", position=302),
    )
    reading = reading_of(state)
    reading.go(450, centered=True)
    assert reading.script.position_of(450) == 450
    reading.choose("h2o")
    assert reading.script.position_of(reading.cursor) == 445  # four tokens fewer said, one fewer asked
    assert reading.script.text[slice(*reading.script.span(reading.cursor))] == "0144 "
    reading.choose("vllm")
    assert reading.cursor == 450
    reading.choose(ALL)
    assert (reading.script.engine, reading.cursor) == ("vllm", 450)


def test_a_new_conversation_is_read_from_its_beginning_and_a_rerun_from_where_it_was() -> None:
    text, ends = words(500)
    state = state_of(asked(text, ends), *said("vllm", "yes"))
    reading = reading_of(state)
    reading.go(400)
    top = reading.top
    state.apply(asked(text, ends))
    reading.take(state)
    assert (reading.cursor, reading.top) == (400, top)
    state.apply(asked("another " * 500, [8 * (n + 1) for n in range(500)]))
    reading.take(state)
    assert (reading.cursor, reading.top) == (0, 0)
    reading.take(RunState())
    assert reading.empty
    reading.move(1), reading.page(1), reading.end(), reading.find("x"), reading.scroll(3), reading.move_lines(1)
    assert reading.jump(Kind.EVICTED) is None


def test_long_documents_are_laid_out_bit_by_bit() -> None:
    count = 3 * LAID_OUT_AT_ONCE // 5
    text, ends = words(count)
    reading = reading_of(state_of(asked(text, ends)))
    assert not reading.finished
    assert reading.layout.end == LAID_OUT_AT_ONCE
    reading.go(count // 2)  # what is needed is laid out at once
    assert reading.line_of(reading.cursor) in reading.visible()
    while not reading.finished:
        reading.lay_out_more()
    reading.end()
    assert reading.layout.end == len(text)


def test_jumps_go_around_and_say_so() -> None:
    gone, kept, fetched = KvState.EVICTED, KvState.DEVICE, KvState.FETCHED
    column = [kept, gone, gone, kept, kept, gone, fetched, kept]
    state = state_of(asked(*words(8)), picture("h2o", column), picture("vllm", [kept] * 8))
    reading = reading_of(state, "h2o")
    assert (reading.jump(Kind.EVICTED), reading.cursor) == (False, 1)
    assert (reading.jump(Kind.EVICTED), reading.cursor) == (False, 5)
    assert (reading.jump(Kind.EVICTED), reading.cursor) == (True, 1)
    assert (reading.jump(Kind.FETCHED, Kind.ANCHOR), reading.cursor) == (False, 6)
    reading.choose("vllm")
    assert reading.jump(Kind.EVICTED) is None
    reading.choose(ALL)  # in any of them
    assert (reading.jump(Kind.EVICTED), reading.cursor) == (True, 1)


def test_searching() -> None:
    text = "The Lantern.\nthe  lantern, THE\nLANTERN [x]"
    reading = reading_of(state_of(asked(text, list(range(1, len(text) + 1)))))
    reading.find("the lantern")
    assert reading.search is not None
    assert (len(reading.search), reading.cursor) == (3, 0)
    assert (reading.find_next(1), reading.cursor) == (False, 13)
    assert (reading.find_next(-1), reading.find_next(-1)) == (False, True)
    assert text[reading.cursor :].startswith("THE")
    reading.find("[x]")  # literally
    assert len(reading.search) == 1
    assert (reading.find_next(1), reading.find_next(-1)) == (False, False)  # it is the only one
    reading.find("the lantern")
    reading.go(5)  # between matches: from there
    assert (reading.find_next(1), reading.cursor) == (False, 13)
    reading.go(5)
    assert (reading.find_next(-1), reading.cursor) == (False, 0)
    reading.end()
    assert (reading.find_next(-1), text[reading.cursor :][:3]) == (False, "THE")
    reading.end()
    assert (reading.find_next(1), reading.cursor) == (True, 0)
    reading.find("nowhere")
    assert (len(reading.search), reading.find_next(1)) == (0, False)
    reading.find("")
    assert reading.search is None


@given(st.text(alphabet="aAb \n", max_size=40), st.text(alphabet="aAb ", min_size=1, max_size=3), st.integers(0, 40))
def test_searching_a_growing_text_finds_the_same(text: str, query: str, cut: int) -> None:
    whole, grown = Matches(query), Matches(query)
    whole.take(text)
    grown.take(text[:cut])
    grown.take(text)
    assert len(grown) >= len(whole) - 1  # a match at the cut may be longer or elsewhere by then
    if " " not in query:
        assert (grown.starts, grown.ends) == (whole.starts, whole.ends)


def test_pages_of_white_space_do_not_hold_a_search_up() -> None:
    matches = Matches("a b")
    matches.take(" " * 300_000 + "a  b")
    assert matches.starts == [300_000]
