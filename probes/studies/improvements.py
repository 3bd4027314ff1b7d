"""The studies that docs/improvements.md is made of, each improvement against what it improves."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from probes.studies.base import Cell, Measure, ModelStudy, Rows, Study

if TYPE_CHECKING:
    from engines.events import LinkInfo

TPOT = Measure("tpot_s", "lower")


def _budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", type=float, default=0.3, help="share of KV entries kept or fetched")


def _new_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-new-tokens", "--new-tokens", dest="new_tokens", type=int, default=24, help="of an answer that is timed"
    )


class Scoring(ModelStudy):
    name = "scoring"
    summary = "Flash and sampled scoring against eager scoring: kept sets, memory, time."
    keys = ("scoring", "tokens")
    measures = (Measure("overlap", "higher"), Measure("prefill_ratio", "lower"))

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        _budget(parser)
        parser.add_argument("--tokens", type=int, default=2048, help="length at which kept sets are compared")
        parser.add_argument("--memory-tokens", type=int, default=8192, help="length at which memory is compared")
        parser.add_argument("--time-tokens", type=int, default=4096, help="length at which time is compared")

    def cells(self) -> list[Cell]:
        return [{"tokens": self.options.tokens}]

    def measure(self, cell: Cell) -> Rows:
        from probes import scoring

        chosen = self.options
        return scoring.study(
            self.model, chosen.budget, chosen.tokens, chosen.memory_tokens, chosen.time_tokens, said=self.said
        )

    def reading(self, results: Rows) -> str:
        said = [
            f"{row['scoring']} scoring keeps {row['overlap']:.1%} of the entries that eager scoring keeps, in "
            f"{row['transient_bytes'] / row['eager_bytes']:.2%} of its memory, and a prompt of {row['time_at']:,} "
            f"tokens takes {row['prefill_ratio']:.2f} times as long as without scoring."
            for row in results
        ]
        return " ".join(said).capitalize()


class Chunks(Study):
    name = "chunks"
    summary = "Device peak of long prefills with bounded chunks."
    keys = ("tokens",)
    measures = (Measure("device_peak_bytes", "lower"), Measure("ttft_s", "lower"))

    def cells(self) -> list[Cell]:
        return [{"tokens": tokens} for tokens in (4096, 16_384, 65_536, 131_072)]

    def measure(self, cell: Cell) -> Rows:
        from probes import chunks

        return [asdict(peak) for peak in chunks.flat((int(cell["tokens"]),))]

    def reading(self, results: Rows) -> str:
        first, last = results[0], results[-1]
        return (
            f"A prompt of {last['tokens']:,} tokens takes {last['device_peak_bytes'] / first['device_peak_bytes']:.2f} "
            f"times the device memory of one of {first['tokens']:,}."
        )


class Prefetch(ModelStudy):
    name = "prefetch"
    summary = "Predictive prefetch: bytes a step, hidden share, TPOT (over a modelled link unless there is a GPU)."
    keys = ("link", "engine", "context")
    measures = (TPOT, Measure("h2d_bytes", "lower"))

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--tokens", type=int, default=4096, help="length of the context")
        _new_tokens(parser)
        parser.add_argument("--links", default="pcie4,nvlink-c2c", help="link profiles, separated by commas")

    def links(self) -> tuple[LinkInfo, ...]:
        return self.links_of(*self.options.links.split(","))

    def cells(self) -> list[Cell]:
        return [{"link": link} for link in dict.fromkeys(self.options.links.split(","))]

    def measure(self, cell: Cell) -> Rows:
        from probes import prefetch

        found = prefetch.measure(self.model, str(cell["link"]), self.options.tokens, self.options.new_tokens)
        return [{**cell, **asdict(row)} for row in found]

    def reading(self, results: Rows) -> str:
        said = []
        for link in dict.fromkeys(row["link"] for row in results):
            by_engine = {row["engine"]: row for row in results if row["link"] == link}
            paged, plain, ahead = (by_engine[name] for name in ("vllm", "infinigen", "infinigen+"))
            said.append(
                f"Over {link}, InfiniGen+ moves {ahead['h2d_bytes'] / plain['h2d_bytes']:.3f} of InfiniGen's bytes a "
                f"step; a token takes {ahead['tpot_s'] / paged['tpot_s']:.2f} times as long as with the paged cache, "
                f"InfiniGen's {plain['tpot_s'] / paged['tpot_s']:.2f} times."
            )
        return " ".join(said)


class Million(Study):
    name = "million"
    summary = "Decode over a million tokens on host and disk."
    keys = ("tokens",)
    measures = (TPOT, Measure("device_peak_bytes", "lower"))

    def cells(self) -> list[Cell]:
        return [{"tokens": 1_000_000}]

    def measure(self, cell: Cell) -> Rows:
        from probes import prefetch

        return [asdict(prefetch.million())]

    def reading(self, results: Rows) -> str:
        (row,) = results
        return (
            f"With {row['tokens']:,} tokens of context, {row['device_peak_bytes'] / 2**20:,.0f} MiB on the device at "
            f"most and {row['disk_bytes'] / 2**20:,.0f} MiB on the disk, a token takes {row['tpot_s']:.2f} s."
        )


class Hybrid(ModelStudy):
    name = "hybrid"
    summary = "A mixed stream under a device cap: each fixed engine, and the one that chooses."
    keys = ("engine",)
    measures = (Measure("accuracy", "higher"), Measure("lost", "lower"), Measure("tok_s", "higher"))

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        _budget(parser)

    def links(self) -> tuple[LinkInfo, ...]:
        return self.links_of(None)

    def cells(self) -> list[Cell]:
        return [{"engine": "all, in turns"}]

    def measure(self, cell: Cell) -> Rows:
        from probes import regret

        rows = regret.measure(self.model, budget=self.options.budget, said=self.said, seed=self.options.seed)
        names = list(dict.fromkeys(name for row in rows for name in row))
        return [{name: row.get(name) for name in names} for row in rows]

    def reading(self, results: Rows) -> str:
        hybrid = results[-1]
        fastest = hybrid["best_tok_s"]
        behind = (
            "No fixed engine lost nothing and was as accurate as a full cache."
            if fastest is None
            else f"The fastest fixed engine that lost nothing and was as accurate as a full cache was {fastest}, "
            f"{abs(hybrid['regret_tok_s']):.2f} tok/s {'faster' if hybrid['regret_tok_s'] > 0 else 'slower'}."
        )
        return (
            f"The hybrid lost {hybrid['lost']} of {hybrid['requests']} requests and answered "
            f"{hybrid['accuracy']:.0%} of the questions for facts, at {hybrid['tok_s']:.2f} tok/s. {behind}"
        )


class Ablation(ModelStudy):
    name = "ablation"
    summary = "Each improvement alone and all together: memory, TTFT, TPOT, retention."
    keys = ("variant",)
    measures = (
        Measure("device_kv_bytes", "lower"),
        Measure("ttft_s", "lower"),
        Measure("tpot_ms", "lower"),
        Measure("retention", "higher", right="right_answers", asked="questions"),
    )

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        _budget(parser)
        parser.add_argument("--tokens", type=int, default=2048, help="length of the prompt that is timed")
        _new_tokens(parser)
        parser.add_argument("--cases", type=int, default=12, help="conversations, of four questions each")
        parser.add_argument("--link", default="pcie4", help="link profile")

    def links(self) -> tuple[LinkInfo, ...]:
        return self.links_of(self.options.link)

    def cells(self) -> list[Cell]:
        return [{"variant": "all, in turns"}]

    def measure(self, cell: Cell) -> Rows:
        from probes import ablation

        return ablation.measure(
            self.model,
            budget=self.options.budget,
            tokens=self.options.tokens,
            new_tokens=self.options.new_tokens,
            cases=self.options.cases,
            link=self.options.link,
            said=self.said,
        )

    def reading(self, results: Rows) -> str:
        named = {row["variant"]: row for row in results}
        paged, h2o, plus = named["paged"], named["h2o"], named["h2o+"]
        return (
            f"H2O holds {h2o['device_kv_bytes'] / paged['device_kv_bytes']:.0%} of the paged cache's KV and answers "
            f"{h2o['retention']:.0%} where that answers {paged['retention']:.0%}; with all its improvements (H2O+) "
            f"it answers {plus['retention']:.0%} with {plus['device_kv_bytes'] / paged['device_kv_bytes']:.0%} of the "
            f"KV and {plus['device_transient_bytes'] / max(1, h2o['device_transient_bytes']):.1%} of H2O's transients."
        )
