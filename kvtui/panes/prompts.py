"""The prompt stream: which prompt of how many, the titles, and how the current one ends."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len, set_cell_size

from kvtui import figures, palette
from kvtui.literal import one_line, question, spoken
from kvtui.panes.lines import Lines, Piece, pieces_len
from kvtui.panes.podium import presented
from kvtui.state import PromptState, RunState

TAIL_CHARACTERS = 1000


class Prompts(Lines):
    def __init__(self, titles: list[str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._titles = titles
        self._state = RunState()

    def show(self, state: RunState) -> None:
        self._state = state
        self.redraw()

    def key(self) -> Any:
        state = self._state
        return state.prompts_total, self._all_titles(), [(p.request, self._mark(p)) for p in state.prompts]

    def _all_titles(self) -> list[str]:
        """By request: as told when the stream changed, or as it was given at the start."""
        return self._state.titles or self._titles

    def _mark(self, prompt: PromptState) -> str:
        requests = [e.requests.get(prompt.request) for e in self._state.engines.values()]
        known = [r for r in requests if r is not None]
        if known and all(r.outcome is not None for r in known):
            return "✓" if any(r.outcome is not None and r.outcome.outcome == "ok" for r in known) else "✖"
        return "▶" if any(r.prefill is not None or r.tokens for r in known) else "○"

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        state, dim = self._state, palette.style(palette.now.dim)
        prompt = state.prompt
        strong = palette.style(palette.now.foreground, bold=True)
        if prompt is not None and presented(self):
            return [[(" › ", dim), (one_line(question(prompt.text[-TAIL_CHARACTERS:])), strong)]]
        if prompt is None:
            return [[(" prompts ", dim), (f"{len(self._all_titles()) or '–'}", strong), (" in the stream", dim)]]
        line: list[Piece] = [(f" prompt {prompt.request + 1} of {state.prompts_total} ", strong)]
        known = {p.request: p for p in state.prompts}
        titles, told = [], self._all_titles()
        # Not all up to the total, which may be whatever a trace says.
        for number in sorted({*known, *range(min(len(told), state.prompts_total))}):
            there = known.get(number)
            title = there.title if there is not None else told[number] if number < len(told) else ""
            if there is not None or title:
                mark = self._mark(there) if there is not None else "○"
                titles.append((mark, one_line(title) or "untitled", there is prompt))
        # With no room for all, begin one before the current title.
        if sum(cell_len(title) + 4 for _, title, _ in titles) > width - pieces_len(line):
            index = next(i for i, (_, _, current) in enumerate(titles) if current)
            titles = titles[max(0, index - 1) :]
        for mark, title, current in titles:
            short = title if cell_len(title) <= 32 else set_cell_size(title, 31) + "…"
            line.append((f"  {mark} {short}", palette.style(palette.now.foreground, bold=True) if current else dim))
        tail = one_line(spoken(prompt.text[-TAIL_CHARACTERS:]))
        head = f" {figures.counted(prompt.prompt_tokens, 'token')}  "
        return [line, [(head, dim), *_tail(tail, width - len(head))]]


def _tail(text: str, width: int) -> list[Piece]:
    """The end of the text, where the question is."""
    quiet = palette.style(palette.now.dim, italic=True)
    if cell_len(text) <= width:
        return [(text, quiet)]
    while text and cell_len(text) > width - 2:
        text = text[max(1, (cell_len(text) - width) // 2) :]
    return [("… " + text, quiet)]
