"""What a study is: cells that are measured one by one, rows that they give, and what is made of all rows at the end.

The runner does the rest for every study alike: progress, files, going on after an interruption, the record.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from engines.events import LinkInfo
    from engines.model import Model

Scalar = str | int | float | bool | None
Cell = dict[str, Any]  # of scalars, as in a record's file
Row = dict[str, Any]
Rows = list[Row]


def _silent(line: str) -> None:
    pass


@dataclass(frozen=True)
class Measure:
    """A column that `kvtui study compare` holds against another run's. `better` says which way is better. A share of
    counted things names the columns with their counts, `right` of `asked`: those are tested as counts."""

    column: str
    better: Literal["lower", "higher"]
    right: str = ""
    asked: str = ""


@dataclass(frozen=True)
class Point:
    """`x` is a number, or a word where the chart has bars. `low` and `high` are the ends of its spread."""

    x: float | str
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Chart:
    """Lines over numbers, or groups of bars over words. `name` is its file's, without the ending; labels hold units."""

    name: str
    title: str
    x: str
    y: str
    series: dict[str, list[Point]]
    log_x: bool = False
    log_y: bool = False


class Study(ABC):
    """`keys` are the columns that say what was measured, `measures` those that say what came of it; repeats are rows of
    the same keys. `said` takes a line about what is under way."""

    name: ClassVar[str]
    summary: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[tuple[Measure, ...]] = ()

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Its own options; those about files are the command's."""
        parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn at random")

    def __init__(self, options: argparse.Namespace) -> None:
        """Looks at the options, and loads nothing. Raises BadRequest."""
        self.options = options
        self.said: Callable[[str], None] = _silent

    def links(self) -> tuple[LinkInfo, ...]:
        """The links that its times depend on, each once."""
        return ()

    @abstractmethod
    def cells(self) -> list[Cell]:
        """What there is to measure, in that order, each once. The same options give the same cells."""

    @abstractmethod
    def measure(self, cell: Cell) -> Rows:
        """The rows that a cell gives. What an engine could not do is a row too; KvtuiError ends the study."""

    def results(self, rows: Rows) -> Rows:
        """What is reported of all cells' rows."""
        return rows

    def shown(self, results: Rows) -> Rows:
        """The results as printed; all columns are in the files."""
        return results

    @abstractmethod
    def reading(self, results: Rows) -> str:
        """One paragraph in plain words."""

    def charts(self, results: Rows) -> list[Chart]:
        return []


class ModelStudy(Study):
    """A study on one model, which is loaded when the first cell is measured."""

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--model", default="smollm2-135m", help="as of kvtui --model")

    @cached_property
    def model(self) -> Model:
        import engines

        return engines.load_model(self.options.model)

    def links_of(self, *profiles: str | None) -> tuple[LinkInfo, ...]:
        """The model's device's link by each profile; None is the default: the real one where there is a GPU."""
        from engines.clock import Clock
        from engines.link import open_link

        device = self.model.device
        return tuple(open_link(profile, device, Clock(device)).info for profile in profiles)
