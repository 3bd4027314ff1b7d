"""The hybrid engine: whom it asks, that the cap is really shared, and that no request is lost."""

from __future__ import annotations

import pytest

import engines
from engines import events
from engines.commands import Prompt, WorkerConfig
from engines.errors import BadRequest
from engines.hybrid import HybridEngine
from engines.race import Race
from engines.sequence import Forced
from tests.race_fakes import LetterTokenizer
from tests.tiny import CONFIGS, prompt, tiny

LOOKUP, CHAT = "What is the part number of the pump? The text is below.", "Hi! How are you doing today?"


class Words(LetterTokenizer):
    """Every token is a letter; ids are those of the tiny models."""

    def __call__(self, text, **options):
        found = super().__call__(text, **options)
        return found | {"input_ids": [ord(letter) % 97 for letter in text]}

    def decode(self, token_ids, **options):
        return "".join(chr(97 + token % 26) for token in token_ids)

    def encode(self, text, add_special_tokens=True):
        return [byte % 97 for byte in text.encode()]

    def get_vocab(self):
        return {chr(97 + token): token for token in range(26)}


@pytest.fixture(scope="module")
def model():
    """Deep enough for what lives for one layer to be little."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONFIGS, "deep", CONFIGS["smollm2"] | {"num_hidden_layers": 12})
        made, _ = tiny("deep")
    made.tokenizer = Words()
    return made


def made(model, **knobs) -> HybridEngine:
    engine = engines.create_engine("hybrid", model, **knobs)
    assert isinstance(engine, HybridEngine)
    return engine


def cap(model, kv_tokens: float) -> int:
    """Room for so many tokens' KV beside what the engines hold from the start."""
    return made(model).device_pool.used_bytes + int(kv_tokens * model.kv_bytes_per_token)


def run(engine, request, tokens, new, **options) -> list[events.Event]:
    engine.submit(request, tokens, new, ignore_eos=True, **options)
    found = []
    while engine.has_work:
        found += engine.advance()
        used, limit = engine.device_pool.used_bytes, engine.device_pool.cap_bytes
        assert limit is None or used <= limit
    return found


def decisions(found) -> list[str]:
    return [event.choice for event in found if isinstance(event, events.Decision)]


def outcome(found) -> events.Outcome:
    (only,) = [event for event in found if isinstance(event, events.Outcome)]
    return only


@pytest.mark.parametrize("engine_id", ["vllm", "h2o", "h2o+", "infinigen", "infinigen+"])
@pytest.mark.parametrize(("length", "new"), [(20, 5), (300, 8), (700, 40)])
def test_what_a_request_will_need_is_known_beforehand(model, engine_id, length, new):
    engine = engines.create_engine(engine_id, model, prefix_sharing=False)
    before = engine.device_pool.used_bytes
    need = engine.cache.need(length, new)
    assert engine.generate(prompt(length), new, ignore_eos=True).outcome == "ok"
    took = engine.device_pool.peak_bytes - before
    assert took <= need.device_bytes <= 1.15 * took + 4096
    host = engine.host_pool.peak_bytes
    assert host <= need.host_bytes <= 1.15 * host


@pytest.mark.parametrize(
    ("text", "kv_tokens", "choice"),
    [(CHAT, 700, "vllm"), (LOOKUP, 700, "vllm"), (CHAT, 350, "h2o+"), (LOOKUP, 550, "infinigen+")],
)
def test_memory_and_task_decide(model, text, kv_tokens, choice):
    engine = made(model, device_memory_bytes=cap(model, kv_tokens))
    found = run(engine, 7, prompt(600), 6, text=text)
    assert decisions(found) == [choice]
    assert isinstance(found[0], events.Decision)
    assert (found[0].engine, found[0].request) == ("hybrid", 7)
    assert outcome(found).outcome == "ok"
    assert engine.cache is engine.engines[choice].cache
    assert engine.view(7).tokens == 605


