"""Two records side by side: tests worked out by hand, verdicts, refusals, exit codes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from engines.errors import BadRequest
from probes import study
from probes.studies import difference
from probes.studies.compare import BETTER, FEW, UNJUDGED, UNSEEN, WORSE, compared
from probes.studies.record import Record
from tests import study_records as records


def times(*figures: float, engine: str = "h2o", peak_bytes: int = 100, **about: Any) -> Record:
    rows = [records.speed_row(engine, 1024, figure, peak_bytes) for figure in figures]
    return records.speed(rows, **about)


def verdicts(a: Record, b: Record) -> dict[str, str]:
    return {comparison.measure: comparison.verdict for comparison in compared(a, b)[0]}


def test_repeats_by_hand() -> None:
    # 4 against 4 apart: of C(8, 4) = 70 ways of sharing, two are as far apart as this.
    assert difference.of_repeats([1, 2, 3, 4], [5, 6, 7, 8]).p == pytest.approx(2 / 70)
    # [1, 2, 4, 5] and [3, 6, 7, 8]: rank sums 12 and 24; sums of 10, 11 and (two ways) 12 are as low: 4 of 70, twice.
    assert difference.of_repeats([1, 2, 4, 5], [3, 6, 7, 8]).p == pytest.approx(8 / 70)
    # [1, 2, 2, 4] and [2, 5, 6, 7]: ranks 1, 3, 3, 5 and 3, 6, 7, 8. A sum of 12 or less: 1, 3, 3 with 3 or 5, and
    # there are three 3s: 1 + 3 ways, of 70, on either side.
    assert difference.of_repeats([1, 2, 2, 4], [2, 5, 6, 7]).p == pytest.approx(8 / 70)
    assert difference.of_repeats([1, 1, 1, 1], [1, 1, 1, 1]).p == 1
    assert difference.of_repeats([1], [2]).p == 1
    assert difference.of_repeats([5, 6], [1, 2]).rise == -2
    # Three against three cannot be below 2 / C(6, 3) = 0.1, whatever was measured.
    three = difference.of_repeats([1, 2, 3], [9, 9, 9])
    assert (three.p, three.least_p) == (pytest.approx(0.1), pytest.approx(0.1))


def test_counts_by_hand() -> None:
    # Fisher's lady tasting tea: 3 of 4 against 1 of 4 is 34 / 70.
    assert difference.of_counts(3, 4, 1, 4).p == pytest.approx(34 / 70)
    test = difference.of_counts(4, 4, 0, 4)
    assert (test.p, test.least_p, test.rise) == (pytest.approx(2 / 70), pytest.approx(2 / 70), -1)


def test_holm_by_hand() -> None:
    # 3 × 0.01, then 2 × 0.02, then 1 × 0.03, which is no less than the one before.
    assert difference.holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert difference.holm([]) == []
    assert difference.holm([0.9, 0.8]) == [1, 1]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_correction_never_makes_a_value_smaller_nor_turns_two_round(found: list[float]) -> None:
    corrected = difference.holm(found)
    assert all(p <= q <= 1 for p, q in zip(found, corrected, strict=True))
    assert [q for _, q in sorted(zip(found, corrected, strict=True))] == sorted(corrected)


def test_how_many_repeats_would_do() -> None:
    by_repeats = difference.least_p_of_repeats
    assert difference.enough(lambda n: by_repeats(n, n), 1) == 4  # 2/70 is below 0.05, 2/20 is not
    assert difference.enough(lambda n: by_repeats(n, n), 20) == 6  # 2/924 is below 0.0025, 2/252 is not


def test_noise_is_seldom_called_a_difference() -> None:
    """Of many pairs of the same distribution, no more than a twentieth may be, however many measures a pair has."""
    rng = random.Random(1)
    false = 0
    for _ in range(60):
        tests = [
            difference.of_repeats([rng.gauss(1, 0.1) for _ in range(6)], [rng.gauss(1, 0.1) for _ in range(6)])
            for _ in range(3)
        ]
        false += any(verdict == "differs" for verdict, _ in difference.judged(tests))
    assert false <= 7  # 3 are expected at most; 8 or more happen once in a hundred times


def test_a_slower_run_is_worse_and_a_faster_one_better() -> None:
    slow, fast = times(0.30, 0.31, 0.32, 0.33), times(0.20, 0.21, 0.22, 0.23)
    assert verdicts(fast, slow) == {"tpot_s": WORSE, "device_peak_bytes": UNSEEN}
    assert verdicts(slow, fast) == {"tpot_s": BETTER, "device_peak_bytes": UNSEEN}
    (tpot, peak), reading = compared(fast, slow)
    assert (tpot.a, tpot.b, tpot.n_a) == (pytest.approx(0.215), pytest.approx(0.315), 4)
    assert tpot.ratio == pytest.approx(0.315 / 0.215)
    assert peak.p is None
    assert "1 got worse, 1 without a difference" in reading
    assert "Worse: tpot_s of context 1024, batch 1, engine h2o, budget 0.3: 1.47 times A's." in reading


def test_figures_that_are_all_the_same_show_no_difference_and_cost_no_test() -> None:
    comparisons, reading = compared(times(0.2, 0.2, 0.2), times(0.2, 0.2, 0.2))
    assert (comparisons[0].verdict, comparisons[0].note) == (UNSEEN, "all the same")
    assert "test" not in reading


def test_three_repeats_are_too_few_to_tell_and_it_says_how_many_would_do() -> None:
    comparisons, reading = compared(times(0.2, 0.21, 0.22), times(0.4, 0.41, 0.42))
    assert comparisons[0].verdict == FEW
    assert "For 1 test at once, 4 repeats of each on both sides could tell a difference." in reading


def test_bytes_that_are_the_same_in_each_repeat_are_counted() -> None:
    assert verdicts(times(0.2, peak_bytes=100), times(0.2, peak_bytes=101))["device_peak_bytes"] == WORSE
    assert verdicts(times(0.2, peak_bytes=101), times(0.2, peak_bytes=100))["device_peak_bytes"] == BETTER


def test_shares_are_tested_as_counts() -> None:
    full, half = records.answers([("h2o", 1000, 46, 48)]), records.answers([("h2o", 1000, 24, 48)])
    (found,) = compared(full, half)[0]
    assert (found.verdict, found.n_a, found.a, found.b) == (WORSE, 48, 46 / 48, 0.5)
    assert verdicts(half, full) == {"right": BETTER}
    assert verdicts(full, records.answers([("h2o", 1000, 44, 48)])) == {"right": UNSEEN}
    few = records.answers([("h2o", 1000, 3, 3)]), records.answers([("h2o", 1000, 0, 3)])
    assert verdicts(*few) == {"right": FEW}


def test_what_has_no_figure_any_more_got_worse() -> None:
    broken = records.speed([records.speed_row("h2o", 1024, None, 100) | {"outcome": "device_oom"}])
    comparisons, reading = compared(times(0.2), broken)
    assert (comparisons[0].verdict, comparisons[0].note) == (WORSE, "no figure in B (device_oom)")
    assert "no figure in B (device_oom)" in reading
    assert verdicts(broken, times(0.2))["tpot_s"] == BETTER


def test_times_of_two_machines_or_links_are_not_judged() -> None:
    a, b = times(*[0.1] * 6, links=(records.PCIE,)), times(*[0.3] * 6, links=(records.PCIE,), peak_bytes=90)
    assert verdicts(a, b)["tpot_s"] == WORSE
    moved = changed(b, sittings=tuple(changed(s, machine={**s.machine, "cores": 64}) for s in b.sittings))
    assert verdicts(a, moved) == {"tpot_s": UNJUDGED, "device_peak_bytes": BETTER}
    assert "The machines differ (cores: 2 and 64). Times are not judged." in compared(a, moved)[1]
    measured = changed(records.PCIE, measured=True)
    linked = changed(b, sittings=tuple(changed(s, links=(measured,)) for s in b.sittings))
    assert verdicts(a, linked)["tpot_s"] == UNJUDGED
    assert "The links differ (pcie4, modelled and pcie4)." in compared(a, linked)[1]


def test_what_a_reader_should_know_is_said() -> None:
    a = times(0.2, links=(records.PCIE,))
    faster = changed(records.PCIE, bytes_per_s=1.5e9)
    b = times(0.2, links=(faster,), versions={"kvtui": "2"}, machine={"load_1m": 5.0}, seed=3)
    b.measured[0].rows.append(records.speed_row("vllm", 1024, 0.2, 1))
    reading = compared(a, b)[1]
    for said in (
        "Versions differ: kvtui 1 and 2.",
        "Seeds differ: 0 and 3.",
        "Other work was running when B began: a difference in times may be that work's.",
        "In B the link pcie4 was 1.50 times as fast",
        "1 cell of B is not in the other.",
    ):
        assert said in reading


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (records.answers([("h2o", 1000, 1, 2)]), "A is a record of the study performance, B one of retention"),
        (times(0.2, options={"model": "qwen\x1b[2J"}), r"with --model smollm2-135m, B with qwen\?\[2J"),
        (times(0.2, options={"device_memory": "1GiB"}), "--device-memory None, B with 1GiB"),
        (changed(times(0.2), keys=("engine",)), "other columns"),
    ],
)
def test_records_of_different_things_are_refused(b: Record, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        compared(times(0.2), b)


def test_options_that_are_columns_or_repeats_may_differ() -> None:
    a = times(0.2, options={"engines": "h2o", "contexts": "1024", "rounds": 3, "batches": "1"})
    b = times(0.2, options={"engines": "vllm,h2o", "contexts": "1024,2048", "rounds": 5, "batches": "1,4"})
    assert verdicts(a, b)["device_peak_bytes"] == UNSEEN


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(records.write(tmp_path / "a" / "record.json", times(0.2, 0.21, 0.22, 0.23)).parent)
    b = str(records.write(tmp_path / "b.json", times(0.3, 0.31, 0.32, 0.33)))
    assert study.main(["compare", a, a]) == 0
    assert "no difference seen" in capsys.readouterr().out
    assert study.main(["compare", a, b]) == 1
    out = capsys.readouterr().out
    assert "4/4" in out
    assert "1 got worse" in out
    assert study.main(["compare", b, a, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [c["verdict"] for c in told["comparisons"]] == ["better", "no difference seen"]
    assert study.main(["compare", a, b, "--measures", "device_peak_bytes"]) == 0
    assert "tpot_s" not in capsys.readouterr().out
    assert study.main(["compare", a, b, "--measures", "speed"]) == 2
    assert "--measures are of ttft_s, tpot_s" in capsys.readouterr().err
    assert told["comparisons"][0]["p"] == pytest.approx(2 / 70)
    other = str(records.write(tmp_path / "c.json", records.answers([("h2o", 1000, 1, 2)])))
    for arguments in ([a, other], [a, str(tmp_path / "none")], [str(tmp_path), a]):
        assert study.main(["compare", *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_record_without_anything_in_common_is_no_fault() -> None:
    comparisons, reading = compared(times(0.2), times(0.2, engine="vllm"))
    assert comparisons == []
    assert reading.startswith("The two have no cell with a figure in common.")


def test_goodput_counts_times_so_its_rounds_are_what_is_tested() -> None:
    measure = replace(records.COUNTS[0], column="goodput", right="good", asked="requests")

    def stream(*good: int) -> Record:
        rows = [{"engine": "h2o", "goodput": n / 20, "good": n, "requests": 20} for n in good]
        return records.of("performance", rows, keys=("engine",), measures=(measure,))

    assert verdicts(stream(20, 20, 20), stream(2, 3, 4)) == {"goodput": FEW}
