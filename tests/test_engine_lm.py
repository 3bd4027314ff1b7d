"""Our engines as models of lm-eval, beside lm-eval's own model of transformers, on the same weights and items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

import engines
from engines.errors import BadRequest
from probes import tasks
from probes.engine_lm import EngineFailed, EngineLM
from probes.studies.accuracy import alpha_at
from tests.tiny_checkpoints import VOCAB, lm_folder

LIMIT = 256
IDS = ["vllm", "h2o", "infinigen"]
FACTS = Path(__file__).parent / "lm_tasks"
WITHIN = 1e-2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    lm_folder(path, LIMIT)
    return path


@pytest.fixture(scope="module")
def model(folder: Path):
    return engines.load_model(str(folder), device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> HFLM:
    return HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1)


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    return tasks.load(TaskManager(include_path=FACTS, include_defaults=False), ["kvtui_facts"], FACTS)["kvtui_facts"]


def lm(model, engine_id: str = "vllm", budget: float = 1.0, **knobs) -> EngineLM:
    """As the study makes it."""
    return EngineLM(engines.create_engine(engine_id, model, budget=budget, alpha=alpha_at(budget), **knobs))


def asked(kind: str, *arguments: tuple) -> list[Instance]:
    return [Instance(kind, {}, one, index) for index, one in enumerate(arguments)]


def evaluated(
    model: Any, facts: dict[str, Any], limit: int | None = 10
) -> tuple[dict[str, float], list[tuple[float, bool]]]:
    """Metrics, and the answers item by item."""
    found = tasks.evaluate(model, facts, limit=limit, num_fewshot=0, chat_template=False, seed=0)
    samples = found["samples"]["kvtui_facts"]
    answers = [tuple(answer) for sample in samples for answer in sample["filtered_resps"]]
    return {name: found["results"]["kvtui_facts"][f"{name},none"] for name in ("acc", "acc_norm")}, answers


@pytest.fixture(scope="module")
def their_facts(theirs: HFLM, facts: dict[str, Any]):
    return evaluated(theirs, facts)


@pytest.mark.parametrize("engine_id", IDS)
def test_a_task_of_ones_own_gives_what_their_model_gives(engine_id: str, model, facts, their_facts) -> None:
    metrics, answers = evaluated(lm(model, engine_id), facts)
    expected, their_answers = their_facts
    assert metrics == expected
    assert [greedy for _, greedy in answers] == [greedy for _, greedy in their_answers]
    assert [value for value, _ in answers] == pytest.approx([value for value, _ in their_answers], abs=WITHIN)
    assert len({round(value, 3) for value, _ in their_answers}) > 30  # of 40: the model has opinions


PAIRS = [
    ("The sky is", " blue"),
    ("The sky is ", "blue"),  # the space belongs to the continuation
    ("The sky is\n\n", "blue and wide"),
    ("", "no context at all"),
    ("", "<s>marked"),  # its own mark is the context then
    ("<s>The sky", " is"),  # marked once, not twice
    ("a" * (LIMIT - 3), "bcde"),  # a token too long, with the mark
    ("word " * 100, "and its end"),
    ("x", "y" * (LIMIT - 1)),
    ("A question. Answer:", " A"),
    ("A question. Answer:", " B"),
    ("A question. Answer:", " BA"),
]


@pytest.mark.parametrize("engine_id", IDS)
def test_boundaries_marks_and_long_contexts_are_theirs(engine_id: str, model, theirs: HFLM) -> None:
    expected = theirs.loglikelihood(asked("loglikelihood", *PAIRS), disable_tqdm=True)
    found = lm(model, engine_id).loglikelihood(asked("loglikelihood", *PAIRS))
    for pair, (value, greedy), (their_value, their_greedy) in zip(PAIRS, found, expected, strict=True):
        assert value == pytest.approx(their_value, abs=WITHIN), pair
        assert greedy == their_greedy, pair


def test_where_a_context_ends_and_what_is_fed(model, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = lm(model)
    fed: list[tuple[list[int], list[int]]] = []
    run = ours.engine.generate

    def noting(prompt, count, *, forced):
        fed.append((prompt, forced.tokens))
        return run(prompt, count, forced=forced)

    monkeypatch.setattr(ours.engine, "generate", noting)
    ours.loglikelihood(asked("loglikelihood", ("ab ", "c"), ("", "d"), ("e" * 300, "fg")))
    bare = lambda text: ours.tok_encode(text, add_special_tokens=False)  # noqa: E731
    mark = [model.tokenizer.bos_token_id]
    assert fed == [
        (mark + bare("ab"), bare(" c")),
        (mark, bare("d")),
        (bare("e" * (LIMIT - 1)), bare("fg")),  # the last token is not fed
    ]


def test_only_what_the_model_would_say_itself_is_greedy(model) -> None:
    ours = lm(model, "h2o", 0.3)
    context = ours.tok_encode("Some words to be forgotten. " * 4)
    said = ours.engine.generate(context, 6, ignore_eos=True)
    other = (said.tokens[0] + 1) % VOCAB
    kinds = [said.tokens, [*said.tokens[:-1], other], [other, *said.tokens[1:]], said.tokens[:1], [other]]
    found = ours._loglikelihood_tokens([(None, context, kind) for kind in kinds])
    assert [greedy for _, greedy in found] == [True, False, False, True, False]
    assert found[0][0] == pytest.approx(sum(said.logprobs), abs=1e-4)
    assert found[3][0] == pytest.approx(said.logprobs[0], abs=1e-5)


def test_choices_of_one_token_are_read_once(model, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = lm(model, "h2o", 0.3)
    choices = [("Which one? " * 5 + "Answer:", f" {letter}") for letter in "ABCD"]
    alone = [ours.loglikelihood(asked("loglikelihood", choice))[0] for choice in choices]
    runs, run = [], ours.engine.generate
    monkeypatch.setattr(ours.engine, "generate", lambda *given, **named: runs.append(1) or run(*given, **named))
    assert ours.loglikelihood(asked("loglikelihood", *choices)) == pytest.approx(alone)
    assert len(runs) == 1


def test_a_small_budget_scores_otherwise_and_holds_less(model) -> None:
    question = asked("loglikelihood", ("Some words to be forgotten. " * 8, "What were they, and how many?"))
    full, small = lm(model, "h2o"), lm(model, "h2o", 0.2)
    assert small.loglikelihood(question)[0][0] != pytest.approx(full.loglikelihood(question)[0][0], abs=0.1)
    assert 0 < small.device_kv_peak_bytes < 0.4 * full.device_kv_peak_bytes


@pytest.mark.parametrize("engine_id", IDS)
def test_whole_texts_of_several_windows_are_theirs(engine_id: str, model, theirs: HFLM) -> None:
    texts = [("Short.",), ("A text that is longer than the context, by far. " * 7,)]
    expected = theirs.loglikelihood_rolling(asked("loglikelihood_rolling", *texts), disable_tqdm=True)
    found = lm(model, engine_id).loglikelihood_rolling(asked("loglikelihood_rolling", *texts))
    assert found == pytest.approx(expected, abs=0.05)  # of hundreds of tokens together


def test_the_first_half_of_a_window_is_its_prompt_or_all_that_was_scored_before(model, monkeypatch) -> None:
    ours = lm(model)
    fed: list[tuple[int, int, bool]] = []
    run = ours.engine.generate

    def noting(prompt, count, *, forced):
        fed.append((len(prompt), count, forced.of_prompt))
        return run(prompt, count, forced=forced)

    monkeypatch.setattr(ours.engine, "generate", noting)
    ours.loglikelihood_rolling(asked("loglikelihood_rolling", ("a" * 9,), ("b" * (LIMIT + 39),)))
    # With the mark that the tokenizer adds and the one that a text begins with: 11 tokens; and two windows.
    assert fed == [(5, 6, True), (LIMIT // 2, LIMIT // 2 + 1, True), (LIMIT + 1 - 40, 40, False)]


def test_half_of_a_text_is_decoded_from_what_is_kept(model) -> None:
    text = asked("loglikelihood_rolling", ("Words, and again words, until there are many of them. " * 4,))
    full, small = (lm(model, "h2o", budget).loglikelihood_rolling(text)[0] for budget in (1.0, 0.2))
    assert small != pytest.approx(full, abs=0.5)


def test_generation_stops_where_theirs_does(model, theirs: HFLM) -> None:
    plain = {"until": [], "max_gen_toks": 24, "do_sample": False}
    said = lm(model).generate_until(asked("generate_until", ("Tell me:", plain)))[0]
    stop = said[6:8]
    kinds = [
        ("Tell me:", plain),
        ("Tell me:", {"until": [stop], "max_gen_toks": 24}),
        ("word " * 100, {"until": stop, "max_gen_toks": 5}),
    ]
    expected = theirs.generate_until(asked("generate_until", *kinds), disable_tqdm=True)
    for engine_id in IDS:
        ours = lm(model, engine_id)
        assert ours.generate_until(asked("generate_until", *kinds)) == expected
        assert not ours.engine.has_work
        assert ours.device_kv_peak_bytes > 0
    assert expected[0] == said
    assert expected[1] == said[: said.index(stop)]


def test_sampling_is_reproducible_and_unknown_kinds_are_refused(model) -> None:
    sampled = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 1.5}
    ours = lm(model)
    twice = asked("generate_until", ("Tell me:", sampled), ("Tell me:", sampled))
    first = ours.generate_until(twice)
    assert ours.generate_until(twice) == first
    assert first[0] != first[1]
    with pytest.raises(BadRequest, match="top_k"):
        ours.generate_until(asked("generate_until", ("Tell me:", {**sampled, "top_k": 5})))
    with pytest.raises(BadRequest, match="up to 256 tokens"):
        ours.generate_until(asked("generate_until", ("Tell me:", {"until": []})))


def test_what_no_engine_can_do_is_said(model) -> None:
    ours = lm(model)
    with pytest.raises(BadRequest, match="exceeds the context of 256"):
        ours.loglikelihood(asked("loglikelihood", ("a", "b" * 257)))
    with pytest.raises(BadRequest, match="no token is left"):
        ours.loglikelihood(asked("loglikelihood", ("a", "")))
    small = lm(model, arena_tokens=64)
    with pytest.raises(EngineFailed) as caught:
        small.loglikelihood(asked("loglikelihood", ("a" * 200, "b")))
    assert caught.value.outcome == "device_oom"
    assert small.loglikelihood(asked("loglikelihood", ("a", "b")))[0][0] < 0


def test_a_chat_template_is_the_tokenizers_own(model, monkeypatch: pytest.MonkeyPatch) -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
    )
    monkeypatch.setattr(model.tokenizer, "chat_template", template)
    ours, said = lm(model), [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(said) == "[user]Hi[a]"
    assert ours.apply_chat_template(said, add_generation_prompt=False) == "[user]Hi"
    assert ours.chat_template(True) == template


@pytest.mark.slow
@pytest.mark.parametrize("engine_id", IDS)
def test_the_default_model_agrees_with_theirs(engine_id: str, smollm2, facts) -> None:
    their = HFLM(pretrained=str(smollm2.path), device="cpu", dtype="float32", batch_size=1)
    expected, their_answers = evaluated(their, facts, None)
    metrics, answers = evaluated(lm(smollm2, engine_id), facts, None)
    assert metrics == expected
    assert [value for value, _ in answers] == pytest.approx([value for value, _ in their_answers], abs=WITHIN)
