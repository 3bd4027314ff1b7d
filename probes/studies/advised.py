"""An advice as a person reads it, and as a program does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from engines.sizes import counted
from probes import variants
from probes.advice import ASPECTS, Advice, Aspect, Candidate, Figure, Limits, Miss, Refusal, missed, told, worded
from probes.studies.base import Rows
from probes.studies.evidence import Key
from probes.studies.table import one_line, table

RIGHT = "the full cache's right answers"
_HEADS: dict[Aspect, str] = {
    "device_bytes": "device memory",
    "accuracy": "of full cache",
    "tpot_s": "TPOT",
    "ttft_s": "TTFT",
}
_ASKED: dict[Aspect, str] = {
    "device_bytes": "at most {} of device memory",
    "accuracy": f"at least {{}} of {RIGHT}",
    "tpot_s": "at most {} a token",
    "ttft_s": "a first token after at most {}",
}
_MARKED = "* between or beyond the contexts that were measured: memory worked out, times on a straight line."

_UNKNOWN = "What is not known of the full cache's right answers, kvtui study retention measures."


@dataclass(frozen=True)
class Report:
    """`keys` are the candidates' by their names; `context` is in tokens."""

    model: str
    context: int
    limits: Limits
    prefer: str
    advice: Advice
    candidates: tuple[Candidate, ...]
    keys: dict[str, Key]
    notes: tuple[str, ...] = ()

    def as_text(self) -> str:
        best, other = self.advice.best, self.advice.runner_up
        lines = [table(self._rows()), "", self._question()]
        if best is not None:
            lines += ["", f"Take {best.name}: {self.advice.why}.", *_facts(best), *self._command(best)]
        else:
            lines += ["", "Nothing fits.", *self._nearest()]
        if other is not None:
            lines += ["", f"Runner-up: {other.name}.", *_facts(other), *self._command(other)]
        marked = any(_apart(getattr(candidate, aspect)) for candidate in self.candidates for aspect in ASPECTS)
        unknown = any(
            miss.aspect == "accuracy" and miss.figure is None for r in self.advice.refused for miss in r.misses
        )
        notes = [*([_MARKED] if marked else []), *([_UNKNOWN] if unknown else []), *self.notes]
        return "\n".join([*lines, *([""] if notes else []), *notes])

    def as_json(self) -> str:
        best, other, nearest = self.advice.best, self.advice.runner_up, self.advice.nearest
        whole = {
            "model": self.model,
            "context": self.context,
            "limits": self.limits,
            "prefer": self.prefer,
            "best": best.name if best else None,
            "why": self.advice.why,
            "runner_up": other.name if other else None,
            "nearest_miss": nearest.candidate.name if nearest else None,
            "candidates": [self._object(candidate) for candidate in self.candidates],
            "notes": self.notes,
        }
        return msgspec.json.format(msgspec.json.encode(whole)).decode()

    def _refusal(self, candidate: Candidate) -> Refusal | None:
        return next((refusal for refusal in self.advice.refused if refusal.candidate is candidate), None)

    def _rows(self) -> Rows:
        """Those that fit first, in their order."""
        rows = []
        for candidate in [*self.advice.fitting, *(refusal.candidate for refusal in self.advice.refused)]:
            figures = {_HEADS[aspect]: _cell(aspect, getattr(candidate, aspect)) for aspect in ASPECTS}
            rows.append({"candidate": candidate.name, **figures, "judged": self._word(candidate)})
        return rows

    def _word(self, candidate: Candidate) -> str:
        refusal = self._refusal(candidate)
        if refusal is not None:
            return candidate.lost or "; ".join(_short(miss) for miss in refusal.misses)
        named = {id(self.advice.best): "take this", id(self.advice.runner_up): "runner-up"}
        return named.get(id(candidate), "fits")

    def _question(self) -> str:
        limits = {aspect: getattr(self.limits, aspect) for aspect in ASPECTS}
        asked = [_ASKED[aspect].format(worded(aspect, at)) for aspect, at in limits.items() if at is not None]
        wanted = f"; asked for: {', '.join(asked)}" if asked else ""
        return f"{one_line(self.model)}, {counted(self.context, 'token')} of context{wanted}."

    def _nearest(self) -> list[str]:
        nearest = self.advice.nearest
        if nearest is None:
            return ["What was asked for is not known of any that gave an answer."]
        misses = "; ".join(missed(miss, RIGHT) for miss in nearest.misses)
        return [f"The nearest miss is {nearest.candidate.name}: {misses}."]

    def _command(self, candidate: Candidate) -> list[str]:
        name, budget = self.keys[candidate.name]
        command = variants.command(name, self.model, budget)
        return [f"    {command}"] if command else []

    def _object(self, candidate: Candidate) -> dict[str, Any]:
        name, budget = self.keys[candidate.name]
        refusal = self._refusal(candidate)
        misses = refusal.misses if refusal is not None else ()
        return {
            "name": candidate.name,
            "variant": name,
            "budget": budget,
            "command": variants.command(name, self.model, budget),
            **{aspect: getattr(candidate, aspect) for aspect in ASPECTS},
            "lost": candidate.lost,
            "fits": refusal is None,
            "misses": [{"limit": miss.aspect, "asked": miss.limit, "excess": miss.excess} for miss in misses],
        }


def _apart(figure: Figure | None) -> bool:
    return figure is not None and figure.note.startswith(("extrapolated", "between"))


def _cell(aspect: Aspect, figure: Figure | None) -> str | None:
    return None if figure is None else worded(aspect, figure.value) + ("*" if _apart(figure) else "")


def _short(miss: Miss) -> str:
    figure = "not known" if miss.figure is None else worded(miss.aspect, miss.figure.value)
    return f"{_HEADS[miss.aspect]} {figure}"


def _facts(candidate: Candidate) -> list[str]:
    return [f"    {told(aspect, getattr(candidate, aspect), RIGHT)}" for aspect in ASPECTS]
