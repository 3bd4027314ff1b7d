"""The app in a real browser: `kvtui serve replay`, seen and steered by a headless Chromium."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], patience_s: float = 60.0, pause: Callable[[], Any] = lambda: None) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        pause()
        time.sleep(0.1)


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port = free_port()
    argv = [sys.executable, "-m", "kvtui.cli", "serve", "--port", str(port), "replay", "--from", "12s"]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        assert process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens)
    yield process, port
    process.send_signal(signal.SIGINT)
    process.wait(20)


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def addresses(process: subprocess.Popen[bytes]) -> set[str]:
    found = psutil.Process(process.pid).net_connections()
    return {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}


def test_a_browser_shows_the_race_takes_keys_and_leaves_nothing_behind(
    server: tuple[subprocess.Popen[bytes], int],
) -> None:
    from playwright.sync_api import sync_playwright

    process, port = server
    assert addresses(process) == {"127.0.0.1"}
    said: list[bytes] = []

    def shown() -> str:
        return ESCAPES.sub("", b"".join(said).decode(errors="replace"))

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 800})

        def listen(socket: Any) -> None:
            socket.on("framereceived", lambda frame: said.append(frame if isinstance(frame, bytes) else frame.encode()))

        page.on("websocket", listen)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{port}/")
        for words in ("Paged (vLLM-style)", "InfiniGen", "tok/s"):
            until(lambda words=words: words in shown(), pause=lambda: page.wait_for_timeout(100))  # type: ignore[misc]
        page.wait_for_timeout(1000)
        colors = page.evaluate(
            """() => {
                const seen = new Set();
                for (const canvas of document.querySelectorAll("canvas")) {
                    const copy = document.createElement("canvas");
                    copy.width = canvas.width; copy.height = canvas.height;
                    const context = copy.getContext("2d");
                    context.drawImage(canvas, 0, 0);
                    const pixels = context.getImageData(0, 0, copy.width, copy.height).data;
                    for (let i = 0; i < pixels.length; i += 4)
                        seen.add([pixels[i], pixels[i + 1], pixels[i + 2]].join());
                }
                return [...seen];
            }"""
        )
        assert {"86,180,233", "230,106,31", "240,228,66"} <= set(colors)  # the three engines' own
        assert {url.split("/")[2] for url in asked if not url.startswith("data:")} == {f"127.0.0.1:{port}"}
        assert page.evaluate("[...document.fonts].map(f => f.family + ' ' + f.status)") == ["Roboto Mono loaded"]
        assert not [fault for fault in faults if "favicon" not in fault and "404" not in fault]
        page.mouse.click(650, 300)
        page.keyboard.press("?")
        until(lambda: "all commands" in shown(), pause=lambda: page.wait_for_timeout(100))
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        browser.close()
    until(lambda: not any(map(alive, family)))
