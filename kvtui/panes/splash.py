"""What there is to see while the weights load: stages with a bar, and what the three engines do."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import ProgressBar, Static

from engines.events import ENGINE_LABELS
from kvtui import palette
from kvtui.literal import one_line
from kvtui.state import RunState

_WHAT = {
    "vllm": "keeps every token's keys and values on the device, in pages",
    "h2o": "keeps the heavy hitters and the most recent tokens, and evicts the rest for good",
    "h2o+": "H2O in pieces, with flash attention, and what matters early protected",
    "infinigen": "keeps all of them in host memory, and fetches those that the next step needs",
    "infinigen+": "InfiniGen that fetches only what the last steps did not",
    "vllm-server": "the real one, asked over the network, on a clock of its own",
    "hybrid": "gives each request to one of them, by its task and the memory that is free",
}
_COUNT = {1: "one KV cache", 2: "two KV caches", 3: "three KV caches"}


class Splash(Vertical):
    DEFAULT_CSS = """
    Splash { align: center middle; height: 1fr; }
    Splash > Static { width: auto; max-width: 96%; height: auto; }
    Splash > #title { text-style: bold; margin-bottom: 1; }
    Splash > #stages { margin-top: 1; color: $foreground; }
    Splash > ProgressBar { width: auto; margin-top: 1; }
    Splash > ProgressBar Bar { width: 40; }
    .-narrow Splash > ProgressBar Bar { width: 20; }
    """

    def __init__(self, model: str, engines: list[str]) -> None:
        """Without `engines`, they are somebody else's, and so is the worker."""
        super().__init__()
        self._engines = engines
        self._begun = f"{'starting the worker' if engines else 'waiting'} for {one_line(model)}"
        self._shown: object = (None, False)

    def compose(self) -> ComposeResult:
        caches = _COUNT.get(len(self._engines), "several KV caches")
        yield Static(Content(f"kvtui · one prompt stream, {caches}, side by side"), id="title")
        yield Static(self._what(), id="what")
        yield Static(Content(f"◌ {self._begun}"), id="stages")
        yield ProgressBar(total=None, show_eta=False, show_percentage=True)

    def _what(self) -> Content:
        labels = {e: ENGINE_LABELS.get(e, e) for e in self._engines}
        width = max(map(len, labels.values()), default=0)
        lines = [
            Content.assemble((f"{label:<{width}}", f"bold {palette.engine_color(e)}"), f"  {_WHAT.get(e, '')}")
            for e, label in labels.items()
        ]
        return Content("\n").join(lines)

    def recolor(self) -> None:
        self.query_one("#what", Static).update(self._what())

    def show(self, state: RunState) -> None:
        loading = state.loading
        if (loading, state.over) == self._shown:
            return
        self._shown = loading, state.over
        done = [f"✓ {one_line(stage)}" for stage in state.stages[:-1]]
        now = f"◌ {one_line(loading.stage) if loading is not None else self._begun}"
        if state.over:
            now = "■ it is over, and nothing of it is known" if loading is None else f"■ it ended at: {now[2:]}"
        self.query_one("#stages", Static).update(Content("\n".join([*done[-4:], now])))
        fraction = loading.fraction if loading is not None else None
        self.query_one(ProgressBar).display = not state.over
        self.query_one(ProgressBar).update(total=None if fraction is None else 1.0, progress=fraction or 0.0)
