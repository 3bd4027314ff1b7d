"""Every key, what it does, and what the glyphs mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from kvtui.overlaid import Dialog

Keys = Sequence[tuple[str, str]]  # keys, and what they do
KEYS = (
    ("space", "pause and resume the race"),
    (".", "while paused: one step for each engine"),
    ("r", "run the stream again from its beginning, with fresh caches"),
    ("+  −", "budget up or down, from the next run on"),
    ("a f k v", "anchors, flash scoring, chunked prefill; predictive prefetch: from the next run on"),
    ("1 2 3 …", "engine on or off, from the next run on"),
    ("← →  tab", "move between the columns"),
    ("↑ ↓", "scroll the column's text"),
    ("enter  z", "zoom the column; Esc goes back"),
    ("h", "larger cache pictures, and back"),
    ("d", "the document's words as each engine has them, fading where it has let them go"),
    ("c", "the cache on the whole screen, and what is known of each token; a click on a picture does it too"),
    ("p", "presenter mode: large, with captions, and back"),
    ("t", "the other of a dark and a light screen"),
    ("i  /", "to the input line; Esc leaves it"),
    ("ctrl+o", "open a file; dropping one on the terminal or pasting a long text does the same"),
    ("ctrl+n", "the next question starts a new conversation"),
    ("x", "cancel what is running and queued"),
    ("w", "start the worker again after it ended"),
    ("s", "save the screen as a picture (SVG)"),
    ("ctrl+p", "all commands"),
    ("ctrl+z", "suspend to the shell; fg goes on"),
    ("q  ctrl+q", "quit"),
)
REPLAY_KEYS = (
    ("space", "pause the recording and go on; at its end, from its beginning"),
    (".", "to the next tokens"),
    ("[  ]  <  >", "five seconds back, five seconds on"),
    ("{  }", "half the speed, double the speed"),
    ("0  r", "to the beginning"),
)
DOCUMENT_KEYS = (
    ("1 2 3 …", "the document as that engine has it"),
    ("tab", "the next engine's; shift+tab the one before"),
    ("a", "all engines over one text"),
    ("← → ↑ ↓", "the cursor; page keys, home and end, the wheel and clicks move, too"),
    ("n", "the next word that is evicted everywhere"),
    ("N", "the next word that was fetched back or is an anchor"),
    ("/", "search: enter and ↓ next, ↑ before, Esc ends it"),
    ("m", "evicted words as dots, and as letters"),
    ("[  ]", "the layer that is told of below"),
    ("ctrl+o", "open a file: back to the race, with the file in the input line"),
    ("esc  d", "back to the race"),
)
CACHE_KEYS = (
    ("← → ↑ ↓", "the cursor: positions, and layers or heads; a click moves it, too"),
    ("+  −", "zoom; the wheel does it, too"),
    ("⇧← ⇧→", "pan; page keys do it, too"),
    ("home", "the first position"),
    ("f  end", "follow the newest token"),
    ("m", "the KV heads of one layer, and all layers"),
    ("[  ]", "the layer before, the next layer"),
    ("l", "brightness linear, and logarithmic"),
    ("1 2 3 …", "one engine alone"),
    ("tab  a", "the next engine alone; a all of them"),
    ("esc  c", "back to the race"),
)
NEEDS_A_WORKER = {".", "space", "r", "+  −", "a f k v", "1 2 3 …", "i  /", "ctrl+o", "ctrl+n", "x", "w"}
NOTES = """
Each engine has a clock of its own: only its own steps and transfers advance it. So every column runs at the speed \
that it would have on a machine of its own, and the race is fair although they share one.

"KV memory" is what the cache keeps on the device; "in all" adds the weights and the transients of the prefill. \
Graphs share one scale: the same bytes are the same height, the same position is the same place.

Tokens that differ from those of the paged engine at the same place are underlined, the first one is inverted.

A cell of the cache picture stands for two rows of layers and many positions: solid where at least half of them are \
on the device, dots where fewer are, a single dot where they are gone.

On the document's screen (d) a word is as bright as the share of layers and heads in which its KV entry is on the \
device. 1 2 3 and tab choose the engine, a lays all of them over one text; arrows, page keys, home, end, the wheel or \
a click move; n goes to the next word that is evicted everywhere, N to the next that was fetched back or is an \
anchor; / searches (enter and ↓ next, ↑ before, Esc ends it); m shows evicted words as dots; [ and ] choose the layer \
of which is told below.

On the cache screen (c) the arrows or a click move the cursor, + and − or the wheel zoom, shift with an arrow pans, f \
follows the newest token, m shows the KV heads of one layer, [ and ] go to the next layer, l is linear brightness, \
1 2 3 show one engine and a all of them. Below stands what each engine has made of the token under the cursor.

A click on a token that differs says what the paged engine said in its place.

What is modelled says so. A "CPU stand-in" is this machine's processor playing the GPU.
"""


class HelpScreen(Dialog[None]):
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll { width: 84; max-width: 96%; height: auto; max-height: 92%; border: round $foreground;
                                  background: $panel; padding: 0 2; border-title-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]

    def __init__(self, recording: bool = False, own: Keys = ()) -> None:
        """`own` are the keys of the screen beneath: they come first, and the race's after them."""
        super().__init__()
        useful = [line for line in KEYS if not (recording and line[0] in NEEDS_A_WORKER)]
        race = [*REPLAY_KEYS, *useful] if recording else useful
        self._blocks = [own, race] if own else [race]

    def compose(self) -> ComposeResult:
        with VerticalScroll() as scroll:
            scroll.border_title = " Help "
            width = max(len(keys) for block in self._blocks for keys, _ in block)
            for title, block in zip(("On this screen", "On the race's screen"), self._blocks, strict=False):
                lines = [Content.assemble((f"{keys:<{width}}", "bold"), f"   {what}") for keys, what in block]
                if len(self._blocks) > 1:
                    lines = [Content.styled(title, "bold"), *lines, Content("")]
                yield Static(Content("\n").join(lines))
            yield Static(Content(NOTES))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
