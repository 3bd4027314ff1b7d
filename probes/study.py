"""`kvtui study NAME`: the studies, each measured anew by one command."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.errors import BadRequest, KvtuiError
from probes.studies.base import Study
from probes.studies.parser import Help, Parser
from probes.studies.table import table

STUDIES = {
    "performance": "performance:Performance",
    "retention": "retention:RetentionStudy",
    "accuracy": "accuracy:Accuracy",
    "plan": "plan:Plan",
    "scoring": "improvements:Scoring",
    "chunks": "improvements:Chunks",
    "prefetch": "improvements:Prefetch",
    "million": "improvements:Million",
    "hybrid": "improvements:Hybrid",
    "ablation": "improvements:Ablation",
}
# What is made of records, and how it says so in one line; each is a module with a `main`.
TOOLS = {
    "compare": "Two records of the same study: what got better, what worse, and what is noise.",
    "advise": "Which engine, budget and improvements to take, out of what was measured, within limits.",
}
INTERRUPTED = 130


def find(name: str) -> type[Study]:
    module, _, kind = STUDIES[name].partition(":")
    return getattr(import_module(f"probes.studies.{module}"), kind)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        parser = _overview()
        chosen = parser.parse_args(arguments[:1])
        if chosen.name in TOOLS:
            return import_module(f"probes.studies.{chosen.name}").main(arguments[1:])
        return _study(chosen.name, arguments[1:])
    except KvtuiError as fault:
        print(f"kvtui: {fault}", file=sys.stderr)
        return 2


def _overview() -> argparse.ArgumentParser:
    known = "".join(f"  {name:<12} {find(name).summary}\n" for name in STUDIES)
    tools = "".join(f"  {name:<12} {summary}\n" for name, summary in TOOLS.items())
    parser = Parser(
        prog="kvtui study",
        usage="kvtui study NAME [OPTIONS]   (kvtui study NAME --help lists them)",
        description="Measure with a study: it prints a table, charts and one paragraph, and keeps them in a folder.",
        epilog=f"studies:\n{known}\nout of what was measured:\n{tools}",
        formatter_class=Help,
    )
    parser.add_argument("name", choices=[*STUDIES, *TOOLS], metavar="NAME", help="one of those below")
    return parser


def _parser(kind: type[Study]) -> argparse.ArgumentParser:
    parser = Parser(prog=f"kvtui study {kind.name}", description=kind.summary, formatter_class=Help)
    kind.add_options(parser)
    files = parser.add_argument_group("results")
    unless: dict[str, Any] = {"default": argparse.SUPPRESS}
    files.add_argument("--json", action="store_true", **unless, help="print the record, no table and no charts")
    files.add_argument(
        "--out", type=Path, metavar="DIR", **unless, help="their folder, else a new one in kvtui-studies"
    )
    files.add_argument("--resume", type=Path, metavar="DIR", **unless, help="go on with a study that was interrupted")
    return parser


def _study(name: str, arguments: list[str]) -> int:
    kind = find(name)
    options = _parser(kind).parse_args(arguments)
    from probes.studies.folder import Begun, Folder

    if "resume" in options:
        folder = Folder.open(options.resume)
        _check_same(kind, folder.begun.study, arguments)
        study = kind(argparse.Namespace(**folder.begun.options, seed=folder.begun.seed))
    else:
        study = kind(options)
        folder = Folder.create(
            getattr(options, "out", None) or _new_folder(name), Begun(name, _own(options), options.seed)
        )
    return _measure(study, folder, as_json="json" in options)


def _own(options: argparse.Namespace) -> dict[str, Any]:
    """The study's own options, as JSON has them."""
    ours = ("seed", "json", "out", "resume")
    known = {name: value for name, value in vars(options).items() if name not in ours}
    return {name: str(value) if isinstance(value, Path) else value for name, value in known.items()}


def _check_same(kind: type[Study], begun: str, arguments: list[str]) -> None:
    """A resumed study has the options that it began with: others would make one table of two things."""
    if begun != kind.name:
        raise BadRequest(f"that is the folder of the study {begun}, not of {kind.name}")
    parser = _parser(kind)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    given = sorted(set(vars(parser.parse_args(arguments))) - {"resume", "json"})
    if given:
        option = given[0].replace("_", "-")
        raise BadRequest(f"--resume goes on with the options that the study began with; leave --{option} out")


def _new_folder(name: str) -> Path:
    return Path("kvtui-studies") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _measure(study: Study, folder: Any, *, as_json: bool) -> int:
    from probes.studies.record import to_json
    from probes.studies.run import run

    try:
        record = run(study, folder)
    except KeyboardInterrupt:
        print(
            f"\nkvtui: interrupted; what was measured is kept: kvtui study {study.name} --resume {folder.path}",
            file=sys.stderr,
        )
        return INTERRUPTED
    if as_json:
        print(to_json(record).decode(), end="")
        return 0
    print(table(study.shown(record.results)))
    from probes.studies.charts import to_text

    terminal = sys.stdout.isatty()
    for chart in study.charts(record.results):
        print(f"\n{to_text(chart, min(100, shutil.get_terminal_size().columns), colour=terminal)}")
    print(f"\n{record.reading}\n\nkept in {folder.path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
