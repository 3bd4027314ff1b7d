"""Facts told early and asked for late: the conversations, the prose, the arithmetic, and the study around them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import engines
from engines.errors import BadRequest
from probes import prose, retention, study
from probes.conversations import LAYOUTS, make_case
from probes.proportions import relative_drop, wilson
from probes.studies import record, retained
from probes.studies.retention import VARIANTS, RetentionStudy
from tests.test_hybrid import Words
from tests.tiny import CONFIGS, tiny

SMALL = prose.shipped().passages[:4]
LETTERS = SimpleNamespace(tokenizer=Words(), context_limit=60_000)  # a token is a letter


@pytest.fixture(scope="module")
def model():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONFIGS, "long", CONFIGS["smollm2"] | {"max_position_embeddings": 4096})
        made, _ = tiny("long")
    made.tokenizer = Words()
    return made


def made(*arguments: str) -> RetentionStudy:
    return RetentionStudy(study._parser(RetentionStudy).parse_args(list(arguments)))


def texts(case) -> str:
    return "\n\n".join(message["content"] for message in case.messages)


def test_wilsons_interval_at_its_ends_is_what_it_is_by_hand() -> None:
    assert wilson(4, 4) == pytest.approx((4 / (4 + 1.959964**2), 1))
    assert wilson(0, 5) == pytest.approx((0, 1.959964**2 / (5 + 1.959964**2)))


def test_the_drop_is_that_of_pairs() -> None:
    drop, low, high = relative_drop(26, 19, 0)
    assert drop == pytest.approx(1 - 26 / 45)
    assert 0 < low < drop < high < 1
    # The children of Bentur et al. (2009), Bonett and Price's interval as in Fagerland et al. (2014): 0.068 to 0.92.
    drop, low, high = relative_drop(1, 7, 1)
    assert (1 - drop, round(1 - high, 3), round(1 - low, 2)) == (pytest.approx(0.25), 0.068, 0.92)
    assert relative_drop(0, 0, 3) is None


def test_two_that_always_agree_are_not_known_to_be_equal_for_ever() -> None:
    drop, low, high = relative_drop(45, 0, 0)
    assert drop == 0
    assert -0.06 < low < -0.03
    assert 0.03 < high < 0.06
    assert relative_drop(0, 5, 0)[1] < 0.5  # nor is five of five much


@pytest.mark.parametrize("layout", [*LAYOUTS, "0", "0.5"])
@pytest.mark.parametrize(("of", "tokens"), [("distance", 1500), ("context", 3000)])
def test_no_sentence_of_the_prose_comes_twice(layout: str, of, tokens: int) -> None:
    for seed in range(3):
        case = make_case(LETTERS, layout, tokens, seed, of=of, prose=SMALL)
        told = Counter(prose.sentences(texts(case)))
        known = Counter(sentence for text in SMALL for sentence in prose.sentences(text))
        assert all(told[sentence] <= known[sentence] for sentence in known)
        assert all(texts(case).count(question.said) == 1 for question in case.questions)


def test_more_prose_than_there_is_is_refused() -> None:
    assert make_case(LETTERS, "first", 5000, of="distance", prose=SMALL).distance >= 5000
    for of in ("distance", "context"):
        with pytest.raises(prose.OutOfProse, match=r"more prose than the 5,\d\d\d tokens there are"):
            make_case(LETTERS, "first", 9000, of=of, prose=SMALL)


@pytest.mark.parametrize("layout", [*LAYOUTS, "0.25"])
def test_the_distance_is_what_was_asked_for_but_for_a_sentence(layout: str) -> None:
    case = make_case(LETTERS, layout, 1200, seed=2, of="distance", prose=SMALL)
    text = texts(case)
    # A letter is a token here, so that the distance can be counted by hand: up to the question, with the line breaks.
    end = max(text.index(question.said) + len(question.said) for question in case.questions)
    assert case.distance == len(text) - end + len("\n\n")
    assert 1200 <= case.distance < 1200 + 300


def test_a_depth_is_a_share_of_the_prose_and_turns_are_as_many_as_asked_for() -> None:
    case = make_case(LETTERS, "0.75", 400, of="distance", turns=3, prose=SMALL)
    text = texts(case)
    before = min(text.index(question.said) for question in case.questions)
    assert 1200 <= before < 1500
    assert sum(message["content"].startswith("Here is something to read.") for message in case.messages) == 3
    with pytest.raises(BadRequest, match="too short for prose in 90 later turns"):
        make_case(LETTERS, "first", 400, of="distance", turns=90, prose=SMALL)


def test_other_distances_and_places_ask_the_same() -> None:
    cases = [
        make_case(LETTERS, layout, tokens, 5, of="distance", turns=1, prose=SMALL)
        for layout in LAYOUTS
        for tokens in (900, 1800)
    ]
    assert all(case.questions == cases[0].questions for case in cases)
    short, long = (
        make_case(LETTERS, "first", tokens, 5, of="distance", turns=1, prose=SMALL) for tokens in (900, 1800)
    )
    assert texts(long).startswith(texts(short).removesuffix("\n\n" + short.messages[-1]["content"]))


def test_a_context_that_does_not_fit_is_refused(model) -> None:
    with pytest.raises(BadRequest, match=r"layout 0.9, distance 500 takes 5,000 tokens of context.* 4,096"):
        make_case(model, "0.9", 500, of="distance")


def test_a_text_becomes_passages_that_differ(tmp_path: Path) -> None:
    file = tmp_path / "book.txt"
    words = [f"Sentence number {number} has some words." for number in range(300)]
    file.write_text("\n".join(words[:200]) + "\n\nA heading\n\n" + " ".join(words[200:]) + "\n\nA heading\n")
    found = prose.read(file)
    assert [sentence for text in found.passages for sentence in prose.sentences(text)].count(words[7]) == 1
    assert sum(text.count("A heading") for text in found.passages) == 1
    assert sum(map(len, found.passages)) == pytest.approx(file.stat().st_size, rel=0.01)
    assert all(len(text) < 2 * prose.PARAGRAPH_CHARS for text in found.passages)
    file.write_text("The grass is green. The sky is blue. " * 2000)
    assert prose.read(file).passages == ("The grass is green. The sky is blue.",)


def test_engines_are_innermost_and_the_full_cache_comes_once() -> None:
    cells = made("--distances", "1000,3000", "--cases", "5", "--budgets", "0.2,0.5", "--engines", "h2o,paged").cells()
    first = {"layout": "first", "distance": 1000, "first_case": 0, "cases": 4}
    assert cells[:5] == [
        first | {"engine": "paged"},
        first | {"budget": 0.2, "engine": "h2o"},
        first | {"budget": 0.5, "engine": "h2o"},
        first | {"first_case": 4, "cases": 1, "engine": "paged"},
        first | {"first_case": 4, "cases": 1, "budget": 0.2, "engine": "h2o"},
    ]
    assert len(cells) == 3 * (2 + 5) * 3
    assert all(cells.count(cell) == 1 for cell in cells)


def test_the_usual_plan_is_that_of_the_table() -> None:
    usual = made()
    assert usual.of == "context"
    assert usual.lengths == [(1000, 12), (2000, 4), (4000, 2)]
    assert {cell["engine"] for cell in usual.cells()} == set(VARIANTS)
    assert sum(cell["cases"] for cell in usual.cells() if cell["engine"] == "h2o+") == 3 * 18
    assert made("--tokens", "500", "--cases", "2").lengths == [(500, 2)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--distances", "500", "--tokens", "500"], "give one"),
        (["--distances", "near"], "numbers separated by commas, not near"),
        (["--tokens", "0"], "--tokens are 1 or more"),
        (["--layouts", "last"], "a layout is first, middle, system, or how deep"),
        (["--layouts", "0.95"], "from 0 to 0.9"),
        (["--layouts", ","], "a layout is first"),
        (["--budgets", "1.5"], "above 0 and up to 1"),
        (["--budgets", "nan"], "above 0 and up to 1"),
        (["--engines", "tgi"], "known are the engines paged"),
        (["--turns", "0"], "1 or more"),
        (["--cases", "0"], "1 or more"),
        (["--prose", "missing"], "cannot read missing: No such file"),
        (["--prose", "."], "cannot read .: Is a directory"),
        (["--prose", "empty"], "empty is empty"),
        (["--prose", "binary"], "binary is no text: it holds NUL"),
        (["--prose", "latin"], "latin is no text in UTF-8"),
        (["--prose", "short"], "short is too short for 4,000 tokens; --prose FILE takes"),
        (["--prose", "filler"], "filler is too short for 4,000 tokens"),
    ],
)
def test_refusals_are_one_line_before_anything_is_made(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text(" \n\n ")
    Path("binary").write_bytes(b"a\0b" * 9000)
    Path("latin").write_bytes(b"caf\xe9 " * 9000)
    Path("short").write_text("A text of one sentence.")
    Path("filler").write_text("The grass is green.\n\n" * 9000)
    assert study.main(["retention", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not Path("kvtui-studies").exists()


def test_a_study_of_ones_own_text_and_going_on_with_another(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(RetentionStudy, "model", model)
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("\n\n".join(SMALL[:2]))
    options = ["--distances", "60,120", "--layouts", "first", "--cases", "2", "--engines", "paged,h2o", "--turns", "1"]
    assert study.main(["retention", *options, "--prose", "mine.txt", "--out", "there"]) == 0
    kept = record.load(Path("there"))
    assert kept.options["prose"] == "mine.txt"
    assert kept.options["prose_sha256"] == prose.read(Path("mine.txt")).sha256
    assert "The prose was mine.txt." in kept.reading
    assert [(row["aim"], row["engine"], row["questions"]) for row in kept.results] == [
        (aim, engine, asked)
        for aim, asked in (("distance 60", 8), ("distance 120", 8), ("all", 16))
        for engine in ("paged", "h2o")
    ]
    for paged, h2o in zip(kept.results[::2], kept.results[1::2], strict=True):
        assert paged["device_kv_share"] == pytest.approx(1, rel=0.1)
        assert h2o["device_kv_share"] == pytest.approx(0.3, rel=0.1)
        assert paged["distance"] == h2o["distance"]
    assert all(row["answers"].count("1") == row["right_answers"] for row in kept.rows)
    Path("mine.txt").write_text("\n\n".join(SMALL[2:]))
    capsys.readouterr()
    assert study.main(["retention", "--resume", "there"]) == 2
    err = capsys.readouterr().err
    assert "mine.txt is not the prose that the study began with" in err
    assert len(err.splitlines()) == 1


def test_prose_that_will_not_do_for_the_longest_is_said_before_the_shortest_is_measured(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(RetentionStudy, "model", model)
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text(SMALL[0])
    options = ["--distances", f"60,{len(SMALL[0])}", "--layouts", "first,0.5", "--turns", "1", "--prose", "mine.txt"]
    assert study.main(["retention", *options, "--out", "there"]) == 2
    assert "tokens there are, and none is given twice; --prose FILE takes a longer text" in capsys.readouterr().err
    assert not Path("there/rows.jsonl").exists()


def test_what_does_not_fit_on_the_device_is_not_known(model) -> None:
    case = make_case(model, "first", 300, of="distance")
    room = model.weights_bytes + 100 * model.kv_bytes_per_token
    found = retention.ask(engines.create_engine("vllm", model, device_memory_bytes=room), case)
    assert found.lost
    assert found.right == (False,) * 4


def row(layout: str, aim: str, budget: float | None, engine: str, case: int, answers: str, **more) -> dict:
    return {
        "layout": layout,
        "aim": aim,
        "budget": budget,
        "engine": engine,
        "case": case,
        "questions": len(answers),
        "right_answers": answers.count("1"),
        "answers": answers,
        "distance": int(aim.split()[1]) + case,
        "context": 2000,
        "device_kv_bytes": 100 if budget is None else int(100 * budget),
        "full_kv_bytes": 100,
        "peak_kv_share": 1.0 if budget is None else budget + case / 100,
        "lost": False,
    } | more


def test_the_same_questions_are_paired_whatever_order_they_come_in() -> None:
    rows = [
        row("first", "distance 500", 0.3, "h2o", 1, "0111"),
        row("first", "distance 500", 0.3, "h2o", 0, "1000"),
        row("first", "distance 500", None, "paged", 0, "1100"),
        row("first", "distance 500", None, "paged", 1, "1111"),
        row("system", "distance 500", 0.3, "h2o", 0, "0001"),
        row("system", "distance 500", None, "paged", 0, "0000"),
    ]
    found = {(one["layout"], one["engine"]): one for one in retained.results(rows)}
    first, system, total = (found[layout, "h2o"] for layout in ("first", "system", "all"))
    assert (first["right"], first["questions"], first["aim"]) == (0.5, 8, "distance 500")
    assert (first["drop"], first["drop_low_95"], first["drop_high_95"]) == relative_drop(4, 2, 0)
    assert first["drop"] == pytest.approx(1 / 3)
    assert (first["device_kv_share"], first["peak_kv_share"], first["distance"]) == (0.3, 0.31, 500)
    assert system["drop"] is None  # a full cache that knows nothing has nothing to lose
    assert total["drop"] == pytest.approx(1 - 5 / 6)
    assert (total["drop"], total["drop_low_95"], total["drop_high_95"]) == relative_drop(4, 2, 1)
    assert found["first", "paged"]["drop"] is None


def test_the_reading_says_who_keeps_what_and_where_the_model_itself_does_not_know() -> None:
    rows = []
    for aim, full, kept in (("distance 500", "1111", "1000"), ("distance 4000", "0100", "1000")):
        rows += [row("first", aim, None, "paged", case, full) for case in range(10)]
        rows += [row("first", aim, 0.3, "h2o", case, kept) for case in range(10)]
    found = retained.results(rows)
    said = retained.reading(found)
    assert "With its full cache the model answered 50 of 80 questions rightly (62%" in said
    assert "h2o answered 40% as many rightly as that" in said
    assert "with 30% of its KV on the device (39% at the peak)" in said
    assert "at budget 0.3: h2o at 504 tokens (from 25% right to 25%)" in said
    assert "At 4,004 tokens the model itself misses more than a quarter" in said
    assert [chart.name for chart in retained.charts(found)] == ["distance-0.3", "position-0.3"]
    lost = [one | {"lost": one["engine"] == "h2o"} for one in rows]
    assert "h2o ran out of device memory in 20 conversations" in retained.reading(retained.results(lost))


def test_a_chart_over_budgets_has_the_full_cache_at_each() -> None:
    rows = [row("first", "distance 500", None, "paged", 0, "1111")]
    rows += [row("first", "distance 500", budget, "h2o", 0, "1000") for budget in (0.5, 0.2)]
    *_, budgets = retained.charts(retained.results(rows))
    assert budgets.name == "budget"
    assert [(point.x, point.y) for point in budgets.series["paged"]] == [(0.2, 1), (0.5, 1)]
    assert [(point.x, point.y) for point in budgets.series["h2o"]] == [(0.5, 0.25), (0.2, 0.25)]
