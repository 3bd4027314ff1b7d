"""What a column says first, of a question that goes on with a conversation."""

from __future__ import annotations

from msgspec.structs import replace

from engines import events
from kvtui.panes.vitals import Vitals
from kvtui.state import RunState
from tests.synthetic import Race, started

BEFORE, ASKED = 1012, 17


def lines(state: RunState, width: int) -> str:
    vitals = Vitals("vllm")
    vitals._state = state.engines["vllm"]
    return "\n".join("".join(text for text, _ in line) for line in vitals.draw(width, 4))


def asked(follow_up: bool, read: int) -> RunState:
    race, before = Race(1, prompt_tokens=ASKED, follow_up=follow_up), BEFORE if follow_up else 0
    state = RunState()
    state.apply(started())
    state.apply(replace(race.submitted(), first_position=before))
    prefill = events.Prefill(
        engine="vllm", request=1, tokens_done=read, tokens_total=before + ASKED, layers_done=30, layers_total=30
    )
    state.apply(prefill)
    return state


def test_a_follow_up_tells_its_context_from_what_was_asked() -> None:
    wide, narrow = lines(asked(True, 1025), 40), lines(asked(True, 1025), 22)
    assert "context 1,025 of 1,029" in wide
    assert "1,012 before + 17 + 0 tokens" in wide
    assert "context 1,025 of 1,029" in narrow
    assert "1,012 + 17 + 0" in narrow


def test_a_first_question_has_nothing_before_it() -> None:
    text = lines(asked(False, 9), 40)
    assert " 9 of 17" in text
    assert "17 + 0 tokens" in text
    assert "before" not in text
    assert "context" not in text
