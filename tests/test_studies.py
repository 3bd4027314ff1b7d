"""What all studies have in common: cells, going on after an interruption, the record, charts, refusals."""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from engines.errors import BadRequest, KvtuiError
from engines.events import LinkInfo
from probes import study
from probes.studies import base, charts, record
from probes.studies.folder import Begun, Folder
from probes.studies.run import run


class Squares(base.Study):
    name = "squares"
    summary = "Squares of a few numbers."
    keys = ("number",)
    measures = (base.Measure("square", "higher"),)
    calls: list[int]
    stop_at: int | None = None

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--numbers", type=int, default=4, help="how many")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        if options.numbers < 1:
            raise BadRequest("--numbers is 1 or more")
        self.calls = []

    def links(self) -> tuple[LinkInfo, ...]:
        return (LinkInfo(profile="pcie4", measured=False, bytes_per_s=1e9, latency_s=1e-5, description="A100:PCIe4"),)

    def cells(self) -> list[base.Cell]:
        return [{"number": number} for number in range(self.options.numbers)]

    def measure(self, cell: base.Cell) -> base.Rows:
        if cell["number"] == Squares.stop_at:
            raise KeyboardInterrupt
        self.calls.append(cell["number"])
        return [{**cell, "repeat": repeat, "square": cell["number"] ** 2} for repeat in range(2)]

    def results(self, rows: base.Rows) -> base.Rows:
        return [row for row in rows if row["repeat"] == 0]

    def reading(self, results: base.Rows) -> str:
        return f"The largest square is {max(row['square'] for row in results)}."

    def charts(self, results: base.Rows) -> list[base.Chart]:
        points = [base.Point(row["number"], row["square"], row["square"] - 0.5, row["square"] + 0.5) for row in results]
        return [base.Chart("squares", "Squares", "number", "square", {"a": points, "b": points[:2]})]


@pytest.fixture(autouse=True)
def squares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(study, "find", lambda name: Squares)
    monkeypatch.setitem(study.STUDIES, "squares", "")
    monkeypatch.setattr(Squares, "stop_at", None)
    monkeypatch.chdir(tmp_path)


def test_a_study_leaves_its_record_a_csv_charts_and_a_reading(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["squares", "--out", "there", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    assert "The largest square is 9." in out
    assert "kept in there" in out
    kept = record.load(Path("there"))
    assert (kept.study, kept.seed, kept.options["numbers"]) == ("squares", 7, 4)
    assert kept.link_modelled is True
    assert [row["square"] for row in kept.results] == [0, 1, 4, 9]
    assert len(kept.rows) == 8
    assert kept.sittings[0].versions["python"].startswith("3.")
    assert kept.sittings[0].machine["cores"] >= 1
    with Path("there/results.csv").open() as file:
        assert [row["square"] for row in csv.DictReader(file)] == ["0", "1", "4", "9"]
    assert ElementTree.parse("there/squares.svg").getroot().tag.endswith("svg")
    assert kept.reading in Path("there/reading.txt").read_text()


def test_an_interrupted_study_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Squares, "stop_at", 2)
    assert study.main(["squares", "--out", "there"]) == study.INTERRUPTED
    assert "kvtui study squares --resume there" in capsys.readouterr().err
    monkeypatch.setattr(Squares, "stop_at", None)
    assert study.main(["squares", "--resume", "there", "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)
    assert [row["square"] for row in kept["results"]] == [0, 1, 4, 9]
    assert [sitting["cells"] for sitting in kept["sittings"]] == [2, 2]
    assert "2 sittings" in kept["reading"]


def test_what_is_measured_is_not_measured_again_and_a_torn_line_is() -> None:
    options = argparse.Namespace(numbers=4, seed=0)
    folder = Folder.create(Path("there"), Begun("squares", {"numbers": 4}, 0))
    run(Squares(options), folder)
    rows = Path("there/rows.jsonl")
    rows.write_bytes(rows.read_bytes()[:-9])
    again = Squares(options)
    kept = run(again, Folder.open(Path("there")))
    assert again.calls == [3]
    assert [row["square"] for row in kept.results] == [0, 1, 4, 9]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["squares", "--numbers", "0"], "--numbers is 1 or more"),
        (["squares", "--resume", "nowhere"], "cannot use the folder nowhere: No such file"),
        (["squares", "--resume", "full"], "holds no study"),
        (["squares", "--out", "full"], "full is not empty"),
        (["squares", "--out", "full/study.json"], "cannot use the folder"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/study.json").write_text("[]")
    assert study.main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_resumed_study_keeps_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    study.main(["squares", "--out", "there"])
    assert study.main(["squares", "--resume", "there", "--numbers", "4"]) == 2
    assert "leave --numbers out" in capsys.readouterr().err
    Folder.create(Path("other"), Begun("cubes", {"numbers": 4}, 0))
    assert study.main(["squares", "--resume", "other"]) == 2
    assert "folder of the study cubes, not of squares" in capsys.readouterr().err


def test_two_processes_do_not_measure_into_one_folder(capsys: pytest.CaptureFixture[str]) -> None:
    study.main(["squares", "--out", "there"])
    with Path("there/study.json").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert study.main(["squares", "--resume", "there"]) == 2
    assert "another process is measuring into there" in capsys.readouterr().err


def test_a_record_that_is_none_is_refused() -> None:
    for content in (b"", b"[]", b'{"kvtui_study": 1}', b"\xff\xfe", b"[" * 100_000):
        Path("record.json").write_bytes(content)
        with pytest.raises(BadRequest, match=r"record\.json is no study's record"):
            record.load(Path("record.json"))
    with pytest.raises(BadRequest, match="cannot read"):
        record.load(Path("missing.json"))


def test_a_record_of_another_format_is_refused() -> None:
    study.main(["squares", "--out", "there"])
    path = Path("there/record.json")
    path.write_text(path.read_text().replace('"kvtui_study": 1', '"kvtui_study": 2'))
    with pytest.raises(BadRequest, match="of format 2"):
        record.load(path)


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder.create(Path("there"), Begun("squares", {"numbers": 4}, 0))
    Path("there/rows.jsonl").symlink_to("/dev/full")
    with pytest.raises(KvtuiError, match="No space left"):
        run(Squares(argparse.Namespace(numbers=4, seed=0)), folder)


def test_the_same_chart_is_the_same_file() -> None:
    points = [base.Point(n, 1.0 / n) for n in (1024, 2048, 4096)]
    chart = base.Chart(
        "a", "TPOT <&>", "context, tokens", "s", {"paged": points, "h2o": points}, log_x=True, log_y=True
    )
    assert charts.to_svg(chart) == charts.to_svg(chart)
    assert "TPOT &lt;&amp;&gt;" in charts.to_svg(chart)
    text = charts.to_text(chart, 70, colour=False)
    assert "paged" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 70


def test_a_chart_of_words_has_bars() -> None:
    chart = base.Chart("a", "T", "engine", "share", {"r = 0.3": [base.Point("paged", 1.0), base.Point("h2o", 0.3)]})
    assert "paged" in charts.to_svg(chart)
    assert "h2o" in charts.to_text(chart, 60, colour=False)


def test_empty_columns_are_empty_fields() -> None:
    assert record.to_csv([{"a": 1, "b": None}, {"a": 2, "c": 0.5}]) == "a,b,c\n1,,\n2,,0.5\n"
