"""A real MQTT broker on a free loopback port: mosquitto, or amqtt in a process of its own where that is missing."""

from __future__ import annotations

import getpass
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MOSQUITTO = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
AMQTT = """
import asyncio, sys
from amqtt.broker import Broker

async def main():
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    listeners = {"default": {"type": "tcp", "bind": f"127.0.0.1:{sys.argv[1]}"}}
    broker = Broker({"listeners": listeners, "plugins": plugins})
    await broker.start()
    await asyncio.Event().wait()

asyncio.run(main())
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealBroker:
    """`settings` are lines of a mosquitto.conf after the listener's."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.port = free_port()
        self._folder = folder
        self._settings = settings or ("allow_anonymous true",)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if MOSQUITTO is None:
            argv = [sys.executable, "-c", AMQTT, str(self.port)]
        else:
            configuration = self._folder / "mosquitto.conf"
            # Started by root, it would become a user who may not read a test's files.
            lines = (f"user {getpass.getuser()}", f"listener {self.port} 127.0.0.1", *self._settings)
            configuration.write_text("\n".join(lines) + "\n", "utf-8")
            argv = [MOSQUITTO, "-c", str(configuration)]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def wait_until(condition: Callable[[], object], patience_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.02)
