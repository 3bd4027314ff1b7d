"""Facts told early and asked for late: what each cache still knows, by distance, position, budget and engine."""

from __future__ import annotations

import argparse
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.errors import BadRequest
from engines.knobs import ANCHORS
from probes import prose
from probes.studies import retained
from probes.studies.base import Cell, Chart, Measure, ModelStudy, Rows

if TYPE_CHECKING:
    from probes.conversations import Case, Of

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    retained.FULL: ("vllm", {}),
    "h2o": ("h2o", {"prefill": "flash"}),
    "h2o chunked": ("h2o", {"prefill": "chunked"}),
    "h2o anchors": ("h2o", {"prefill": "flash", "anchors": ANCHORS}),
    "h2o+": ("h2o+", {}),
    "infinigen": ("infinigen", {}),
    "infinigen+": ("infinigen+", {}),
}
CASES = 12
BLOCK_TOKENS = 4000  # of context in a cell, which is what an interruption costs at most


class RetentionStudy(ModelStudy):
    name = "retention"
    summary = "Facts told early, asked for late: full cache, H2O, InfiniGen, and the improvements."
    keys = ("layout", "aim", "budget", "engine")
    measures = (Measure("right", "higher", right="right_answers", asked="questions"),)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--distances", help="tokens between the last fact and its question, as in 500,1000,2000, or else:"
        )
        parser.add_argument("--tokens", help="of whole contexts, as in 1000,2000; neither: those of the docs' table")
        parser.add_argument("--cases", type=int, help=f"conversations of each length, of four questions ({CASES})")
        parser.add_argument("--turns", type=int, default=2, help="later turns that the prose comes in")
        parser.add_argument(
            "--layouts", default="first,middle,system", help="where the facts stand; also depths from 0 to 0.9"
        )
        parser.add_argument("--budgets", default="0.3", help="shares of KV entries kept or fetched")
        parser.add_argument("--engines", default=",".join(VARIANTS), help="separated by commas")
        parser.add_argument("--prose", type=Path, metavar="FILE", help="a text of yours between facts and questions")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        from probes.conversations import depth_of

        self.layouts = _parts(options.layouts)
        for layout in self.layouts or [""]:
            depth_of(layout)
        self.engines = _parts(options.engines)
        if not self.engines or not set(self.engines) <= set(VARIANTS):
            raise BadRequest(f"known are the engines {', '.join(VARIANTS)}")
        self.budgets = [_number("--budgets", part, float) for part in _parts(options.budgets)]
        if not self.budgets or not all(0 < budget <= 1 for budget in self.budgets):
            raise BadRequest("--budgets are shares above 0 and up to 1")
        if options.turns < 1 or (options.cases is not None and options.cases < 1):
            raise BadRequest("--turns and --cases are 1 or more")
        self.of, self.lengths = self._lengths()
        self.prose = self._prose()
        self._made: dict[tuple[str, int, int], Case] = {}

    def _lengths(self) -> tuple[Of, list[tuple[int, int]]]:
        """What is aimed at, and (tokens, cases) of each length."""
        from probes.retention import LENGTHS

        options = self.options
        if options.distances is not None and options.tokens is not None:
            raise BadRequest("--distances and --tokens are two ways to say how long: give one")
        if options.distances is None and options.tokens is None:
            return "context", [(tokens, options.cases or cases) for tokens, cases in LENGTHS]
        name = "--tokens" if options.distances is None else "--distances"
        lengths = [_number(name, part, int) for part in _parts(options.distances or options.tokens or "")]
        if not lengths or min(lengths) < 1:
            raise BadRequest(f"{name} are 1 or more")
        return "context" if name == "--tokens" else "distance", [(each, options.cases or CASES) for each in lengths]

    def _prose(self) -> prose.Prose:
        """Its checksum goes into the record. Raises BadRequest when the study was begun with another."""
        path = self.options.prose
        found = prose.shipped() if path is None else prose.read(Path(path))
        begun = getattr(self.options, "prose_sha256", found.sha256)
        if begun != found.sha256:
            raise BadRequest(f"{found.name} is not the prose that the study began with: its SHA-256 was {begun[:12]}…")
        longest = max(tokens for tokens, _ in self.lengths)
        if sum(len(passage.encode()) for passage in found.passages) < longest:  # a token is a byte at least
            raise BadRequest(f"{found.name} is too short for {longest:,} tokens; --prose FILE takes a longer text")
        self.options.prose_sha256 = found.sha256
        return found

    def cells(self) -> list[Cell]:
        cells: list[Cell] = []
        for layout in self.layouts:
            for tokens, cases in self.lengths:
                block = max(1, BLOCK_TOKENS // tokens)
                for first in range(0, cases, block):
                    place = {
                        "layout": layout,
                        self.of: tokens,
                        "first_case": first,
                        "cases": min(block, cases - first),
                    }
                    cells += [place | engine for engine in self._engines()]
        return cells

    def _engines(self) -> list[Cell]:
        """The full cache knows no budget, and is measured once."""
        full = [{"engine": retained.FULL}] if retained.FULL in self.engines else []
        others = [name for name in self.engines if name != retained.FULL]
        return [*full, *({"budget": budget, "engine": name} for budget in self.budgets for name in others)]

    def measure(self, cell: Cell) -> Rows:
        import engines
        from probes import retention

        _ = self._possible
        name = str(cell["engine"])
        engine_id, knobs = VARIANTS[name]
        if "budget" in cell:
            knobs = knobs | {"budget": cell["budget"]}
        engine = engines.create_engine(engine_id, self.model, **knobs)
        rows = []
        for number in range(cell["first_case"], cell["first_case"] + cell["cases"]):
            case = self._case(str(cell["layout"]), cell[self.of], number)
            found = retention.ask(engine, case)
            rows.append(
                {
                    "layout": cell["layout"],
                    "aim": f"{self.of} {cell[self.of]}",
                    "budget": cell.get("budget"),
                    "engine": name,
                    "case": number,
                    "questions": len(found.right),
                    "right_answers": sum(found.right),
                    "answers": "".join(str(int(right)) for right in found.right),
                    "distance": case.distance,
                    "context": found.tokens,
                    "device_kv_bytes": found.device_kv_bytes,
                    "full_kv_bytes": found.tokens * self.model.kv_bytes_per_token,
                    "peak_kv_share": found.peak_share,
                    "lost": found.lost,
                }
            )
            self.said(f"{name}, case {number}: {sum(found.right)} of {len(found.right)}")
        return rows

    @cached_property
    def _possible(self) -> bool:
        """Whatever cannot be made is refused before hours are spent on the rest."""
        longest, shortest = max(self.lengths), min(self.lengths)
        for (tokens, cases), layout in product((longest, shortest), self.layouts):
            for number in range(cases):
                try:
                    self._case(layout, tokens, number)
                except prose.OutOfProse as fault:
                    raise BadRequest(
                        f"layout {layout}, {self.of} {tokens:,}: {fault}; --prose FILE takes a longer text"
                    ) from None
        return True

    def _case(self, layout: str, tokens: int, number: int) -> Case:
        """Made once for all engines."""
        from probes.conversations import make_case

        place = layout, tokens, number
        if place not in self._made:
            seed = self.options.seed + number
            turns = self.options.turns
            self._made[place] = make_case(
                self.model, layout, tokens, seed, of=self.of, turns=turns, prose=self.prose.passages
            )
        return self._made[place]

    def results(self, rows: Rows) -> Rows:
        return retained.results(rows)

    def reading(self, results: Rows) -> str:
        return f"{retained.reading(results)} The prose was {self.prose.name}."

    def charts(self, results: Rows) -> list[Chart]:
        return retained.charts(results)


def _parts(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _number(option: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise BadRequest(f"{option} takes numbers separated by commas, not {text}") from None
