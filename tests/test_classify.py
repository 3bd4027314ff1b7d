"""The classifier as shipped: how well it does on templates that it has never seen, and how fast."""

from __future__ import annotations

import time

import pytest

from engines.classify import HEAD_CHARS, TAIL_CHARS, TASKS, classify, parts
from probes.prose import passages
from probes.train_classifier import confusion, macro_f1, requests


def test_held_out_requests_are_told_apart() -> None:
    held = requests(held_out=True)
    assert len(held) >= 100
    found = [classify(text) for _, text in held]
    assert all(sum(shares.values()) == pytest.approx(1, abs=1e-5) and tuple(shares) == TASKS for shares in found)
    counts = confusion([task for task, _ in held], [max(shares, key=shares.__getitem__) for shares in found])
    assert macro_f1(counts) >= 0.85


def test_a_long_document_costs_no_more_than_its_ends() -> None:
    long = "What is the name of the ship?\n\n" + "\n\n".join(passages()) * 4
    assert len(long) > 200_000
    classify(long)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        shares = classify(long)
        times.append(time.perf_counter() - start)
    assert max(shares, key=shares.__getitem__) == "lookup"
    assert min(times) <= 0.005
    assert len(parts(long).seen) <= HEAD_CHARS + TAIL_CHARS + 2


@pytest.mark.parametrize("place", ["before", "after", "within"])
def test_the_question_is_found_beside_its_document(place: str) -> None:
    asked, document = "Please tell me who signed the letter.", passages()[0]
    text = {
        "before": f"{asked}\n\n{document}",
        "after": f"{document}\n\n{asked}",
        "within": f"{' '.join(document.split())} {asked}",
    }[place]
    assert "who signed the letter" in parts(text).asked


@pytest.mark.parametrize(
    "text", ["", " ", "?", "\n\n\n", "ﷺ" * 10_000, "a" * 300_000, "{" * 5000, "1 2 3 " * 9000], ids=range(8)
)
def test_anything_is_a_request_of_some_kind(text: str) -> None:
    assert sum(classify(text).values()) == pytest.approx(1, abs=1e-5)
