"""`kvtui study advise`: which engine, budget and improvements to take, out of what was measured, within limits.

Exit code: 0 when something fits, 1 when nothing does, 2 for bad input.
"""

from __future__ import annotations

import argparse
import math
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from engines.errors import BadRequest
from probes.advice import ORDERS, Limits, judge
from probes.studies import evidence, lists, record
from probes.studies.advised import Report
from probes.studies.parser import Help, Parser
from probes.studies.record import Record
from probes.studies.table import one_line

FOLDER = Path("kvtui-studies")
SHORT = {"new_tokens": 16, "cases": 4}
SHORT_CONTEXTS = (512, 1024)  # both are measured where a longer one is asked for: two make a line


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    limits, context = _limits(options), _context(options)
    records, notes = _records(options)
    if "measure" in options or not records:
        if "results" in options and "measure" not in options:
            raise BadRequest(f"none of the records is of {one_line(options.model)}, with times or answers")
        if "measure" not in options:
            print(
                f"kvtui: {FOLDER} holds no records of {one_line(options.model)}: measuring a short one of each engine "
                "first; on a CPU a quarter of an hour or more (ctrl+c leaves off)",
                file=sys.stderr,
            )
        records, notes = _measured(options, context), []
    found = evidence.collect(records)
    asked = context or evidence.longest_context(found)
    if asked is None:
        raise BadRequest("none of the records has times: kvtui study performance measures them")
    candidates = evidence.candidates(found, asked, cast(int | None, limits.device_bytes))
    advice = judge(candidates, limits, options.prefer)
    if any(one.link_modelled for one in records if one.study in evidence.TIMED):
        notes.insert(0, "Times over the link are modelled, not measured.")
    keys = {candidate.name: key for candidate, key in zip(candidates, found, strict=True)}
    report = Report(options.model, asked, limits, options.prefer, advice, tuple(candidates), keys, tuple(notes))
    print(report.as_json() if "json" in options else report.as_text())
    return 0 if advice.best is not None else 1


def _parser() -> argparse.ArgumentParser:
    unless: dict[str, Any] = {"default": argparse.SUPPRESS}
    parser = Parser(
        prog="kvtui study advise",
        description="Which engine, budget and improvements to take, out of what was measured, within limits.",
        epilog="exit code: 0 when something fits, 1 when nothing does, 2 for bad input",
        formatter_class=Help,
    )
    parser.add_argument("--model", default="smollm2-135m", help="whose records count")
    parser.add_argument("--results", nargs="+", type=Path, metavar="PATH", **unless, help=f"records; else {FOLDER}'s")
    parser.add_argument(
        "--measure", action="store_true", **unless, help="measure short records, and judge by these alone"
    )
    parser.add_argument("--budgets", default="0.3", help="of what is measured first, separated by commas")
    parser.add_argument("--context", metavar="TOKENS", **unless, help="such as 8k; else the longest that was timed")
    parser.add_argument("--device-memory", metavar="SIZE", **unless, help="the most, weights included, such as 2GiB")
    parser.add_argument(
        "--min-accuracy", type=float, default=0.9, help="the least share of what the full cache answers rightly"
    )
    parser.add_argument("--max-tpot", type=float, metavar="S", **unless, help="the most seconds a token")
    parser.add_argument("--max-ttft", type=float, metavar="S", **unless, help="the most seconds to the first token")
    parser.add_argument("--prefer", choices=ORDERS, default="speed", help="what decides among those that fit")
    parser.add_argument("--json", action="store_true", **unless, help="print one JSON object")
    return parser


def _limits(options: argparse.Namespace) -> Limits:
    """Raises BadRequest."""
    size_bytes = lists.size("--device-memory", getattr(options, "device_memory", None))
    if not 0 <= options.min_accuracy <= 1:
        raise BadRequest(f"--min-accuracy is a share within 0 .. 1, not {options.min_accuracy:g}")
    seconds = {name: getattr(options, f"max_{name}", None) for name in ("tpot", "ttft")}
    for name, most in seconds.items():
        if most is not None and not 0 < most < math.inf:
            raise BadRequest(f"--max-{name} is a number of seconds above 0, not {most:g}")
    return Limits(size_bytes, options.min_accuracy or None, seconds["tpot"], seconds["ttft"])


def _context(options: argparse.Namespace) -> int | None:
    """Raises BadRequest."""
    if "context" not in options:
        return None
    counts = lists.counts("--context", options.context)
    if len(counts) > 1:
        raise BadRequest(f"--context is one number of tokens, not {options.context!r}")
    return counts[0]


def _records(options: argparse.Namespace) -> tuple[list[Record], list[str]]:
    """Those of this model that tell something, and what a person should know of the others."""
    named: list[Path] = [path for given in getattr(options, "results", ()) for path in _within(given)]
    records, notes = [], []
    for path in named or ([] if "results" in options else _within(FOLDER, missing_ok=True)):
        try:
            loaded = record.load(path)
        except BadRequest as fault:
            if path in getattr(options, "results", ()):
                raise
            notes.append(f"Left out: {one_line(str(fault))}.")
            continue
        if loaded.study in evidence.READ and loaded.options.get("model") == options.model:
            records.append(loaded)
    return records, notes


def _within(path: Path, *, missing_ok: bool = False) -> list[Path]:
    """A record, a study's folder, or all records of the studies in a folder. Raises BadRequest where there is none."""
    if not path.is_dir() or (path / "record.json").exists():
        return [] if missing_ok and not path.exists() else [path]
    inside = sorted(path.glob("*/record.json"))
    if not inside and not missing_ok:
        raise BadRequest(f"{path} holds no study's record")
    return inside


def _measured(options: argparse.Namespace, context: int | None) -> list[Record]:
    """Short records of every engine and improvement, kept like those of any study."""
    from probes.studies.folder import Begun, Folder
    from probes.studies.improvements import Ablation
    from probes.studies.run import run

    budgets = lists.numbers("--budgets", options.budgets, most=1)
    contexts = [context] if context is not None and context <= max(SHORT_CONTEXTS) else list(SHORT_CONTEXTS)
    records = []
    for tokens in contexts:
        for budget in budgets:
            parser = argparse.ArgumentParser()
            Ablation.add_options(parser)
            own = vars(parser.parse_args([])) | SHORT | {"model": options.model, "tokens": tokens, "budget": budget}
            seed = own.pop("seed")
            path = FOLDER / f"ablation-{tokens}-{budget:g}-{datetime.now():%Y%m%d-%H%M%S}"
            study = Ablation(argparse.Namespace(**own, seed=seed))
            folder = Folder.create(path, Begun(Ablation.name, own, seed))
            try:
                records.append(run(study, folder))
            except KeyboardInterrupt:
                raise BadRequest("interrupted before there was anything to judge") from None
    return records
