"""Any text in ASCII, cell for cell."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from engines.events import KvState
from kvtui import ascii, palette


@given(st.text(max_size=60))
def test_width_stays_and_all_is_ascii(text: str) -> None:
    shown = ascii.to_ascii(text)
    assert shown.isascii()
    if "\u200d" in text or "\ufe0f" in text or any(ord(c) < 32 or ord(c) == 127 for c in text):
        shown = "".join(c for c in shown if 32 <= ord(c) < 127)  # controls have no width; `literal` has replaced them
    assert cell_len(shown) == cell_len(text)


@given(st.text(alphabet=st.sampled_from("a漢🙂e\u0301\u200d\ufe0f❤👩☂ｶ가"), max_size=30))
def test_width_stays_with_joiners_and_selectors(text: str) -> None:
    assert cell_len(ascii.to_ascii(text)) == cell_len(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("╭─ 1 ─╮", "+- 1 -+"),
        ("┏━ 1 ━┓", "+- 1 -+"),
        ("│┃║", "|||"),
        ("▁▂▃▄▅▆▇█", "__ooo###"),
        ("“Größe” – naïve…", '"Grose" - naive.'),
        ("−70 % · 3.3×", "-70 % . 3.3x"),
        ("漢字", "????"),
        ("Ａ", "A "),
        ("e\u0301", "e"),
        ("␛[31m", "^[31m"),
        ("⠿⠁", "*."),
    ],
)
def test_what_looks_alike(text: str, shown: str) -> None:
    assert ascii.to_ascii(text) == shown


def test_cache_states_stay_apart() -> None:
    signs = [*palette.GLYPHS.values(), *palette.THINNED]
    assert len({ascii.to_ascii(sign) for sign in signs}) == len(signs)
    assert ascii.to_ascii("█") == ascii.to_ascii(palette.GLYPHS[KvState.DEVICE])


def test_states_of_an_engine_stay_apart() -> None:
    from kvtui.panes.vitals import _STATES

    glyphs = {glyph for glyph, _ in _STATES.values()} | {"‖"}
    assert len({ascii.to_ascii(glyph) for glyph in glyphs}) == len(glyphs)


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "de_DE.utf8"}, False),
        ({"LANG": "C"}, True),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, True),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, False),
        ({"LANG": "de_DE.ISO-8859-1@euro"}, True),
        ({"LANG": "de_DE.ISO-8859-15"}, True),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, False),
    ],
)
def test_locales(environ: dict[str, str], wanted: bool) -> None:
    assert ascii.by_locale(environ) is wanted


@pytest.mark.parametrize(("term", "wanted"), [("linux", True), ("vt100", True), ("xterm", False), ("tmux", False)])
def test_terminals(term: str, wanted: bool) -> None:
    assert ascii.by_terminal({"TERM": term}) is wanted


def test_streams_say_in_ascii_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, shown in (("ascii", "a . -70 % \\u6f22 u"), ("latin-1", "a · -70 % \\u6f22 ü")):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        ascii.register()
        print("a · −70 % 漢 ü", file=stream, end="", flush=True)
        assert stream.buffer.getvalue().decode(encoding) == shown  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "environ",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}],
    ids=lambda environ: " ".join(environ),
)
def test_the_command_speaks_ascii_where_nothing_else_is_understood(environ: dict[str, str]) -> None:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHON"))}
    text = "smollm2 \\xb7 \\u221270 % of \\u201cit\\u201d"
    code = f"from kvtui import ascii; ascii.register(); print('{text}', flush=True)"
    done = subprocess.run([sys.executable, "-c", code], env=keep | environ, capture_output=True, check=True, timeout=60)
    assert done.stdout == b'smollm2 . -70 % of "it"\n'
