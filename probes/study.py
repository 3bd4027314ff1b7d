"""The studies that docs/improvements.md is made of: `kvtui study NAME [--json]`.

Each prints one table. What a modelled link gave says so. Sizes can be made smaller for a quick look; the figures in the
documents are those of the defaults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from engines.errors import BadRequest, KvtuiError
from engines.knobs import ANCHORS

if TYPE_CHECKING:
    from probes.retention import Retention

Rows = list[dict[str, Any]]


def scoring(options: argparse.Namespace) -> Rows:
    """Flash and sampled scoring against eager scoring: kept sets, memory, time."""
    from probes import scoring

    return scoring.study(_model(options), options.budget, options.tokens or 2048, 8192, 4096)


def chunks(options: argparse.Namespace) -> Rows:
    """Device peak of long prefills with bounded chunks."""
    from probes import chunks

    return [asdict(peak) for peak in chunks.flat((4096, 16_384, 65_536, 131_072))]


def retention(options: argparse.Namespace) -> Rows:
    """Facts told early, asked for late: full cache, H2O, its improvements."""
    import engines
    from probes import retention

    model = _model(options)
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        "paged": ("vllm", {}),
        "h2o": ("h2o", {"prefill": "flash"}),
        "h2o chunked": ("h2o", {"prefill": "chunked"}),
        "h2o anchors": ("h2o", {"prefill": "flash", "anchors": ANCHORS}),
        "h2o+": ("h2o+", {}),
        "infinigen": ("infinigen", {}),
        "infinigen+": ("infinigen+", {}),
    }
    wanted = options.engines.split(",") if options.engines else list(variants)
    layouts = options.layouts.split(",")
    if not set(wanted) <= set(variants) or not set(layouts) <= set(retention.LAYOUTS):
        raise BadRequest(f"known are the engines {', '.join(variants)} and the layouts {', '.join(retention.LAYOUTS)}")
    plan = retention.LENGTHS if options.tokens is None else ((options.tokens, options.cases),)
    rows = []
    for layout in layouts:
        for name in wanted:
            engine_id, knobs = variants[name]
            engine = engines.create_engine(engine_id, model, budget=options.budget, **knobs)
            found = []
            for tokens, cases in plan:
                found.append(retention.measure(engine, layout, tokens, cases))
                rows.append(_retained(layout, name, found[-1], model.kv_bytes_per_token))
                print(f"{layout}, {tokens}: {name} {found[-1].share:.2f}", file=sys.stderr, flush=True)
            if len(plan) > 1:
                rows.append(
                    {**_retained(layout, name, retention.together(found), model.kv_bytes_per_token), "tokens": "all"}
                )
    return rows


def _retained(layout: str, name: str, found: Retention, token_bytes: int) -> dict[str, Any]:
    low, high = found.interval
    return {
        "layout": layout,
        "engine": name,
        "tokens": round(found.tokens / found.cases),
        "questions": found.asked,
        "right": round(found.share, 3),
        "low_95": round(low, 3),
        "high_95": round(high, 3),
        "device_kv_share": round(found.device_kv_bytes / found.tokens / token_bytes, 3),
        "peak_kv_share": round(found.peak_share, 3),
    }


def prefetch(options: argparse.Namespace) -> Rows:
    """Predictive prefetch: bytes a step, hidden share, TPOT (over a modelled link unless there is a GPU)."""
    from probes import prefetch

    rows = []
    for link in options.links.split(","):
        found = prefetch.measure(_model(options), link, options.tokens or 4096, options.new_tokens)
        rows += [{"link": link, **asdict(row)} for row in found]
    return rows


def million(options: argparse.Namespace) -> Rows:
    """Decode over a million tokens on host and disk."""
    from probes import prefetch

    return [asdict(prefetch.million())]


def hybrid(options: argparse.Namespace) -> Rows:
    """A mixed stream under a device cap: each fixed engine, and the one that chooses."""
    from probes import regret

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    rows = regret.measure(_model(options), budget=options.budget, said=say)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def ablation(options: argparse.Namespace) -> Rows:
    """Each improvement alone and all together: memory, TTFT, TPOT, retention."""
    from probes import ablation

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    return ablation.measure(
        _model(options),
        budget=options.budget,
        tokens=options.tokens or 2048,
        new_tokens=options.new_tokens,
        cases=min(options.cases, 12),
        link=options.links.split(",")[0],
        said=say,
    )


STUDIES: dict[str, Callable[[argparse.Namespace], Rows]] = {
    study.__name__: study for study in (scoring, chunks, retention, prefetch, million, hybrid, ablation)
}


def _model(options: argparse.Namespace) -> Any:
    import engines

    return engines.load_model(options.model)


def table(rows: Rows) -> str:
    """Aligned columns, a header from the keys."""
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind the options, and the studies a line each."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"kvtui: {message} ({self.prog} --help tells more)\n")


def main(arguments: list[str] | None = None) -> int:
    known = "".join(f"  {name:<10} {study.__doc__}\n" for name, study in STUDIES.items())
    parser = _Parser(
        prog="kvtui study",
        description="Rerun a study of docs/improvements.md.",
        epilog=f"studies:\n{known}",
        formatter_class=_Help,
    )
    parser.add_argument("name", choices=STUDIES, metavar="NAME", help="one of those below")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    parser.add_argument("--model", default="smollm2-135m", help="as of kvtui --model")
    parser.add_argument("--budget", type=float, default=0.3, help="share of KV entries kept or fetched")
    parser.add_argument("--tokens", type=int, help="length of the context; each study has its own")
    parser.add_argument(
        "--max-new-tokens", "--new-tokens", dest="new_tokens", type=int, default=24, help="of an answer that is timed"
    )
    parser.add_argument(
        "--cases", type=int, default=50, help="retention: conversations of --tokens, of four questions each"
    )
    parser.add_argument("--layouts", default="first,middle,system", help="retention: where the facts stand")
    parser.add_argument("--engines", default="", help="retention: which, separated by commas")
    parser.add_argument("--links", default="pcie4,nvlink-c2c", help="prefetch: link profiles, separated by commas")
    options = parser.parse_args(arguments)
    try:
        rows = STUDIES[options.name](options)
    except KvtuiError as fault:
        print(f"kvtui: {fault}", file=sys.stderr)
        return 2
    print(json.dumps(rows) if options.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
