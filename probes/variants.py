"""The engines with their improvements, by the names that studies give them: what an advice is chosen from."""

from __future__ import annotations

from typing import Any

from engines.events import ENGINE_LABELS
from engines.knobs import ANCHORS, PREFILLS

PAGED = "paged"  # the full cache, which has no budget
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    PAGED: ("vllm", {}),
    "h2o": ("h2o", {}),
    "h2o flash scoring": ("h2o", {"prefill": "flash"}),
    "h2o sampled scoring": ("h2o", {"prefill": "flash", "scoring": "sampled"}),
    "h2o bounded chunks": ("h2o", {"prefill": "chunked"}),
    "h2o exact chunks": ("h2o", {"prefill": "chunked-exact"}),
    "h2o anchors": ("h2o", {"anchors": ANCHORS}),
    "h2o+": ("h2o+", {}),
    "infinigen": ("infinigen", {}),
    "infinigen+": ("infinigen+", {}),
    "hybrid": ("hybrid", {}),
}


def named(name: str) -> str:
    """The name of a variant, by which it or its engine is called: "vllm" is "paged"."""
    return next((known for known, (id, knobs) in VARIANTS.items() if id == name and not knobs), name)


def label(name: str) -> str:
    """As the screen has it where it is an engine as it stands, else the variant's own name."""
    id, knobs = VARIANTS.get(name, (name, {}))
    return name if knobs else ENGINE_LABELS.get(id, name)


def command(name: str, model: str, budget: float | None) -> str:
    """What runs it; "" for a variant that is not known here."""
    if name not in VARIANTS:
        return ""
    id, knobs = VARIANTS[name]
    given = {"model": model, "engines": id, **({} if budget is None else {"budget": f"{budget:g}"}), **knobs}
    return " ".join(["kvtui", *(f"--{option} {value}" for option, value in given.items())])


def over_the_link(name: str) -> bool:
    """Whether its times hang on the link."""
    id, _ = VARIANTS.get(name, (name, {}))
    return id.removesuffix("+") in ("infinigen", "hybrid")


def scores_whole(name: str) -> bool:
    """Whether its prefill holds all scores of a layer at once: memory that grows with the square of the prompt."""
    id, knobs = VARIANTS.get(name, (name, {}))
    default = next(iter(PREFILLS.get(id, ())), "")
    return knobs.get("prefill", default) == "eager"
