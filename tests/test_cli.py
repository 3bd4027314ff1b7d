import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import psutil
import pytest
from race_fakes import ENVIRONMENT

from engines.errors import BadRequest
from kvtui.options import Size

FAKE = [sys.executable, str(Path(__file__).parent / "fake_cli.py")]
ROW = {
    "engine", "prompt_index", "prompt_tokens", "tokens", "text", "ttft_s", "tpot_s", "decode_tok_s",
    "device_kv_peak_bytes", "device_peak_bytes", "host_kv_peak_bytes", "h2d_bytes", "d2h_bytes", "outcome", "detail",
}  # fmt: skip


def kvtui(*arguments, stdin="", **options):
    return subprocess.run(
        [*FAKE, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        encoding="utf-8",
        env=ENVIRONMENT,
        **options,
    )


@contextlib.contextmanager
def running(*arguments):
    """A headless run that does not end by itself, once its worker is there."""
    process = subprocess.Popen(
        [*FAKE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        deadline = time.monotonic() + 20
        while not (workers := psutil.Process(process.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(1.0)
        yield process, workers[0]
    finally:
        process.kill()
        process.communicate()


def gone(worker):
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        worker.wait(10)
    return not worker.is_running()


def test_json_has_exactly_the_promised_fields(tmp_path):
    stream = tmp_path / "s.jsonl"
    stream.write_text('{"prompt": "one"}\n{"prompt": "two", "follow_up": true, "max_new_tokens": 3}\n')
    done = kvtui("run", "--model", "fake", "--prompt-file", str(stream), "--engines", "h2o,vllm", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report.keys() == {"model", "device", "link", "runs"}
    assert report["link"] == {"profile": "pcie4", "measured": False, "bytes_per_s": 1e9}
    assert (report["model"], report["device"]) == ("fake", "cpu")
    assert all(row.keys() == ROW for row in report["runs"])
    assert [(row["prompt_index"], row["engine"]) for row in report["runs"]] == [
        (0, "h2o"), (0, "vllm"), (1, "h2o"), (1, "vllm"),
    ]  # fmt: skip
    first, third = report["runs"][0], report["runs"][2]
    assert first["text"] == "I am h2o."
    assert "".join(map(chr, first["tokens"])) == "I am h2o."
    assert first["device_kv_peak_bytes"] == 16 * (3 + 9)
    assert (third["text"], third["prompt_tokens"]) == ("I a", len("\n\ntwo"))


def test_a_prompt_comes_after_the_files(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("one")
    done = kvtui(
        "run", "--model", "fake", "--prompt-file", str(path), "--prompt", "four", "--engines", "vllm", "--json"
    )
    assert [row["prompt_tokens"] for row in json.loads(done.stdout)["runs"]] == [3, 4]


def test_without_a_terminal_it_prints_a_plain_summary():
    done = kvtui("--model", "fake", stdin="a document\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1. a document (10 tokens)" in done.stdout
    assert "(modelled)" in done.stdout
    assert "CPU stand-in" in done.stdout
    for label in ("Paged (vLLM-style)", "H2O", "InfiniGen"):
        assert label in done.stdout
    assert "\x1b" not in done.stdout


def test_what_a_model_says_cannot_steer_the_terminal():
    done = kvtui("run", "--model", "escapes", "--prompt", "one")
    assert "\x1b" not in done.stdout
    assert "␛[31mred" in done.stdout


def test_out_of_device_memory_is_a_result():
    done = kvtui("run", "--model", "full h2o", "--prompt", "one", "--json")
    outcomes = {row["engine"]: row["outcome"] for row in json.loads(done.stdout)["runs"]}
    assert outcomes == {"vllm": "ok", "h2o": "device_oom", "infinigen": "ok"}
    assert done.returncode == 0


def test_an_engines_error_is_a_row_and_code_1():
    done = kvtui("run", "--model", "faulty h2o", "--prompt", "one", "--json")
    rows = {row["engine"]: row for row in json.loads(done.stdout)["runs"]}
    assert (rows["h2o"]["outcome"], rows["h2o"]["detail"]) == ("error", "ZeroDivisionError: by hand")
    assert rows["vllm"]["outcome"] == "ok"
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--prompt", " "], "the prompt is empty"),
        (["run", "--prompt", "x" * 600], "88 more than the context of 512; shorten it, or"),
        (["run", "--prompt", "a", "--engines", "tgi"], 'unknown engine "tgi"; known are vllm, h2o, h2o+, infinigen'),
        (["run", "--prompt", "a", "--engines", "h2o,h2o"], '"h2o" is named twice'),
        (["run", "--prompt", "a", "--engines", ","], "no engine to run"),
        (["run", "--prompt", "a", "--budget", "0"], "the budget is a share above 0 and at most 1, not 0"),
        (["run", "--prompt", "a", "--budget", "1.01"], "not 1.01"),
        (["--budget", "nan"], "budget"),
        (["run", "--prompt", "a", "--device-memory", "lots"], "--device-memory is a size such as 512MiB"),
        (["run", "--prompt", "a", "--host-memory", "-5"], "--host-memory"),
        (["run", "--prompt", "a", "--host-memory", "1MB", "--disk", "0"], "--disk is a size such as 512MiB"),
        (["run", "--prompt", "a", "--disk", "1GiB"], "it needs --host-memory"),
        (["run", "--prompt", "a", "--host-memory", "1MB", "--disk-folder", "/nowhere"], 'no folder "/nowhere"'),
        (["run", "--prompt", "a", "--resident", "1.5"], "a share above 0 and at most 1, not 1.5"),
        (["run", "--prompt", "a", "--max-new-tokens", "0"], "the number of new tokens is 1 or more, not 0"),
        (["run", "--prompt", "a", "--temperature", "-1"], "temperature"),
        (["run", "--prompt", "a", "--top-p", "0"], "top-p"),
        (["run", "--prompt-file", "/nonexistent/file"], "cannot read /nonexistent/file"),
        (["run", "--prompt-file", "/"], "/ is not a file"),
        (["run", "--prompt-file", sys.executable], "is a binary file"),
        (["run", "--prompt", "a", "--model", "missing"], 'no model "missing"'),
        (["run", "--prompt", "a", "--model", ""], "--model is empty"),
        (["run", "--prompt", "a", "--link", " "], "--link is empty"),
        (["run", "--prompt", "a", "--trace", ""], "--trace is empty"),
    ],
)
def test_bad_input_is_one_line_and_code_2(arguments, said):
    model = [] if "--model" in arguments else ["--model", "fake"]
    done = kvtui(*arguments, *model)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("kvtui: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--nonsense"],
        ["--budget", "x"],
        ["--budget", "0.5", "run"],
        ["--seed", "-1"],
        ["walk"],
        ["study", "nonsense"],
    ],
)
def test_wrong_usage_is_code_2(arguments):
    done = kvtui(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("kvtui: ")
    assert done.stderr.count("\n") == 1


def test_too_long_is_cut_when_asked():
    done = kvtui("run", "--model", "fake", "--prompt", "x" * 600, "--truncate", "--engines", "vllm", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["runs"][0]["prompt_tokens"] <= 512 - 128


def test_a_document_is_what_the_question_is_about(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text("Some words.\n")
    done = kvtui("run", "--model", "fake", "--document", str(path), "--prompt", "Which?", "--engines", "vllm", "--json")
    assert json.loads(done.stdout)["runs"][0]["prompt_tokens"] == len("Some words.\n\nWhich?")


def test_a_document_that_is_too_long_names_the_option_that_cuts_it(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text("x" * 600)
    command = ["run", "--model", "fake", "--document", str(path), "--prompt", "Which?", "--engines", "vllm"]
    refused = kvtui(*command)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--truncate start, middle or end" in refused.stderr
    cut = kvtui(*command, "--truncate", "end")
    assert cut.returncode == 0
    assert "tokens were cut off its end" in cut.stderr
    assert "1. d.txt (384 tokens)" in cut.stdout


def test_a_stdin_that_stays_silent_is_not_waited_for():
    reader, writer = os.pipe()
    try:
        done = subprocess.run(
            [*FAKE, "--model", "full h2o", "--engines", "vllm"],
            stdin=reader,
            capture_output=True,
            text=True,
            timeout=60,
            env=ENVIRONMENT,
        )
    finally:
        os.close(reader)
        os.close(writer)
    assert "nothing came on stdin" in done.stderr
    assert done.returncode == 2  # the built-in document is longer than this fake model's context
    assert "more than the context" in done.stderr


@pytest.mark.parametrize("given", ["yes |", "< <(yes)", "--prompt-file <(yes)", "--document <(yes) --prompt a"])
def test_what_comes_without_an_end_is_refused(given):
    before, after = (given, "") if given.endswith("|") else ("", given)
    done = subprocess.run(
        ["bash", "-c", f"{before} {' '.join([*FAKE, 'run --model fake'])} {after}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "has more than the 64.0 MB that a document may have" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_a_command_prints_can_be_the_prompt():
    command = [
        *FAKE,
        "run",
        "--model",
        "fake",
        "--engines",
        "vllm",
        "--json",
        "--prompt-file",
        "<(sleep 0.5; echo one)",
    ]
    done = subprocess.run(
        ["bash", "-c", " ".join(command)], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["runs"][0]["prompt_tokens"] == len("one")


def test_a_worker_that_is_killed_is_one_line_and_code_1():
    with running("run", "--model", "endless", "--prompt", "a", "--json", "--max-new-tokens", "5000") as (
        process,
        worker,
    ):
        worker.kill()
        out, err = process.communicate(timeout=20)
        assert process.returncode == 1
        assert out == ""
        assert err.count("\n") == 1
        assert "SIGKILL" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_worker_too(number, code):
    with running("run", "--model", "endless", "--prompt", "a") as (process, worker):
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
        assert process.returncode == code
        assert "Traceback" not in err
        assert gone(worker)


def test_a_face_that_is_killed_leaves_no_worker_behind():
    with running("run", "--model", "endless", "--prompt", "a") as (process, worker):
        process.kill()
        assert gone(worker)


def test_a_reader_that_has_seen_enough_is_no_fault():
    command = " ".join([*FAKE, "run --model fake --prompt one --prompt two | head -n 1"])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_a_reader_that_never_read_makes_it_code_2():
    command = " ".join([*FAKE, "models | true; exit ${PIPESTATUS[0]}"])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (2, "")


def test_models_lists_aliases_without_any_worker():
    done = kvtui("models")
    assert done.returncode == 0
    header, *lines = done.stdout.splitlines()
    assert header.split()[:5] == ["name", "parameters", "weights", "context", "cached"]
    assert any(line.startswith("smollm2-135m ") and "8,192" in line for line in lines)
    infos = json.loads(kvtui("models", "--json").stdout)
    assert {"name", "repo", "parameters", "weights_bytes", "context", "cached"} == infos[0].keys()


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("2GB", 2 * 10**9), ("1.5GiB", 3 << 29), ("1000", 1000), ("64 kib", 65536), ("7b", 7)],
)
def test_sizes(text, size):
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "5 bananas", "MiB", "1e3", "inf", "nanGB", "0.1b", "9" * 400, "5M"])
def test_what_is_no_size(text):
    with pytest.raises(BadRequest, match="512MiB"):
        Size().convert(text, click.Option(["--device-memory"]), None)


@pytest.mark.slow
def test_on_the_real_model_the_paged_engine_finds_the_fact_again():
    command = [sys.executable, "-m", "kvtui.cli", "run", "--engines", "vllm", "--max-new-tokens", "24", "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["model"] == "smollm2-135m"
    assert not report["link"]["measured"] or report["device"] != "cpu"
    summary, fact, *_ = report["runs"]
    assert 800 < summary["prompt_tokens"] < 1200
    assert len(summary["tokens"]) == 24
    assert "marigold" in fact["text"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("arguments", [["models"], ["--help"]])
def test_an_output_that_is_full_is_one_line_and_code_2(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvtui.cli", *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot write the output" in done.stderr
