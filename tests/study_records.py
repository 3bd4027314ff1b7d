"""Records of studies that nobody ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.events import LinkInfo
from probes.studies.base import Measure
from probes.studies.record import Measured, Record, Sitting, to_json

MACHINE = {"cpu": "a CPU", "cores": 2, "gpus": None, "torch_threads": 1, "load_1m": 0.1}
PCIE = LinkInfo(profile="pcie4", measured=False, bytes_per_s=1e9, latency_s=1e-5, description="A100:PCIe4")
TIMES = (
    Measure("ttft_s", "lower"),
    Measure("tpot_s", "lower"),
    Measure("tok_s", "higher"),
    Measure("device_peak_bytes", "lower"),
)
COUNTS = (Measure("right", "higher", right="right_answers", asked="questions"),)


def of(
    study: str,
    rows: list[dict[str, Any]],
    *,
    keys: tuple[str, ...],
    measures: tuple[Measure, ...],
    options: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
    links: tuple[LinkInfo, ...] = (),
    ended: str = "2026-12-01T10:00:00+00:00",
    versions: dict[str, str] | None = None,
    seed: int = 0,
) -> Record:
    sitting = Sitting(ended, ended, 1, versions or {"kvtui": "1"}, {**MACHINE, **(machine or {})}, links)
    return Record(
        study=study,
        options={"model": "smollm2-135m", **(options or {})},
        seed=seed,
        keys=keys,
        measures=measures,
        sittings=(sitting,),
        link_modelled=any(not link.measured for link in links) if links else None,
        measured=(Measured({}, rows),),
        results=[],
        reading="",
    )


def speed(rows: list[dict[str, Any]], **about: Any) -> Record:
    """Of the study of performance."""
    return of("performance", rows, keys=("context", "batch", "engine", "budget"), measures=TIMES, **about)


def speed_row(engine: str, context: int, tpot_s: float | None, peak_bytes: int, **more: Any) -> dict[str, Any]:
    budget = None if engine == "vllm" else 0.3
    row = {"context": context, "batch": 1, "engine": engine, "budget": budget, "outcome": "ok"}
    return {**row, "tpot_s": tpot_s, "device_peak_bytes": peak_bytes, **more}


def answers(rows: list[tuple[str, int, int, int]], **about: Any) -> Record:
    """Of the study of retention: engine, context, right, asked."""
    found = [
        {"layout": "first", "engine": e, "tokens": n, "right_answers": r, "questions": q, "right": r / q}
        for e, n, r, q in rows
    ]
    options = {"budget": 0.3, **about.pop("options", {})}
    return of("retention", found, keys=("layout", "engine", "tokens"), measures=COUNTS, options=options, **about)


def write(path: Path, record: Record) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_json(record))
    return path
