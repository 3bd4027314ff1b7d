"""What is said about a race: only what is true, the important first, and long enough to be read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest

from engines import events
from engines.events import KvState
from kvtui import captions as captions_
from kvtui.cache_state import CacheState
from kvtui.captions import HOLD_S, Held, captions
from kvtui.state import RunState
from tests.synthetic import Race, started

DOCUMENT = (
    "The keeper kept a goat at home. The secret word is marigold, he said to the goat. Then the storm came at night."
)
QUESTION = "What is the secret word?"
LAYERS = 4


def texts(state: RunState) -> list[str]:
    return [caption.text for caption in captions(state)]


@lru_cache
def race_of(title: str, oom: str) -> list[events.AnyEvent]:
    race = Race(prompt_tokens=512, new_tokens=40, title=title, oom=oom)
    return [started(), race.submitted(), *race.merged()]


def at(clock_s: float, title: str = "The lighthouse keeper", oom: str = "") -> RunState:
    state = RunState()
    state.apply_all(event for event in race_of(title, oom) if event.clock_s <= clock_s)
    return state


def token_ends(text: str) -> list[int]:
    """A token a word, its space in front."""
    return [i for i in range(1, len(text)) if text[i] == " "] + [len(text)]


def forgetting(
    gone: Iterable[str], answer: str = "It is marigold.", said: str = "It is not said.", done: bool = True
) -> RunState:
    """H2O has lost the words in `gone`; nothing else."""
    text = f"{DOCUMENT}\n\n{QUESTION}"
    offsets = token_ends(text)
    state = RunState()
    state.apply_all(
        [
            started(),
            events.Submitted(
                run="synthetic", request=0, title="A secret", text=text, offsets=offsets, prompt_tokens=len(offsets)
            ),
        ]
    )
    for engine, words in (("vllm", answer), ("h2o", said)):
        common = {"run": "synthetic", "engine": engine, "clock_s": 1.0, "request": 0}
        for index, word in enumerate(words.split()):
            piece = f" {word}" if index else word
            state.apply(events.Token(**common, index=index, token_id=hash(piece) % 9999, text=piece, logprob=0.0))
        if done:
            state.apply(events.Outcome(**common, outcome="ok", tpot_s=0.02, decode_tok_s=50.0))
    tokens = len(offsets) + 4
    cells = np.full((LAYERS, tokens), int(KvState.DEVICE) | 31 << 3, np.uint8)
    for word in gone:
        begin = 0
        while (begin := text.find(word, begin)) >= 0:
            first = sum(end <= begin for end in offsets)
            cells[:, first] = int(KvState.EVICTED)
            begin += len(word)
    zeros = np.zeros((LAYERS, 8), np.uint8)
    evicted = float((cells == int(KvState.EVICTED)).sum() / LAYERS) or 3.0
    state.engines["h2o"].cache = CacheState(cells, zeros, np.zeros(cells.shape, np.int32), 0.0, evicted, 1)
    return state


def test_loading_and_reading() -> None:
    state = RunState()
    assert texts(state) == ["Starting the engines"]
    state.apply(events.Loading(stage="reading\x1b the weights", fraction=0.4))
    assert texts(state) == ["Loading: reading␛ the weights, 40%"]
    assert texts(at(1.0)) == ["All three read the 512 tokens of “The lighthouse keeper”"]
    assert "InfiniGen and H2O read the 512 tokens of “The lighthouse keeper”" not in texts(at(2.2))
    assert any(text.startswith("H2O and InfiniGen read") for text in texts(at(2.2)))
    assert texts(at(0.2, title="[b]x\x07")) == ["All three read the 512 tokens of “[b]x␇”"]


def test_running() -> None:
    said = texts(at(3.2))
    assert said[0] == "H2O answers otherwise from token 5 on"
    assert any(t.startswith("H2O dropped 37") and t.endswith(" tokens in each layer") for t in said)
    [fetches] = [t for t in said if t.startswith("InfiniGen fetches ")]
    assert fetches.endswith("tokens a step over the link (modelled)")


def test_the_end() -> None:
    said = texts(at(99.0))
    assert any(t.startswith("Fastest: H2O, 4") and t.endswith(" times as fast as InfiniGen") for t in said)
    assert any(t.startswith("Smallest: InfiniGen, ") and " of KV on the device, −" in t for t in said)
    assert not any("fetches" in t or "read the" in t for t in said)


def test_out_of_memory_comes_first() -> None:
    assert texts(at(99.0, oom="vllm"))[0] == "Paged (vLLM-style) ran out of device memory at 512 tokens"


def test_the_code_word_is_among_them() -> None:
    assert texts(forgetting(["marigold"]))[0] == "H2O dropped 1 of 31 tokens in each layer: “marigold” is among them"


def test_a_little_that_is_left_is_said() -> None:
    """What is still on the device in one head of one layer was not dropped there."""
    state = forgetting(["marigold"])
    cache = state.engines["h2o"].cache
    assert cache is not None
    cache.cells[0, np.flatnonzero(cache.cells[0] & 7 == int(KvState.EVICTED))] = int(KvState.DEVICE) | 10 << 3
    assert texts(state)[0] == "H2O dropped 1 of 31 tokens in each layer: of “marigold” 8 % is left"


def test_the_code_word_was_kept() -> None:
    assert "H2O dropped 1 of 31 tokens in each layer, but kept “marigold”" in texts(forgetting(["storm"]))


@pytest.mark.parametrize(("layers", "said"), [(1, ": of “marigold” 25 % is left"), (3, ", but kept “marigold”")])
def test_the_code_word_is_thinned_out(layers: int, said: str) -> None:
    state = forgetting(["marigold"])
    cache = state.engines["h2o"].cache
    assert cache is not None
    lost = np.flatnonzero(cache.cells[0] & 7 == int(KvState.EVICTED))
    cache.cells[:layers, lost] = int(KvState.DEVICE) | 31 << 3
    assert any(text.endswith(said) for text in texts(state))


@pytest.mark.parametrize(
    "answer",
    ["The secret word is lost.", "It is.", "A goat was the one, the goat", "It is lavender."],
    ids=["only of the question", "stop words", "often", "not of the document"],
)
def test_words_that_are_no_facts(answer: str) -> None:
    state = forgetting(["secret", "word", "lavender"], answer=answer)
    captions_.RARE_MOST, before = 1, captions_.RARE_MOST
    try:
        [dropped] = [text for text in texts(state) if text.startswith("H2O dropped")]
    finally:
        captions_.RARE_MOST = before
        captions_._places.cache_clear()
    assert dropped.endswith(" tokens in each layer")


def test_a_word_that_is_still_growing_is_not_judged() -> None:
    state = forgetting(["marigold", "storm"], answer="In the storm marigold", done=False)
    assert any("“storm” is among them" in text for text in texts(state))


def test_a_fact_that_the_engine_says_itself_matters_less() -> None:
    state = forgetting(["storm", "marigold"], answer="The storm, marigold.", said="In the storm.")
    assert "H2O dropped 2 of 31 tokens in each layer: “marigold” is among them" in texts(state)


def test_one_place_that_is_left_is_enough() -> None:
    state = forgetting(["goat."], answer="A goat was there.")  # the other one stays
    assert "H2O dropped 1 of 31 tokens in each layer, but kept “goat”" in texts(state)


def moved(state: RunState, wall_s: float, evicted: float) -> RunState:
    cache = state.engines["h2o"].cache
    assert cache is not None
    state.wall_s, cache.evicted_tokens = wall_s, evicted
    return state


def test_a_caption_stays_long_enough_to_be_read() -> None:
    held, state = Held(), forgetting(["marigold"])
    shown = [held.take(moved(state, 10 + t / 10, 1 + t))[0].text for t in range(int(HOLD_S * 20))]
    changes = [t for t in range(1, len(shown)) if shown[t] != shown[t - 1]]
    assert changes == [round(HOLD_S * 10)]


def test_what_matters_more_takes_the_place_at_once() -> None:
    held, state = Held(places=1), forgetting([], done=False)
    state.wall_s = 10.0
    assert held.take(state)[0].text == "H2O answers otherwise from token 3 on"
    state.apply(events.Outcome(run="synthetic", engine="vllm", request=0, outcome="device_oom", wall_s=10.1))
    assert held.take(state)[0].text.startswith("Paged (vLLM-style) ran out of device memory")


def test_what_is_no_longer_true_goes() -> None:
    held = Held()
    assert "All three read" in held.take(at(1.0))[0].text
    assert not any("All three" in caption.text for caption in held.take(at(2.2)))


def test_going_back_in_a_recording_forgets_what_was_shown() -> None:
    held = Held()
    held.take(at(99.0))
    assert [caption.text for caption in held.take(at(1.0))] == texts(at(1.0))


def test_a_long_document_costs_little() -> None:
    import time

    text = "It was on the night of the great storm that nobody slept. " * 20_000
    for word in ("marigold", "storm"):
        captions_._places(text, word)
    begun_s = time.perf_counter()
    for _ in range(1000):
        captions_._places(text, "marigold")
    assert time.perf_counter() - begun_s < 0.1
