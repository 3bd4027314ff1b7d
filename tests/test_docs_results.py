"""Numbers in the pages that have a template are those of their results' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.render import HERE, render, shown, table, templates
from probes.studies.record import load


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.stem)
def test_a_page_says_what_its_results_say(template: Path) -> None:
    assert (HERE / template.name).read_text("utf-8") == render(template), "run `make docs-results`"


def test_another_number_is_another_page(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("{{ results('a').row(engine='h2o').tpot_s | shown('ms') }} ms\n")
    record = (
        '{"study":"a","options":{},"seed":0,"keys":[],"measures":[],"sittings":[],"measured":[],"reading":"",'
        '"results":[{"engine":"h2o","tpot_s":%s},{"engine":"vllm","tpot_s":0.5}]}'
    )
    (tmp_path / "a.json").write_text(record % "0.0334")
    assert render(tmp_path / "page.md", tmp_path).endswith("-->\n\n33.4 ms\n")
    (tmp_path / "a.json").write_text(record % "0.0335")
    assert render(tmp_path / "page.md", tmp_path).endswith("33.5 ms\n")
    (tmp_path / "page.md").write_text("{{ results('a').row(engine='tgi').tpot_s }}")
    with pytest.raises(LookupError, match="0 rows"):
        render(tmp_path / "page.md", tmp_path)


def test_every_result_is_of_a_finished_study_and_on_a_page() -> None:
    pages = "\n".join(template.read_text("utf-8") for template in templates())
    for path in sorted((HERE / "results").glob("*.json")):
        assert load(path).results
        assert f"results('{path.stem}')" in pages


def test_a_table_has_units_and_no_figure_for_what_is_not_there() -> None:
    rows = [{"engine": "paged", "tpot_s": 0.0312, "peak": 47_923_200, "share": None, "n": 1024}]
    columns = {"engine": "engine", "TPOT ms": "tpot_s ms", "MB": "peak MB", "share": "share .2f", "n": "n"}
    assert table(rows, columns).splitlines()[2] == "| paged | 31.2 | 47.9 | – | 1,024 |"
    assert shown(0.296, "%") == "30"
