"""Text is shown as it is: nothing in it can steer the terminal or hide."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtui.literal import literal, one_line, spoken


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "␛[31mred"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("a\x9b31mb", "a⟨9B⟩31mb"),
        ("a\rb", "a␍b"),
        ("\ufeffa\u202eb\u200bc", "⟨FEFF⟩a⟨202E⟩b⟨200B⟩c"),
        ("a\tb\nc", "a    b\nc"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("é 漢 🙂", "é 漢 🙂"),
        ("\ud800", "�"),
    ],
)
def test_controls_become_visible(text: str, shown: str) -> None:
    assert literal(text) == shown


@given(st.text())
def test_no_control_is_ever_left(text: str) -> None:
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in literal(text))
    assert "\n" not in one_line(text)


def test_previews_leave_out_the_chat_template() -> None:
    text = "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
    assert spoken(text) == "What is it?"
    assert spoken("a <b> c | d") == "a <b> c | d"
