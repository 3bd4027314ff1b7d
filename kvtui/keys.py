"""The live app's keys, in the order of the last line."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from kvtui.improvements import IMPROVEMENTS

LIVE: list[BindingType] = [
    Binding("space", "pause", "Pause"),
    Binding("full_stop", "step", "Step", key_display="."),
    Binding("r", "rerun", "Rerun"),
    Binding("plus,equals_sign", "budget(1)", "Budget", key_display="+ −"),
    Binding("minus", "budget(-1)", "Budget down", show=False),
    Binding("1", "engine(1)", "Engines"),
    *(Binding(str(n), f"engine({n})", f"Engine {n}", show=False) for n in range(2, 10)),
    Binding("enter,z", "screen.zoom", "Zoom", key_display="⏎"),
    Binding("h", "screen.heat", "Heatmap"),
    Binding("p", "present", "Present"),
    Binding("t", "theme", "Light", show=False),
    Binding("d", "document", "Document"),
    Binding("c", "cache", "Cache"),
    Binding("g", "machine", "Machine"),
    Binding("i,slash", "screen.ask", "Ask"),
    Binding("ctrl+o", "open", "Open a file", show=False),
    Binding("ctrl+n", "new_conversation", "New conversation", show=False),
    *(Binding(i.key, f"improve('{i.id}')", i.name, show=False) for i in IMPROVEMENTS),
    Binding("x", "cancel", "Cancel", show=False),
    Binding("w", "restart", "Restart worker", show=False),
    Binding("s", "save_screen", "Save screen", show=False),
    Binding("question_mark", "help", "Help", key_display="?"),
    Binding("q", "quit", "Quit"),
    Binding("ctrl+q", "quit", "Quit", show=False, priority=True),
    Binding("ctrl+z", "suspend_process", "Suspend", show=False, priority=True),
]