def test_the_chosen_engine_answers_as_it_would_alone(model):
    for text, kv_tokens in [(CHAT, 700), (CHAT, 350), (LOOKUP, 550)]:
        hybrid = made(model, device_memory_bytes=cap(model, kv_tokens))
        found = run(hybrid, 1, prompt(600), 12, text=text)
        alone = engines.create_engine(decisions(found)[0], model).generate(prompt(600), 12, ignore_eos=True)
        tokens = [event for event in found if isinstance(event, events.Token)]
        assert [event.token_id for event in tokens] == alone.tokens
        assert [event.index for event in tokens] == list(range(12))
        result = outcome(found)
        assert (result.prompt_tokens, result.new_tokens) == (600, 12)
        assert 0 < result.ttft_s < hybrid.clock_s
        assert result.tpot_s > 0


def test_without_a_text_the_tokens_are_read(model, monkeypatch):
    read = []
    monkeypatch.setattr("engines.hybrid.classify", lambda text: read.append(text) or {"chat": 1.0})
    engine = made(model)
    engine.generate([1, 2, 3, 4, 5], 2, turns=[("system", 0), ("user", 2)])
    assert read == ["def"]
    run(engine, 2, [1, 2, 3], 1, text="own words")
    assert read[1:] == ["own words"]


def test_a_conversation_stays_where_it_began(model):
    engine = made(model, device_memory_bytes=cap(model, 350))
    first = run(engine, 1, prompt(400), 5, text=CHAT)
    second = run(engine, 2, prompt(60, seed=1), 5, follow_up=True, text=LOOKUP)
    assert decisions(first) + decisions(second) == ["h2o+", "h2o+"]
    assert "stays with H2O+" in next(e.reason for e in second if isinstance(e, events.Decision))
    assert outcome(second).prompt_tokens == 465
    # A new conversation frees the old one before it looks at the headroom.
    third = run(engine, 3, prompt(300), 5, text=LOOKUP)
    assert decisions(third) == ["vllm"]


def test_a_follow_up_that_no_longer_fits_is_computed_again_elsewhere(model):
    engine = made(model, device_memory_bytes=cap(model, 350))
    reference = engines.create_engine("vllm", model)
    assert decisions(run(engine, 1, prompt(300), 5, text=LOOKUP)) == ["vllm"]
    told = reference.generate(prompt(300), 5, ignore_eos=True).tokens
    found = run(engine, 2, prompt(100, seed=1), 5, follow_up=True, text=CHAT)
    decision = next(e for e in found if isinstance(e, events.Decision))
    assert decision.choice == "h2o+"
    assert decision.reason.startswith("no room left with paged, computed again: chat in 405 tokens")
    assert outcome(found).prompt_tokens == 405
    kept = engine.kept_positions(0)
    assert kept.max() == 408
    assert engine._tokens[:305] == prompt(300) + told


def test_an_engine_that_fails_is_followed_by_the_next(model, monkeypatch):
    engine = made(model, device_memory_bytes=cap(model, 350))
    # A controller that is mistaken about paged and H2O+.
    for id in ("vllm", "h2o+"):
        monkeypatch.setattr(engine.engines[id].cache, "need", lambda *lengths: engines.controller.Need(0))
    found = run(engine, 1, prompt(320), 40, text=CHAT)
    assert decisions(found)[:2] == ["vllm", "h2o+"]
    reasons = [e.reason for e in found if isinstance(e, events.Decision)]
    assert reasons[1].startswith("paged ran out of memory after all: chat in ")
    tokens = [e for e in found if isinstance(e, events.Token)]
    assert [e.index for e in tokens] == list(range(40))  # nothing is said twice
    result = outcome(found)
    assert (result.outcome, result.prompt_tokens, result.new_tokens) == ("ok", 320, 40)
    alone = engines.create_engine("vllm", model).generate(prompt(320), 8, ignore_eos=True)
    assert [e.token_id for e in tokens[:8]] == alone.tokens[:8]


