"""What is known of one token of the conversation, in each engine: for the inspector. Pure, from a `RunState` alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engines.events import KvState, cell_share
from kvtui.state import PAGED, EngineState, RequestState, RunState

if TYPE_CHECKING:
    from kvtui.cache_state import CacheState, HeadsState

ON_DEVICE = (KvState.DEVICE, KvState.FETCHED, KvState.ANCHOR)
NO_SUCH_TOKEN, NOT_THERE_YET = "no such token here", "not there yet"
NO_ENTRY_YET, NOT_KNOWN_YET, NOT_TOLD = "said last, no entry yet", "not known yet", "not told by a server"


@dataclass(frozen=True)
class Place:
    """A position of the context, as `engine` counts them; one layer of it, or all (None); one KV head of that layer,
    or all. Without an engine, or beyond its end, it is the paged one's position, or that of the first that has it."""

    position: int
    layer: int | None = None
    head: int | None = None
    engine: str = ""


@dataclass(frozen=True)
class Word:
    """The token at a position: `text` as the model has it, token `index` (from 0) of `of` in a request's prompt or
    answer. `paged_text` is what the paged engine said in its place, where that is something else."""

    text: str
    request: int
    answer: bool
    index: int
    of: int
    paged_text: str | None = None


@dataclass(frozen=True)
class Mass:
    """A share (0..1) of the layer's attention (of the mean layer's, where all are meant), and its rank among `of`
    equals (1 is the most; None where no picture tells). `tokens` is how many positions it is the sum of: more than
    one where only bins are known."""

    share: float
    tokens: int = 1
    rank: int | None = None
    of: int = 0


@dataclass(frozen=True)
class Facts:
    """One engine's. `position` is where this engine has the token, None where it has no such token. `cells` counts the
    states of what the place stands for: `unit`s ("layer", "head"), or a single cell (""); where no picture has such a
    position it is empty, and `missing` says why. `since_tokens` is how long the context was when the state (of any of
    the layers) last changed; `since` says what the engine was doing then. `as_of_tokens` is how long the context was
    when the mass of the heads was seen, where that is not now."""

    engine: str
    label: str
    word: Word | None = None
    cells: tuple[tuple[KvState, int], ...] = ()
    unit: str = ""
    share: float = 0.0  # of the place's layers and heads, on the device
    mass: Mass | None = None
    since_tokens: int | None = None
    since: str = ""
    as_of_tokens: int | None = None
    position: int | None = None
    missing: str = ""

    @property
    def state(self) -> KvState:
        """That of most cells; on the device before elsewhere."""
        held = sum(count for state, count in self.cells if state in ON_DEVICE)
        if not self.cells:
            return KvState.ABSENT
        among = [c for c in self.cells if c[0] in ON_DEVICE] if held else self.cells
        return max(among, key=lambda cell: cell[1])[0]

    @property
    def count(self) -> int:
        return sum(count for _, count in self.cells)


def facts(state: RunState, place: Place) -> list[Facts]:
    """One an engine, in the order of the columns."""
    return [_facts(engine, state, place) for engine in state.engines.values()]


def position_in(state: RunState, place: Place, engine: EngineState) -> int | None:
    """Where an engine has the token that `place` is about: that of the same prompt or answer, and there the same one.
    Answers differ in length, so what follows the first of them is at another position in each engine. None where an
    engine has no such token."""
    base, word = _counted_in(state, place)
    if word is None or engine is base:
        return place.position
    request = engine.requests[word.request] if word.request in engine.conversation else None
    if request is None or (word.answer and word.index >= len(request.tokens)):
        return None
    # A prompt's tokens are counted back from its end, as `manuscript.Address` does.
    index = word.index if word.answer else word.index - word.of
    position = request.first_position + request.prompt_tokens + index
    return position if position >= request.first_position else None


def _counted_in(state: RunState, place: Place) -> tuple[EngineState | None, Word | None]:
    """The engine whose position it is, and what it has there."""
    first = [state.engines[engine] for engine in (place.engine, PAGED) if engine in state.engines]
    for engine in (*first, *state.engines.values()):
        if (word := word_at(state, engine, place.position)) is not None:
            return engine, word
    return None, None


def _facts(engine: EngineState, state: RunState, place: Place) -> Facts:
    position, cache = position_in(state, place, engine), engine.cache
    if position is None:
        _, told = _counted_in(state, place)
        request = engine.requests.get(told.request) if told is not None else None
        comes = request is None or request.outcome is None
        return Facts(engine.id, engine.label, missing=NOT_THERE_YET if comes else NO_SUCH_TOKEN)
    word = word_at(state, engine, position)
    if cache is None or not 0 <= position < cache.tokens:
        return Facts(engine.id, engine.label, word, position=position, missing=_why(engine, word))
    if place.layer is None or not 0 <= place.layer < cache.layers:
        return _all_layers(engine, word, cache, position)
    kv_heads = state.started.kv_heads if state.started is not None else 0
    return _one_layer(engine, word, cache, replace(place, position=position), place.layer, kv_heads)


def _why(engine: EngineState, word: Word | None) -> str:
    """Why no picture has a position with this token."""
    if word is None:
        return NO_SUCH_TOKEN
    if engine.remote:
        return NOT_TOLD
    # A token's entry is made when the next one is asked for.
    return NO_ENTRY_YET if word.answer and word.index == word.of - 1 else NOT_KNOWN_YET


