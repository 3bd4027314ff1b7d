"""Which candidate to take: measured figures held against what a person asks for. Pure, and light to import: the live
app judges the run on its screen by it, too."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from engines.sizes import size

Aspect = Literal["device_bytes", "accuracy", "tpot_s", "ttft_s"]
ASPECTS: tuple[Aspect, ...] = ("device_bytes", "accuracy", "tpot_s", "ttft_s")
# What decides between candidates within the limits: the first, where it is the same the second, and so on.
ORDERS: dict[str, tuple[Aspect, ...]] = {
    "speed": ("tpot_s", "accuracy", "device_bytes", "ttft_s"),
    "memory": ("device_bytes", "accuracy", "tpot_s", "ttft_s"),
    "accuracy": ("accuracy", "tpot_s", "device_bytes", "ttft_s"),
}
STEP = 0.05  # figures that are nearer to each other than this do not decide, unless nothing else does
BEST: dict[Aspect, str] = {
    "device_bytes": "smallest",
    "accuracy": "most accurate",
    "tpot_s": "fastest",
    "ttft_s": "quickest to the first token",
}
_BETTER: dict[Aspect, str] = {
    "device_bytes": "smaller",
    "accuracy": "more accurate",
    "tpot_s": "faster",
    "ttft_s": "quicker to the first token",
}
_AS_GOOD: dict[Aspect, str] = {
    "device_bytes": "as small as",
    "accuracy": "as accurate as",
    "tpot_s": "as fast as",
    "ttft_s": "as quick to the first token as",
}


@dataclass(frozen=True)
class Figure:
    """`note` says where it comes from, where that is not a measurement of just this."""

    value: float
    note: str = ""


@dataclass(frozen=True)
class Candidate:
    """`accuracy` is a share of the full cache's; None is not known. `lost` says why it gave no answer at all."""

    name: str
    device_bytes: Figure | None = None
    accuracy: Figure | None = None
    tpot_s: Figure | None = None
    ttft_s: Figure | None = None
    lost: str = ""

    def cost(self, aspect: Aspect) -> float:
        """Less is better; what is not known is worse than anything."""
        figure: Figure | None = getattr(self, aspect)
        if self.lost or figure is None:
            return math.inf
        return -figure.value if aspect == "accuracy" else figure.value


@dataclass(frozen=True)
class Limits:
    """The most that it may take, and the least `accuracy`; None is no limit."""

    device_bytes: float | None = None
    accuracy: float | None = None
    tpot_s: float | None = None
    ttft_s: float | None = None


@dataclass(frozen=True)
class Miss:
    """A limit that a candidate is not within. `excess` is how many times: 1.1 is 10 % beyond."""

    aspect: Aspect
    figure: Figure | None
    limit: float
    excess: float


@dataclass(frozen=True)
class Refusal:
    """Without misses, the candidate is lost."""

    candidate: Candidate
    misses: tuple[Miss, ...] = ()

    @property
    def excess(self) -> float:
        return max((miss.excess for miss in self.misses), default=math.inf)


@dataclass(frozen=True)
class Advice:
    """`fitting` are within the limits, the best one first; `refused` in the order in which they came."""

    order: tuple[Aspect, ...]
    fitting: tuple[Candidate, ...] = ()
    refused: tuple[Refusal, ...] = field(default=())

    @property
    def best(self) -> Candidate | None:
        return self.fitting[0] if self.fitting else None

    @property
    def runner_up(self) -> Candidate | None:
        return self.fitting[1] if len(self.fitting) > 1 else None

    @property
    def nearest(self) -> Refusal | None:
        """The refused candidate that misses its limits by least; None where no miss can be measured."""
        nearest = min(self.refused, key=lambda refusal: refusal.excess, default=None)
        return nearest if nearest is not None and math.isfinite(nearest.excess) else None

    @property
    def decided_by(self) -> Aspect | None:
        """What the best is better in than the runner-up; None where there is none, or they are the same in all."""
        best, other = self.best, self.runner_up
        if best is None or other is None:
            return None
        clearly = (a for a in self.order if not _near(other.cost(a), best.cost(a), a))
        exactly = (a for a in self.order if best.cost(a) < other.cost(a))
        return next(clearly, None) or next(exactly, None)

    @property
    def why(self) -> str:
        """Why the best one is that."""
        best, other, aspect = self.best, self.runner_up, self.decided_by
        if best is None:
            return ""
        if other is None:
            return "the only one that fits"
        if aspect is None:
            return f"as good as {other.name} in all that is known"
        known = [a for a in self.order if best.cost(a) < math.inf or other.cost(a) < math.inf]
        if aspect == known[0]:
            return f"the {BEST[aspect]} of {len(self.fitting)} that fit"
        return f"{_AS_GOOD[known[0]]} {other.name} to within {STEP:.0%}, and {_BETTER[aspect]}"


