"""One token of the conversation in every engine, side by side."""

from __future__ import annotations

from typing import Any

from rich.cells import set_cell_size

from engines.events import KvState
from kvtui import figures, palette
from kvtui.inspection import Facts, Place, Word, facts
from kvtui.literal import quoted
from kvtui.panes.lines import Lines, Piece, pieces_len, rule, to_pieces, to_strip
from kvtui.state import PAGED, RunState

SIDE_BY_SIDE_COLUMNS = 27  # an engine; with less, each engine is one line
GAP = 2

STATES = {
    KvState.ABSENT: "not in the cache",
    KvState.DEVICE: "on device",
    KvState.HOST: "on host",
    KvState.DISK: "on disk",
    KvState.FETCHED: "fetched now",
    KvState.EVICTED: "evicted",
    KvState.ANCHOR: "anchor",
}
_COLORS = {KvState.HOST: "dim", KvState.DISK: "dim", KvState.FETCHED: "fetched", KvState.EVICTED: "dim"}


class Inspector(Lines):
    """A title line, then what `inspection.facts` knows: a column an engine, or a line an engine where it is narrow."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._place: Place | None = None
        self._facts: list[Facts] = []

    def show(self, state: RunState, place: Place | None) -> None:
        self._place = place
        self._facts = facts(state, place) if place is not None else []
        self.redraw()

    def key(self) -> Any:
        return palette.now.name, self._place, self._facts

    def draw(self, width: int, height: int) -> list[list[Piece]]:
        if self._place is None or not self._facts:
            return []
        dim = palette.style(palette.now.dim)
        wide = width // len(self._facts) >= SIDE_BY_SIDE_COLUMNS and height >= 4
        strong = palette.style(palette.now.foreground, bold=True)
        title = rule([(_title(self._place), strong)], [(_where(self._facts), dim)], width)
        if not wide:
            return [title, *(_abbreviated(one, self._place) for one in self._facts)]
        column = (width - GAP * (len(self._facts) - 1)) // len(self._facts)
        blocks = [_block(one, self._place) for one in self._facts]
        lines = [title]
        for y in range(max(map(len, blocks))):
            line: list[Piece] = []
            for block in blocks:
                cut = to_pieces(to_strip(block[y] if y < len(block) else [], column))
                line += [*cut, (" " * (column + GAP - pieces_len(cut)), dim)]
            lines.append(line)
        return lines


def _title(place: Place) -> str:
    parts = [f"position {place.position:,}"]
    parts.append("all layers" if place.layer is None else f"layer {place.layer + 1}")
    if place.layer is not None:
        parts.append("all heads" if place.head is None else f"head {place.head + 1}")
    return " · ".join(parts)


def _where(all_facts: list[Facts]) -> str:
    """Which token of which request this is, where that is the same in all engines that know."""
    said = {_part(one.word) for one in all_facts if one.word is not None}
    return said.pop() if len(said) == 1 else ""


def _part(word: Word) -> str:
    what = "answer" if word.answer else "prompt"
    return f"prompt {word.request + 1} · {what} token {word.index + 1:,}"


def _block(one: Facts, place: Place) -> list[list[Piece]]:
    """One engine's lines: name and token, state, attention, since when, and what is different."""
    color = palette.engine_color(one.engine)
    strong, dim = palette.style(color, bold=True), palette.style(palette.now.dim)
    plain = palette.style(palette.now.foreground)
    lines: list[list[Piece]] = [[(f"{_name(one)} ", strong), *_token(one), *_moved(one, place)], _state(one)]
    if (mass := one.mass) is not None:
        bins = f" on {mass.tokens:,} tokens" if mass.tokens > 1 else ""
        lines.append([(figures.share(mass.share), plain), (f" of attention{bins}", dim)])
        among = f" of {mass.of:,}{' bins' if mass.tokens > 1 else ''}"
        lines.append([("rank ", dim), (f"{mass.rank:,}" if mass.rank is not None else "–", plain), (among, dim)])
    if one.since_tokens is not None and one.since:
        lines.append([("since ", dim), (one.since, plain), (f" · token {one.since_tokens:,}", dim)])
    if one.as_of_tokens is not None:
        lines.append([(f"attention as of token {one.as_of_tokens:,}", dim)])
    return lines


def _abbreviated(one: Facts, place: Place) -> list[Piece]:
    color, dim = palette.engine_color(one.engine), palette.style(palette.now.dim)
    line = [(f"{set_cell_size(_name(one), 9)} ", palette.style(color, bold=True)), *_state(one), ("  ", dim)]
    if one.mass is not None:
        line.append((f"{figures.share(one.mass.share)}  ", palette.style(palette.now.foreground)))
    return [*line, *_token(one), *_moved(one, place)]


def _moved(one: Facts, place: Place) -> list[Piece]:
    """Where this engine has the token, if that is not where the title says."""
    if one.position is None or one.position == place.position:
        return []
    return [(f" · position {one.position:,}", palette.style(palette.now.dim))]


def _name(one: Facts) -> str:
    return "Paged" if one.engine == PAGED else one.label


def _token(one: Facts) -> list[Piece]:
    """The token in quotes; where it differs from the paged engine's, that one too."""
    if one.word is None:
        return [("–", palette.style(palette.now.dim))]
    if one.word.paged_text is None:
        return [(quoted(one.word.text), palette.style(palette.now.foreground, bold=True))]
    return [
        (quoted(one.word.text), palette.style(palette.now.error, bold=True, underline=True)),
        (" ≠ paged ", palette.style(palette.now.error)),
        (quoted(one.word.paged_text), palette.style(palette.now.foreground, bold=True)),
    ]


def _state(one: Facts) -> list[Piece]:
    if one.missing:
        return [(f"– {one.missing}", palette.style(palette.now.dim, italic=True))]
    state = one.state
    color = getattr(palette.now, _COLORS[state]) if state in _COLORS else palette.engine_color(one.engine)
    if state == KvState.ANCHOR:
        color = palette.now.anchor
    words = STATES[state]
    held = dict(one.cells).get(state, 0)
    if one.unit and held < one.count:
        words += f" in {held} of {one.count} {one.unit}s"
    elif one.unit:
        words += f" in all {one.count} {one.unit}s"
    return [(f"{palette.GLYPHS[state].replace(' ', '–')} {words}", palette.style(color, bold=True))]