def test_a_forced_answer_goes_on_with_the_next_engine(model, monkeypatch):
    engine = made(model, device_memory_bytes=cap(model, 350))
    for id in ("vllm", "h2o+"):
        monkeypatch.setattr(engine.engines[id].cache, "need", lambda *lengths: engines.controller.Need(0))
    forced = Forced(prompt(40, seed=2))
    found = run(engine, 1, prompt(320), 0, text=CHAT, forced=forced)
    assert decisions(found)[:2] == ["vllm", "h2o+"]
    tokens = [e for e in found if isinstance(e, events.Token)]
    assert [e.token_id for e in tokens] == forced.tokens
    assert (len(forced.greedy), forced.to_come) == (40, [])
    alone = Forced(forced.tokens)
    logprobs = engines.create_engine("vllm", model).generate(prompt(320), 0, forced=alone).logprobs
    assert [e.logprob for e in tokens[:8]] == logprobs[:8]


def test_what_fits_nowhere_ends_as_out_of_memory_and_leaves_nothing(model):
    engine = made(model, device_memory_bytes=cap(model, 20))
    before = engine.device_pool.used_bytes
    found = run(engine, 1, prompt(600), 5, text=CHAT)
    assert sorted(decisions(found)) == ["h2o+", "infinigen", "infinigen+", "vllm"]
    assert outcome(found).outcome == "device_oom"
    assert engine.device_pool.used_bytes == before
    with pytest.raises(BadRequest, match="earlier conversation"):
        engine.submit(2, [1, 2], 3, follow_up=True)
    assert outcome(run(engine, 3, prompt(10), 5, text=CHAT)).outcome == "ok"


def test_cancel_and_reset_free_everything(model):
    engine = made(model, device_memory_bytes=cap(model, 550))
    before = engine.device_pool.used_bytes
    for text in (CHAT, LOOKUP):
        engine.submit(1, prompt(600), 20, text=text)
        for _ in range(8):
            engine.advance()
        with pytest.raises(BadRequest, match="one request at a time"):
            engine.submit(2, [1], 1)
        (ended,) = [e for e in engine.cancel() if isinstance(e, events.Outcome)]
        assert ended.outcome == "cancelled"
        assert not engine.has_work
        assert engine.device_pool.used_bytes == before
        run(engine, 3, prompt(600), 4, text=text)
        engine.reset()
        assert engine.device_pool.used_bytes == engine.device_pool.peak_bytes == before
        assert not engine.host_pool.used_bytes
        assert engine.view(3) is None


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        ([], {}, "empty"),
        ([97], {}, "vocabulary|0 .. 96"),
        ([1] * 1025, {}, "1 more than the context"),
        ([1], {"seed": -1}, "seed"),
    ],
)
def test_bad_requests_change_nothing(model, tokens, options, words):
    engine = made(model)
    run(engine, 1, prompt(30), 3, text=CHAT)
    with pytest.raises(BadRequest, match=words):
        engine.submit(2, tokens, 5, text=CHAT, **options)
    assert not engine.has_work
    assert engine.view(1).tokens == 32
    assert engine.continue_logits([5]).shape == (97,)


def test_it_races_with_the_others(model):
    seen: list[events.Event] = []
    config = WorkerConfig(
        engines=["vllm", "hybrid"],
        prompts=[Prompt(text=LOOKUP, document="pump 12. " * 60), Prompt(text="and the valve?", follow_up=True)],
        max_new_tokens=6,
        device_memory_bytes=cap(model, 500),
        ignore_eos=True,
    )
    race = Race(model, config, seen.append, build=engines.create_engine)
    race.start()
    while race.advance():
        pass
    mine = [event for event in seen if event.engine == "hybrid"]
    chosen = [event for event in mine if isinstance(event, events.Decision)]
    assert [event.request for event in chosen] == [0, 1]
    assert chosen[0].choice == "infinigen+"
    assert chosen[0].reason.startswith("lookup in ")
    first = [type(event) for event in mine if isinstance(event, events.Decision | events.Prefill)]
    assert first[0] is events.Decision
    assert [event.outcome for event in mine if isinstance(event, events.Outcome)] == ["ok", "ok"]
    assert next(e.outcome for e in seen if isinstance(e, events.Outcome) and e.engine == "vllm") == "device_oom"
    assert any(isinstance(event, events.Cache) and event.tokens > 500 for event in mine)
