"""Makes the classifier's weights anew: `python -m probes.train_classifier` writes engines/data/classifier.npz.

Softmax regression on `engines.classify.features`. It learns from the labelled requests whose template number is not
divisible by 3, and from phrasings that stand for no template; phrasings of tasks about a text are put before and after
a passage of prose. The rest of the requests is held out, and only measured.
"""

from __future__ import annotations

import argparse
import json
import random
from importlib import resources
from pathlib import Path

import numpy as np

from engines.classify import TASKS, features
from probes.prose import passages

ABOUT_A_TEXT = ("summary", "lookup", "reasoning")
PENALTY = 0.3  # on the squared weights; anything from 0.1 to 1 does as well by cross-validation over templates
STEPS = 400


def requests(held_out: bool) -> list[tuple[str, str]]:
    """(task, text) of the labelled requests, either those to learn from or the held-out ones."""
    rows = [json.loads(line) for line in _read("requests.jsonl").splitlines()]
    return [(row["label"], row["text"]) for row in rows if (_number(row) % 3 == 0) == held_out]


def phrasings() -> list[tuple[str, str]]:
    """(task, text) of further requests, each about some passage if its task needs one."""
    prose = passages()
    rng = random.Random(0)
    found = []
    for line in _read("phrasings.tsv").splitlines():
        task, asked = line.split("\t")
        if task in ABOUT_A_TEXT:
            passage = rng.choice(prose)
            found += [(task, f"{asked}\n\n{passage}"), (task, f"{passage}\n\n{asked}")]
        else:
            found.append((task, asked))
    return found


def fit(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [n, features], y int [n] -> weights [features, tasks] and bias [tasks]. Nesterov's method in the space that the
    examples span, which has far fewer dimensions than there are features."""
    wanted = np.eye(len(TASKS))[y]
    u, singular, basis = np.linalg.svd(np.hstack([x, np.ones((len(x), 1))]), full_matrices=False)
    z = u * singular
    step = 1 / (0.5 * singular[0] ** 2 + PENALTY)
    weights = ahead = np.zeros((len(singular), len(TASKS)))
    pace = 1.0
    for _ in range(STEPS):
        scores = z @ ahead
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        before, weights = weights, ahead - step * (z.T @ (shares - wanted) + PENALTY * ahead)
        pace, last = (1 + np.sqrt(1 + 4 * pace * pace)) / 2, pace
        ahead = weights + (last - 1) / pace * (weights - before)
    whole = basis.T @ weights
    return whole[:-1], whole[-1]


def confusion(truth: list[str], found: list[str]) -> np.ndarray:
    """int [tasks, tasks]: rows are the true tasks, columns what was found."""
    counts = np.zeros((len(TASKS), len(TASKS)), int)
    np.add.at(counts, ([TASKS.index(t) for t in truth], [TASKS.index(f) for f in found]), 1)
    return counts


def macro_f1(counts: np.ndarray) -> float:
    return float(np.mean(2 * np.diag(counts) / np.maximum(1, counts.sum(0) + counts.sum(1))))


def _number(row: dict[str, str]) -> int:
    return int(row["template"].rsplit("-", 1)[1])


def _read(name: str) -> str:
    return resources.files("probes").joinpath("data", name).read_text("utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(str(resources.files("engines"))) / "data/classifier.npz")
    out = parser.parse_args().out
    examples = requests(held_out=False) + phrasings()
    x = np.array([features(text) for _, text in examples], float)
    weights, bias = fit(x, np.array([TASKS.index(task) for task, _ in examples]))
    np.savez_compressed(out, weights=weights.astype(np.float16), bias=bias.astype(np.float32))
    held = requests(held_out=True)
    scores = np.array([features(text) for _, text in held]) @ weights.astype(np.float16).astype(float) + bias
    counts = confusion([task for task, _ in held], [TASKS[i] for i in scores.argmax(1)])
    print(f"{len(examples)} examples; held out {len(held)}, macro-F1 {macro_f1(counts):.3f}; {out}")
    for task, row in zip(TASKS, counts, strict=True):
        print(f"{task:>10} " + " ".join(f"{count:4d}" for count in row))


if __name__ == "__main__":
    main()
