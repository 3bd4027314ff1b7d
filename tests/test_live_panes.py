"""Panes hold on to a state that goes on changing after `show`: whenever they are drawn, their lines fit."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.geometry import Size

from engines import events
from engines.commands import WorkerConfig
from kvtui.cache_view import View
from kvtui.inspection import Place
from kvtui.panes.cache_picture import CachePicture
from kvtui.panes.cache_title import CacheTitle
from kvtui.panes.caption import CaptionBar
from kvtui.panes.document import DocumentPane
from kvtui.panes.document_header import DocumentHeader, DocumentLegend
from kvtui.panes.header import Header
from kvtui.panes.heatmap import Heatmap
from kvtui.panes.inspector import Inspector
from kvtui.panes.legend import Legend
from kvtui.panes.lines import Lines, pieces_len
from kvtui.panes.memory import MemoryGraph
from kvtui.panes.podium import Podium
from kvtui.panes.prompts import Prompts
from kvtui.panes.ruler import Ruler
from kvtui.panes.stream import Stream
from kvtui.panes.transfer import TransferGraph
from kvtui.panes.verdict import Verdict
from kvtui.panes.vitals import Vitals
from kvtui.plausible import MOST
from kvtui.reading import Reading
from kvtui.state import RunState
from tests.synthetic import Race, started

ENGINES = ("vllm", "h2o", "infinigen")
# What is cut off at the right edge may be as long as a line of words, and no longer.
WORDS = 1200
BLOCKS, MARKS = "█▒▄▀▓━─", 12  # what lines are made of; some stand for themselves, beside a figure or in a legend

Shown = tuple[Lines, Callable[[RunState], None]]


def race() -> list[events.AnyEvent]:
    first = Race(prompt_tokens=96, new_tokens=8, total=2)
    second = Race(1, prompt_tokens=400, new_tokens=8, start_s=10.0, total=2, oom="h2o")
    return [started(), first.submitted(), *first.merged(), second.submitted(), *second.merged()]


EVENTS = race()


def column(engine: str) -> list[Shown]:
    panes = (Vitals(engine), Podium(engine), MemoryGraph(engine), Heatmap(engine), TransferGraph(engine))
    return [(pane, pane.show) for pane in panes]


def others() -> list[Shown]:
    header, picture, title = Header(WorkerConfig()), CachePicture("h2o", 2), CacheTitle()
    ruler, inspector = Ruler(), Inspector()
    reading = Reading("h2o")
    document, view = DocumentPane(reading), View(cursor=90)

    def tokens(state: RunState) -> int:
        return max((e.cache.tokens for e in state.engines.values() if e.cache), default=0)

    def look(state: RunState) -> None:
        document.show(state)
        reading.look()

    return [
        (header, lambda state: header.show(state, budget=0.3, changes=["budget 0.30 → 0.40"], ended=False)),
        (picture, lambda state: picture.show(state.engines.get("h2o"), view, tokens(state), 90)),
        (title, lambda state: title.show(state, view, tokens(state))),
        (ruler, lambda state: ruler.show(view, tokens(state))),
        (inspector, lambda state: inspector.show(state, Place(90, 3, engine="h2o"))),
        *((pane, pane.show) for pane in (Prompts([]), Verdict(), Legend(), CaptionBar(), Stream("h2o"))),
        (document, look),
        (DocumentHeader(reading, list(ENGINES)), lambda state: None),
        (DocumentLegend(reading), lambda state: None),
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, len(EVENTS)),
    st.integers(0, len(EVENTS)),
    st.integers(1, 160),
    st.integers(1, 12),
    st.sampled_from(["show", "later", "never"]),
)
def test_no_line_grows_beyond_its_pane(shown: int, more: int, width: int, height: int, moment: str) -> None:
    state = RunState()
    figures = [pane for engine in ENGINES for pane in column(engine)]
    with patch.object(DocumentPane, "size", Size(width, height)), patch("textual.widget.Widget.refresh"):
        panes = [*figures, *others()]
        state.apply_all(EVENTS[:shown])
        for _, show in panes:
            if moment != "never":
                with patch.object(Lines, "redraw"):
                    show(state)
        if moment == "later":
            state.apply_all(EVENTS[shown:][:more])
        for pane, _ in panes:
            pane.key()
            for line in pane.draw(width, height):
                assert sum(len(text) for text, _ in line) <= width + WORDS, pane
                drawn = "".join(text for text, _ in line)
                assert sum(map(drawn.count, BLOCKS)) <= width + MARKS, pane


def test_a_stream_as_long_as_no_stream_can_be_is_drawn_at_once() -> None:
    state, prompts = RunState(), Prompts(["first", "second"])
    state.apply(started())
    state.apply(replace(Race(7).submitted(), prompts_total=MOST))
    prompts.show(state)
    line, _ = prompts.draw(120, 2)
    text = "".join(piece for piece, _ in line)
    assert f"prompt 8 of {MOST}" in text
    assert "first" in text
    assert Race(7).title in text


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bar_that_was_hidden_is_on_the_scale_of_now(engine: str) -> None:
    """The presenter's mode is left before the first byte, and entered again when there are many."""
    podium, state = Podium(engine), RunState()
    state.apply(EVENTS[0])
    podium.show(state)
    state.apply_all(EVENTS[1:])
    *_, bar = podium.draw(60, 8)
    assert pieces_len(bar) == 60
    largest = max(state.engines.values(), key=lambda e: (e.cache_bytes or 0) + (e.host_bytes or 0))
    assert ("─" not in "".join(text for text, _ in bar)) == (engine == largest.id)