def judge(candidates: list[Candidate], limits: Limits, prefer: str = "speed") -> Advice:
    """Candidates within all limits, the best first: of those that are near the best in the first of `ORDERS[prefer]`,
    those that are near the best in the second, and so on. A figure that a limit asks for and that is not known counts
    as beyond it. The best one is never one that another is at least as good as in all, and better in something."""
    order = ORDERS[prefer]
    refused = [
        Refusal(candidate, misses)
        for candidate in candidates
        if (misses := _misses(candidate, limits)) or candidate.lost
    ]
    out = {id(refusal.candidate) for refusal in refused}
    fitting = [candidate for candidate in candidates if id(candidate) not in out]

    ranked: list[Candidate] = []
    while fitting:
        left = fitting
        for aspect in order:
            best = min(candidate.cost(aspect) for candidate in left)
            left = [candidate for candidate in left if _near(candidate.cost(aspect), best, aspect)]
        first = min(left, key=lambda one: (*(one.cost(aspect) for aspect in order), one.name))
        ranked.append(first)
        fitting = [candidate for candidate in fitting if candidate is not first]
    return Advice(order, tuple(ranked), tuple(refused))


def told(aspect: Aspect, figure: Figure | None, accuracy_of: str = "the full cache's accuracy") -> str:
    """A figure in words."""
    if figure is None:
        return {
            "device_bytes": "device memory not known",
            "accuracy": f"{accuracy_of} not known",
            "tpot_s": "time a token not known",
            "ttft_s": "time to the first token not known",
        }[aspect]
    words = {
        "device_bytes": f"{worded('device_bytes', figure.value)} of device memory",
        "accuracy": f"{worded('accuracy', figure.value)} of {accuracy_of}",
        "tpot_s": f"{worded('tpot_s', figure.value)} a token",
        "ttft_s": f"first token after {worded('ttft_s', figure.value)}",
    }[aspect]
    return f"{words} ({figure.note})" if figure.note else words


def worded(aspect: Aspect, value: float) -> str:
    """A value with its unit."""
    if aspect == "device_bytes":
        return size(value)
    if aspect == "accuracy":
        return f"{value:.1%}".replace(".0%", "%")
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def missed(miss: Miss, accuracy_of: str = "the full cache's accuracy") -> str:
    """A miss in words: what there is, and what was asked for."""
    least = "at least" if miss.aspect == "accuracy" else "at most"
    return f"{told(miss.aspect, miss.figure, accuracy_of)}, {least} {worded(miss.aspect, miss.limit)} asked for"


def _misses(candidate: Candidate, limits: Limits) -> tuple[Miss, ...]:
    if candidate.lost:
        return ()
    found = []
    for aspect in ASPECTS:
        limit, figure = getattr(limits, aspect), getattr(candidate, aspect)
        if limit is None:
            continue
        wanted = -limit if aspect == "accuracy" else limit
        if not candidate.cost(aspect) <= wanted:
            found.append(Miss(aspect, figure, limit, _excess(aspect, figure, limit)))
    return tuple(found)


def _excess(aspect: Aspect, figure: Figure | None, limit: float) -> float:
    if figure is None:
        return math.inf
    part, whole = (limit, figure.value) if aspect == "accuracy" else (figure.value, limit)
    return part / whole if whole > 0 else math.inf


def _near(cost: float, best: float, aspect: Aspect) -> bool:
    """Whether it is no more than a step above the best. Accuracy counts in shares of the full cache's, the others in
    ratios."""
    return cost <= (best + STEP if aspect == "accuracy" else best * (1 + STEP))
