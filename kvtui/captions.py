"""What is happening, in sentences for an audience: only what events have told, the most important first."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from kvtui import figures
from kvtui.literal import brief, one_line, question
from kvtui.names import chosen
from kvtui.state import PAGED, EngineState, RequestState, RunState

HOLD_S = 3.0  # as long as it takes to read one
TITLE_CHARACTERS = 60

# What makes a word of the answer a fact of the document, and when hardly anything or most of a fact is left.
RARE_MOST = 3  # times in the document
SHORT_BELOW = 3  # characters
FADED_BELOW, KEPT_FROM = 0.1, 0.5  # of layers × heads

_WORDS = re.compile(r"\w+(?:['’-]\w+)*")
_COUNTS = {2: "Both", 3: "All three", 4: "All four", 5: "All five", 6: "All six", 7: "All seven"}


@dataclass(frozen=True)
class Caption:
    """`id` stays while the wording's figures change, and `stage` too, until there is something new to say.
    `importance` is higher for what must be said first; what only `lasts` as long as it is true is not held on to."""

    id: str
    text: str
    importance: int
    engine: str = ""
    stage: str = ""
    lasts: bool = True


def captions(state: RunState) -> list[Caption]:
    """Raises nothing and keeps nothing: the same state gives the same captions."""
    if state.started is None:
        return [*_ended(state)] if state.over else [_loading(state)]
    prompt = state.prompt
    if prompt is None:
        return [*_ended(state)]
    rows = [(e, e.requests[prompt.request]) for e in state.engines.values() if prompt.request in e.requests]
    found = [*([] if state.over else _reading(rows)), *_ends(rows), *_ended(state)]
    paged = state.engines.get(PAGED)
    for engine, request in rows:
        found += [
            *_decided(engine, request),
            *_out_of_memory(engine, request),
            *_dropped(engine, paged),
            *_differs(engine, request),
        ]
        if not state.over:
            found += _fetches(state, engine, request)
    return sorted(found, key=lambda caption: -caption.importance)


def _loading(state: RunState) -> Caption:
    loading = state.loading
    if loading is None:
        return Caption("loading", "Starting the engines", 30, lasts=False)
    share = f", {loading.fraction:.0%}" if loading.fraction is not None else ""
    return Caption("loading", f"Loading: {one_line(loading.stage)}{share}", 30, stage=f"{loading}", lasts=False)


def _ended(state: RunState) -> Iterator[Caption]:
    if state.end:
        text = brief(state.end)
        yield Caption("ended", text[:1].upper() + text[1:], 95, stage=text)


def _reading(rows: list[tuple[EngineState, RequestState]]) -> Iterator[Caption]:
    reading = [(e, r) for e, r in rows if r.outcome is None and not r.tokens]
    if not reading:
        return
    engine, request = reading[0]
    everybody = len(reading) == len(rows)
    who = _COUNTS.get(len(reading), engine.label) if everybody else " and ".join(e.label for e, _ in reading)
    verb = "read" if len(reading) > 1 else "reads"
    title = f" of “{one_line(request.title[:TITLE_CHARACTERS])}”" if request.title else ""
    text = f"{who} {verb} the {figures.counted(request.prompt_tokens, 'token')}{title}"
    yield Caption("reading", text, 60 if everybody else 35, stage=text, lasts=False)


def _decided(engine: EngineState, request: RequestState) -> Iterator[Caption]:
    if request.decision is not None and request.outcome is None:
        choice, reason = chosen(request.decision)
        text = f"{engine.label} chose {choice}: {reason}"
        yield Caption(f"decided {engine.id} {request.request}", text, 62, engine.id, stage=text)


def _out_of_memory(engine: EngineState, request: RequestState) -> Iterator[Caption]:
    outcome = request.outcome
    if outcome is not None and outcome.outcome == "device_oom":
        text = f"{engine.label} ran out of device memory at {figures.counted(request.prompt_tokens, 'token')}"
        yield Caption(f"memory {engine.id} {request.request}", text, 90, engine.id)


def _differs(engine: EngineState, request: RequestState) -> Iterator[Caption]:
    if request.first_difference is not None:
        text = f"{engine.label} answers otherwise from token {request.first_difference + 1:,} on"
        yield Caption(f"differs {engine.id} {request.request}", text, 70, engine.id)


def _fetches(state: RunState, engine: EngineState, request: RequestState) -> Iterator[Caption]:
    cache = engine.cache
    if cache is None or cache.fetched_tokens < 1 or request.outcome is not None or not request.tokens:
        return
    link = state.started.link if state.started is not None else None
    how = "measured" if link is not None and link.measured else "modelled"
    what = f"{cache.fetched_tokens:,.0f} of {figures.counted(cache.tokens, 'token')}"
    yield Caption(f"fetches {engine.id}", f"{engine.label} fetches {what} a step over the link ({how})", 40, engine.id)


def _dropped(engine: EngineState, paged: EngineState | None) -> Iterator[Caption]:
    cache = engine.cache
    if cache is None or cache.evicted_tokens < 1:
        return
    dropped = (
        f"{engine.label} dropped {cache.evicted_tokens:,.0f} of {figures.counted(cache.tokens, 'token')} in each layer"
    )
    fact = lost_fact(engine, paged) if paged is not None and paged is not engine else None
    told, importance, stage = "", 50, ""
    if fact is not None and not fact.share:
        told, importance, stage = f": “{fact.word}” is among them", 82, "gone"
    elif fact is not None and fact.share < KEPT_FROM:
        left = figures.percents([fact.share])[0]
        importance, stage = (80, "faded") if fact.share < FADED_BELOW else (75, "thinned")
        told = f": of “{fact.word}” {left} is left"
    elif fact is not None:
        told, importance, stage = f", but kept “{fact.word}”", 55, "kept"
    yield Caption(f"dropped {engine.id}", dropped + told, importance, engine.id, stage)


def _ends(rows: list[tuple[EngineState, RequestState]]) -> Iterator[Caption]:
    """Once all have ended: who was fastest, and who needed least."""
    done = [(e, r) for e, r in rows if r.outcome is not None and r.outcome.outcome == "ok"]
    if len(done) < 2 or len(done) < sum(r.status != "device_oom" for _, r in rows):
        return
    number = done[0][1].request
    speeds = sorted(((r.tokens_per_s, e) for e, r in done if r.tokens_per_s), key=lambda pair: -pair[0])
    if len(speeds) > 1:
        (best, engine), (slowest, last) = speeds[0], speeds[-1]
        times = f"{best / slowest:.1f} times as fast as {last.label}"
        times += ", each on its own clock" if engine.remote or last.remote else ""
        text = f"Fastest: {engine.label}, {figures.speed(best)} tokens a second, {times}"
        yield Caption(f"fastest {number}", text, 66, engine.id)
    sizes = sorted(((e.cache_bytes, e) for e, _ in done if e.cache_bytes), key=lambda pair: pair[0])
    if len(sizes) > 1:
        size, engine = sizes[0]
        paged = next((other for other, e in sizes if e.id == PAGED), 0)
        change = f", {figures.change(size, paged)}" if paged and engine.id != PAGED else ""
        text = f"Smallest: {engine.label}, {figures.size(size)} of KV on the device{change}"
        yield Caption(f"smallest {number}", text, 64, engine.id)


@dataclass(frozen=True)
class Fact:
    """A word of the document that the paged engine answers with, and the share (0..1) of layers × heads in which an
    engine still has it on the device: of the place where most of it is left."""

    word: str
    share: float


def lost_fact(engine: EngineState, paged: EngineState) -> Fact | None:
    """Of the rare words that the paged engine's answer takes from the document, the one that this engine has lost
    most of; rather one that it has not said itself. None where there is no such word."""
    answer, said = paged.current, engine.current
    if answer is None or said is None or answer.request != said.request:
        return None
    own = set(_words(said.text.lower()))
    facts = [
        (Fact(word, share), word.lower() in own)
        for word in _candidates(answer)
        if (share := _share_left(engine, word)) is not None
    ]
    return min(facts, key=lambda pair: (pair[1], _grade(pair[0].share)), default=(None, False))[0]


def _grade(share: float) -> int:
    return (share >= FADED_BELOW) + (share >= KEPT_FROM)


def _candidates(answer: RequestState) -> list[str]:
    """Words in the order of the answer; the last one may still be growing."""
    words = _words(answer.text if answer.outcome is not None else answer.text.rsplit(" ", 1)[0])
    asked = _question_words(answer.asked)
    return list(
        dict.fromkeys(
            w for w in words if len(w) >= SHORT_BELOW and w.lower() not in _stop_words() and w.lower() not in asked
        )
    )


def _share_left(engine: EngineState, word: str) -> float | None:
    """None for a word that is not in what the engine has read, or too often to be a fact."""
    assert engine.cache is not None
    cells, best, places = engine.cache.cells, None, 0
    for number in engine.conversation:
        request = engine.requests[number]
        document = _document_end(request.asked)
        for start, end in _places(request.asked, word):
            if end > document:
                break
            places += 1
            first = request.first_position + bisect_right(request.offsets, start)
            last = request.first_position + bisect_right(request.offsets, end - 1)
            if last >= cells.shape[1]:
                continue
            share = float((cells[:, first : last + 1] >> 3).mean()) / 31
            best = share if best is None else max(best, share)
    return best if 0 < places <= RARE_MOST else None


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    return frozenset(resources.files("kvtui").joinpath("data/stop_words.txt").read_text("utf-8").split())


def _words(text: str) -> list[str]:
    return _WORDS.findall(text)


@lru_cache(maxsize=1024)
def _places(text: str, word: str) -> tuple[tuple[int, int], ...]:
    """Where `word` stands in `text`, in any case; one more than `RARE_MOST` at most."""
    lowered, word = _lowered(text), word.lower()
    found: list[tuple[int, int]] = []
    at = lowered.find(word)
    while at >= 0 and len(found) <= RARE_MOST:
        end = at + len(word)
        if not (lowered[at - 1 : at].isalnum() or lowered[end : end + 1].isalnum()):
            found.append((at, end))
        at = lowered.find(word, end)
    return tuple(found)


@lru_cache(maxsize=4)
def _lowered(text: str) -> str:
    """As long as `text`: the few characters that grow stay as they are."""
    lowered = text.lower()
    return lowered if len(lowered) == len(text) else "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


@lru_cache(maxsize=16)
def _document_end(text: str) -> int:
    """Where the last paragraph begins, which is the question; 0 when there is nothing before it."""
    return max(0, text.rfind(question(text)))


@lru_cache(maxsize=16)
def _question_words(text: str) -> frozenset[str]:
    return frozenset(_words(question(text).lower()))


class Held:
    """The captions on show: each for at least `HOLD_S`, its wording too, unless a more important one needs its place.
    Time is the state's, so that a replay shows the same."""

    def __init__(self, places: int = 3) -> None:
        self.places = places
        self._since: dict[str, tuple[float, Caption]] = {}
        self._run, self._now_s = "", 0.0

    def take(self, state: RunState) -> list[Caption]:
        now_s = max(state.wall_s, state.clock_s)
        if state.run != self._run or now_s < self._now_s:  # another run, or back in a recording
            self._since.clear()
        self._run, self._now_s = state.run, now_s
        found = {c.id: c for c in captions(state)}
        kept = {
            c.id: (since, c)
            for since, c in self._since.values()
            if now_s - since < HOLD_S and (found[c.id].stage == c.stage if c.id in found else c.lasts)
        }
        fresh = {c.id: (now_s, c) for c in found.values() if c.id not in kept}
        chosen = sorted({**kept, **fresh}.values(), key=lambda pair: (-pair[1].importance, pair[0]))[: self.places]
        self._since = {c.id: (since, c) for since, c in chosen}
        return [c for _, c in chosen]
