import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engines import store
from engines.errors import ModelUnavailable


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTUI_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def fill(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("whole")


def test_a_build_happens_once(cache):
    calls = []
    for _ in range(2):
        store.build(cache / "model", lambda folder: (calls.append(folder), fill(folder)))
    assert (cache / "model" / "deep" / "file").read_text() == "whole"
    assert len(calls) == 1
    assert listing(cache) == ["model"]


def test_a_build_that_fails_leaves_nothing(cache):
    def interrupted(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.build(cache / "model", interrupted)
    assert listing(cache) == []


HANGING = """
import sys, time
from pathlib import Path
from engines import store
def make(folder):
    (folder / "half").write_text("half")
    print("begun", flush=True)
    time.sleep(60)
store.build(Path(sys.argv[1]), make)
"""


def test_the_leftovers_of_a_killed_build_are_cleared(cache):
    child = subprocess.Popen([sys.executable, "-c", HANGING, cache / "model"], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert len(listing(cache)) == 1, "a hidden folder is left, and no model"
    assert not (cache / "model").exists()
    store.build(cache / "model", fill)
    assert listing(cache) == ["model"]


def _build_slowly(target: Path, log: Path) -> None:
    def make(folder: Path) -> None:
        with log.open("a") as handle:
            handle.write("made\n")
        time.sleep(0.3)
        fill(folder)

    store.build(target, make, waiting=lambda: log.with_suffix(".waited").touch())


def test_two_first_runs_at_once_both_succeed_and_share_the_work(cache, tmp_path):
    log = tmp_path / "log"
    spawn = multiprocessing.get_context("spawn")
    runs = [spawn.Process(target=_build_slowly, args=(cache / "model", log)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0]
    assert log.read_text() == "made\n"
    assert (cache / "model" / "deep" / "file").read_text() == "whole"


def test_a_loser_without_locks_accepts_the_winners_result(cache, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(store.fcntl, "flock", no_locks)

    def make(folder: Path) -> None:
        fill(folder)
        (cache / "model").mkdir()
        fill(cache / "model")

    assert store.build(cache / "model", make) == cache / "model"
    assert listing(cache) == ["model"]


def test_disk_full_while_writing_is_one_line(cache):
    def make(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ModelUnavailable, match=r"^disk full while writing to .*cache; make room, or set KVTUI_CACHE"):
        store.build(cache / "model", make)
    assert listing(cache) == []


def test_too_little_space_is_found_before_writing(cache):
    with pytest.raises(ModelUnavailable, match=r"^disk full: the download needs .* TB in .*, where .* are free"):
        store.require_space(cache, 1 << 60, "the download")
    store.require_space(cache, 1, "the download")


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVTUI_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelUnavailable, match=r"^cannot write the cache folder .*Not a directory.*; set KVTUI_CACHE"):
        store.build(store.root() / "model", fill)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_cache_is_one_line(cache):
    cache.mkdir()
    cache.chmod(0o500)
    with pytest.raises(ModelUnavailable, match=r"^cannot write the cache folder .*Permission denied"):
        store.build(cache / "models" / "model", fill)


def test_growth_of_a_folder_is_reported(tmp_path):
    seen: list[float] = []
    with store.watched(tmp_path, 100_000, seen.append):
        (tmp_path / "part").write_bytes(os.urandom(50_000))
        deadline = time.monotonic() + 5
        while 0.5 not in seen and time.monotonic() < deadline:
            time.sleep(0.05)
    assert 0.5 in seen