def _all_layers(engine: EngineState, word: Word | None, cache: CacheState, position: int) -> Facts:
    column = cache.cells[:, position].tolist()
    cells = Counter(_state(cell & 7) for cell in column)
    since = int(cache.since[:, position].max())
    return Facts(
        engine.id,
        engine.label,
        word,
        tuple(sorted(cells.items())),
        "layer",
        sum(cell_share(cell) for cell in column) / len(column),
        _bin_mass(cache, position, None),
        since,
        _since(engine, since),
        position=position,
    )


def _one_layer(
    engine: EngineState, word: Word | None, cache: CacheState, place: Place, layer: int, kv_heads: int
) -> Facts:
    position = place.position
    since = int(cache.since[layer, position])
    heads = cache.heads.get(layer)
    if heads is not None and position >= heads.tokens:
        heads = None
    cells, share = _cells_of(cache, layer, position, kv_heads), cell_share(int(cache.cells[layer, position]))
    unit, mass = "head" if sum(count for _, count in cells) > 1 else "", _bin_mass(cache, position, layer)
    if heads is not None:
        mass = _head_mass(heads, position, place.head)
        if since <= heads.tokens:  # still as it was when the heads were seen
            seen = [_state(state) for state in heads.states[:, position].tolist()]
            unit = "head"
            if place.head is not None and 0 <= place.head < len(seen):
                seen, unit = [seen[place.head]], ""
            cells = tuple(sorted(Counter(seen).items()))
            share = sum(state in ON_DEVICE for state in seen) / len(seen)
    return Facts(
        engine.id,
        engine.label,
        word,
        cells,
        unit,
        share,
        mass,
        since,
        _since(engine, since),
        heads.tokens if heads is not None and heads.tokens != cache.tokens else None,
        position,
    )


def _state(number: int) -> KvState:
    return KvState(number) if number < len(KvState) else KvState.ABSENT


def _cells_of(cache: CacheState, layer: int, position: int, kv_heads: int) -> tuple[tuple[KvState, int], ...]:
    """The states of a layer's heads, as far as the picture tells: how many of them are on the device."""
    from kvtui.tiers import elsewhere

    cell = int(cache.cells[layer, position])
    state, held = _state(cell & 7), round(cell_share(cell) * kv_heads)
    if not held or held >= kv_heads:
        return ((state, max(1, kv_heads)),)
    return tuple(sorted([(state, held), (elsewhere(cache), kv_heads - held)]))


def _bin_mass(cache: CacheState, position: int, layer: int | None) -> Mass | None:
    """From the picture's bins: the sum over the bin that holds the position."""
    from kvtui.cache_state import share_of

    bins = cache.mass.shape[1]
    if not bins:
        return None
    mine = position * bins // cache.tokens
    of_bins = share_of(cache.mass).mean(axis=0) if layer is None else share_of(cache.mass[layer])
    first, end = -(-mine * cache.tokens // bins), -(-(mine + 1) * cache.tokens // bins)
    return Mass(float(of_bins[mine]), end - first, _rank(of_bins, mine), bins)


def _head_mass(heads: HeadsState, position: int, head: int | None) -> Mass:
    """Exact: of one head, or summed over the layer's."""
    from kvtui.cache_state import share_of

    one = head is not None and 0 <= head < len(heads.mass)
    values = share_of(heads.mass[head]) if one else share_of(heads.mass).sum(axis=0)
    return Mass(float(values[position]), 1, _rank(values, position), heads.tokens)


def _rank(values: Any, at: int) -> int | None:
    """The best of those that share it; None for what received nothing that could be told from nothing."""
    return int((values > values[at]).sum()) + 1 if values[at] > 0 else None


def word_at(state: RunState, engine: EngineState, position: int) -> Word | None:
    """The token at a position of the engine's running conversation; None beyond its end."""
    for number in reversed(engine.conversation):
        request = engine.requests[number]
        index = position - request.first_position
        if index < 0:
            continue
        if index < request.prompt_tokens:
            return Word(_asked(request, index), number, False, index, request.prompt_tokens)
        index -= request.prompt_tokens
        if index >= len(request.tokens):
            return None
        return Word(request.texts[index], number, True, index, len(request.tokens), paged_text(state, request, index))
    return None


def paged_text(state: RunState, request: RequestState, index: int) -> str | None:
    """What the paged engine said as token `index` of the same answer, if that is something else."""
    if index >= len(request.differs) or not request.differs[index]:
        return None
    paged = state.engines.get(PAGED)
    reference = paged.requests.get(request.request) if paged is not None else None
    return reference.texts[index] if reference is not None and index < len(reference.texts) else None


def _asked(request: RequestState, index: int) -> str:
    if index >= len(request.offsets):
        return ""
    return request.asked[request.offsets[index - 1] if index else 0 : request.offsets[index]]


def _since(engine: EngineState, tokens: int) -> str:
    """What the engine was doing when its context was `tokens` long: the last of them was being fed."""
    for number in reversed(engine.conversation):
        request = engine.requests[number]
        if tokens > request.first_position:
            step = tokens - request.first_position - request.prompt_tokens
            if step > 0:
                return f"decode step {step:,}"
            return "the follow-up's prefill" if request.follow_up else "prefill"
    return ""
