"""Every key, what it does, and what the glyphs mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from kvtui import spelling
from kvtui.overlaid import Dialog

Keys = Sequence[tuple[str, str]]  # keys, and what they do
KEYS = (
    ("space", "pause and resume the race"),
    (".", "while paused: one step for each engine"),
    ("r", "run the conversation's stream again, with fresh caches and without what was cancelled"),
    ("+  −", "budget up or down, from the next run on"),
    ("a f k v", "anchors, flash scoring, chunked prefill; predictive prefetch: from the next run on"),
    ("1 2 3 …", "engine on or off, from the next run on"),
    ("← →  tab", "move between the columns"),
    ("↑ ↓", "scroll the column's text"),
    ("enter  z", "zoom the column; Esc goes back"),
    ("h", "larger cache pictures, and back"),
    ("d", "the document's words as each engine has them, fading where it has let them go"),
    ("c", "the cache on the whole screen, and what is known of each token; a click on a picture does it too"),
    ("g", "the machine over time: GPU, PCIe and the engines' own traffic, CPU, memory, page faults"),
    ("p", "presenter mode: large, with captions, and back"),
    ("t", "the other of a dark and a light screen"),
    ("i  /", "to the input line; Esc leaves it"),
    ("ctrl+o", "open a file; dropping one on the terminal or pasting a long text does the same"),
    ("ctrl+n", "to the input line, to begin a new conversation"),
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
    ("0  r", "to the beginning, when the engines are ready"),
)
WATCH_KEYS = (
    ("[  ]", "the run before, the next one, where several are published"),
    ("l", "all runs, to choose one"),
)
DOCUMENT_KEYS = (
    ("1 2 3 …", "the document as that engine has it"),
    ("tab", "the next engine's; shift+tab the one before"),
    ("a", "all engines over one text"),
    ("← → ↑ ↓", "the cursor; page keys, home and end, the wheel and clicks move, too"),
    ("n", "the next word that is evicted everywhere"),
    ("N", "the next word that was fetched back or is an anchor"),
    ("/", "search: ↓ the next match, ↑ the one before; enter keeps the one shown, Esc ends the search"),
    ("f  F", "the next match of the search, the one before"),
    ("m", "evicted words as dots, and as letters"),
    ("[  ]", "the layer that is told of below"),
    ("ctrl+o", "open a file: back to the race, with the file in the input line"),
    ("esc  d", "back to the race"),
)
CACHE_KEYS = (
    ("← → ↑ ↓", "the cursor: positions, and layers or heads; a click moves it, too"),
    ("+  −", "zoom; the wheel does it, too"),
    ("⇧← →", "pan; page keys do it, too"),
    ("home", "the first position"),
    ("f  end", "follow the newest token"),
    ("m", "the KV heads of one layer, and all layers"),
    ("[  ]", "the layer before, the next layer"),
    ("l", "brightness linear, and logarithmic"),
    ("1 2 3 …", "one engine alone"),
    ("tab  a", "the next engine alone; a all of them"),
    ("esc  c", "back to the race"),
)
MACHINE_KEYS = (
    ("+  −", "a shorter and a longer time"),
    ("tab", "of several GPUs and their slices the next one; shift+tab the one before"),
    ("esc  g", "back to the race"),
)
NEEDS_A_WORKER = {".", "space", "r", "+  −", "a f k v", "1 2 3 …", "i  /", "ctrl+o", "ctrl+n", "x", "w"}
NOTES = (
    ("clock", "each engine has its own: only its steps and transfers count, so that sharing a machine is fair"),
    ("KV memory", "what the cache keeps on the device; “in all” adds weights and the prefill's transients"),
    ("graphs", "one scale for all columns: the same height is as many bytes, the same column the same position"),
    ("underlined", "tokens other than the paged engine's at the same place; a click on one tells what that said"),
    ("a cell", "of the cache: two rows of layers, many positions. Solid: half or more of it is on the device"),
    ("an entry", "a token's key and value in one layer and one KV head; the document's shares are of all of them"),
    ("attention", "“18 % of attention on 4 tokens”: what these four next to each other received of their layer's"),
    ("rank", "“rank 1 of 256 bins”: of all such stretches of the context, this one received the most attention"),
    ("≠ a model", "in a server's upper border: it has another model than the engines here"),
    ("modelled", "says so, wherever it stands; a CPU stand-in is this machine's processor playing the GPU"),
    ("g", "each chart's full height is at its left; solid up to the mean, hatched up to the peak of a column's time"),
    ("machine", "all programs on it; CPU is percent of one core; n/a: the device does not tell"),
    ("beyond", "“+0.3 GB/s beyond engines”: on PCIe, and not counted by them; a modelled link's bytes are on none"),
    ("d  c  g", "there, ? tells of more keys"),
)


class HelpScreen(Dialog[None]):
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll { width: 84; max-width: 96%; height: auto; max-height: 92%; border: round $foreground;
                                  background: $panel; padding: 0 2; border-title-style: bold; }
    HelpScreen .title { text-style: italic; margin-top: 1; }
    HelpScreen .title:first-child { margin-top: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]

    def __init__(self, recording: Keys = (), own: Keys = (), engines: Keys = ()) -> None:
        """`own` are the keys of the screen beneath: they come first, and the race's after them. `recording`: those of
        what has no worker to be asked. `engines`: number keys and whom they stand for."""
        super().__init__()
        self._scroll = VerticalScroll()
        useful = [line for line in KEYS if not (recording and line[0] in NEEDS_A_WORKER)]
        race = [*recording, *useful]
        screens = [("On this screen", own), ("On the race's screen", race)] if own else [("Keys", race)]
        numbers = [("Engines", engines)] if engines else []
        self._blocks: list[tuple[str, Keys]] = [*screens, *numbers, ("What is shown", NOTES)]

    def compose(self) -> ComposeResult:
        with self._scroll as scroll:
            scroll.border_title, scroll.border_subtitle = " Help ", spelling.keys(" ↑ ↓ scroll · esc back ")
            for title, lines in self._blocks:
                yield Static(Content(title), classes="title")
                yield Static(_side_by_side(lines))

    def on_mount(self) -> None:
        self._scroll.focus()


def _side_by_side(lines: Keys) -> Table:
    """What does not fit into its line goes on beneath itself, not beneath the keys."""
    table = Table.grid(padding=(0, 3, 0, 0))
    widest = max(cell_len(spelling.keys(keys)) for block in (KEYS, NOTES, lines) for keys, _ in block)
    table.add_column(width=widest, style="bold")
    for keys, what in lines:
        table.add_row(Text(spelling.keys(keys)), Text(spelling.keys(what)))
    return table
