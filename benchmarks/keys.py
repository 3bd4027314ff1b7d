"""Key to repaint in a real pseudo-terminal, while three engines decode.

    python -m benchmarks.keys [--presses 60] [--repeat 5] [--command "kvtui --max-new-tokens 4000"]

Types into the input line and times each letter from the key's write until it has been painted. Also
prints the time from the command to its first frame, and the share of a core that the app's own process used.
"""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import pexpect
import psutil

from kvtui.prompts import built_in_document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default="kvtui --max-new-tokens 4000")
    parser.add_argument("--repeat", type=int, help="ask about the built-in document, so many times over")
    parser.add_argument("--presses", type=int, default=60)
    parser.add_argument("--wait-for", default="decoding", help="text on screen that says the race is on")
    options = parser.parse_args()
    program, *arguments = shlex.split(options.command)
    if options.repeat:
        document = Path(tempfile.mkdtemp()) / "document.txt"
        document.write_text("\n\n".join([built_in_document()] * options.repeat))
        arguments += ["--document", str(document), "--prompt", "What was the code word?"]
    start = time.perf_counter()
    child = pexpect.spawn(program, arguments, dimensions=(36, 120), encoding=None, timeout=600)
    child.delaybeforesend = None  # pexpect's own pause of 50 ms is not ours
    child.expect(rb"kvtui")
    first_frame_s = time.perf_counter() - start
    child.expect(options.wait_for.encode())
    racing_s = time.perf_counter() - start
    process = psutil.Process(child.pid)
    before, began = process.cpu_times(), time.perf_counter()
    delays = []
    child.send(b"i")
    time.sleep(0.5)
    for number in range(options.presses):
        letter = chr(0x430 + number % 32).encode()  # Cyrillic: in no model's answer, so only the echo can bring it
        drain(child)
        pressed = time.perf_counter()
        child.send(letter)
        child.expect_exact(letter)
        delays.append(time.perf_counter() - pressed)
        time.sleep(0.15)
    after, took = process.cpu_times(), time.perf_counter() - began
    cpu = (after.user + after.system - before.user - before.system) / took
    rss = process.memory_info().rss
    child.send(b"\x11")
    child.expect(pexpect.EOF)
    cuts = quantiles(delays, n=100)
    print(
        json.dumps(
            {
                "first_frame_s": round(first_frame_s, 2),
                "racing_s": round(racing_s, 2),
                "key_p50_ms": round(cuts[49] * 1e3, 1),
                "key_p95_ms": round(cuts[94] * 1e3, 1),
                "key_p99_ms": round(cuts[98] * 1e3, 1),
                "ui_cpu_share": round(cpu, 2),
                "ui_rss_bytes": rss,
            }
        )
    )


def drain(child: pexpect.spawn) -> None:
    """What was painted before the key does not count."""
    while True:
        try:
            child.read_nonblocking(1 << 16, timeout=0)
        except pexpect.TIMEOUT:
            return


if __name__ == "__main__":
    main()
