"""The regret study's logic, on a tiny model; its figures are in docs/improvements.md."""

from __future__ import annotations

import pytest

from engines.classify import classify
from probes import regret
from probes.regret import Asked, Tally, make_stream, measure
from tests.test_hybrid import Words
from tests.tiny import CONFIGS, tiny


@pytest.fixture(scope="module")
def model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONFIGS, "deep", CONFIGS["smollm2"] | {"num_hidden_layers": 12, "max_position_embeddings": 2048})
        made, _ = tiny("deep")
    made.tokenizer = Words()
    return made


def test_the_stream_is_mixed_and_the_same_each_time(model):
    stream = make_stream(model, 60, 300, 1500)
    assert len(stream) == 60
    assert {asked.task for asked in stream} == {"lookup", "summary", "writing", "chat", "code"}
    facts = [asked for asked in stream if asked.question is not None]
    assert len(facts) == 30
    lengths = []
    for asked in facts:
        said = asked.question.kind.said.format(asked.question.truth)
        assert asked.text.count(said) == 1
        assert asked.text.endswith(asked.question.kind.asked)
        assert asked.question.truth in asked.question.choices
        lengths.append(len(asked.text))
    assert 250 < min(lengths) < 450
    assert 1300 < max(lengths) < 1600
    assert make_stream(model, 60, 300, 1500) == stream
    assert make_stream(model, 60, 300, 1500, seed=1) != stream


def test_fact_questions_are_taken_for_what_they_are(model):
    texts = [asked.text for asked in make_stream(model, 60, 1500, 6000) if asked.question is not None]
    exact = [sum(classify(text)[task] for task in ("lookup", "reasoning")) for text in texts]
    assert sum(share >= 0.4 for share in exact) / len(exact) >= 0.95


@pytest.mark.slow
def test_every_engine_is_measured_on_the_same_stream(model):
    said: list[str] = []
    rows = measure(
        model,
        requests=10,
        shortest=200,
        longest=1000,
        new_tokens=3,
        cap_share=0.7,
        fixed=("vllm", "h2o+"),
        said=said.append,
    )
    assert [row["engine"] for row in rows] == [regret.REFERENCE, "vllm", "h2o+", "hybrid"]
    assert len(said) == 10
    reference, paged, _, hybrid = rows
    assert reference["lost"] == hybrid["lost"] == 0
    assert paged["lost"] > 0
    assert all(row["requests"] == 10 and row["tok_s"] > 0 for row in rows)
    assert all(
        row["device_peak_bytes"] <= model.weights_bytes + 0.7 * 1003 * model.kv_bytes_per_token for row in rows[1:]
    )
    assert sum(int(word) for word in hybrid["choices"].split()[1::2]) == 10
    assert len(hybrid["choices"].split()) > 2  # not the same for all
    assert hybrid["regret_served"] is not None
    assert paged["regret_served"] is None


def tally(engine: str, lost: int, right: int, seconds: float) -> Tally:
    answered = 10 - min(lost, 10)
    return Tally(engine, 20, lost, 10, right, answered - right, 320 - 16 * lost, seconds)


def test_regret_is_against_the_best_in_hindsight() -> None:
    reference = tally(regret.REFERENCE, 0, 10, 10)
    fast, exact, slow = tally("vllm", 4, 6, 8), tally("infinigen", 0, 10, 40), tally("infinigen+", 0, 9, 80)
    hybrid = tally("hybrid", 0, 10, 16)
    assert (regret.meets(fast, reference), regret.meets(exact, reference)) == (False, True)
    assert not regret.meets(slow, reference)
    found = regret.regret(hybrid, [fast, exact, slow], reference)
    assert (found["best_served"], found["best_tok_s"]) == ("infinigen", "infinigen")
    assert found["regret_served"] == 0
    assert found["regret_tok_s"] == 320 / 40 - 320 / 16  # negative: no fixed engine would have been better
    assert regret.regret(hybrid, [fast], reference)["regret_tok_s"] is None
    assert regret.regret(tally("hybrid", 2, 8, 16), [exact], reference)["regret_served"] == pytest.approx(0.1)


def test_a_lost_fact_is_not_right() -> None:
    assert tally("vllm", 4, 6, 8).accuracy == 0.6
    assert tally("vllm", 4, 6, 8).served == 16 / 20
    assert Tally("none").accuracy == Tally("none").tokens_per_s == 0
    assert Asked("chat", "hi").question is None
