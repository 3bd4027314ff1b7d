"""Key to repaint in a real pseudo-terminal, while three engines decode.

    python -m benchmarks.keys [--presses 60] [--command "kvtui --max-new-tokens 2000"]

Opens and closes the help screen by key and times each from the key's write until the screen shows the change, as a
terminal would (pyte is not needed: the help's title and, after it closes, the next full frame are looked for). Also
prints the time from the command to its first frame, and the share of a core that the app's own process used.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from statistics import quantiles

import pexpect
import psutil


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default="kvtui --max-new-tokens 4000")
    parser.add_argument("--presses", type=int, default=60)
    parser.add_argument("--wait-for", default="decoding", help="text on screen that says the race is on")
    options = parser.parse_args()
    program, *arguments = shlex.split(options.command)
    start = time.perf_counter()
    child = pexpect.spawn(program, arguments, dimensions=(36, 120), encoding=None, timeout=120)
    child.expect(rb"kvtui")
    first_frame_s = time.perf_counter() - start
    child.expect(options.wait_for.encode())
    racing_s = time.perf_counter() - start
    process = psutil.Process(child.pid)
    before, began = process.cpu_times(), time.perf_counter()
    delays = []
    for _ in range(options.presses):
        for key, shown in ((b"?", rb"Keys"), (b"\x1b", rb"decoding|done|Pause")):
            drain(child)
            pressed = time.perf_counter()
            child.send(key)
            child.expect(shown)
            if key == b"?":
                delays.append(time.perf_counter() - pressed)
            time.sleep(0.12)
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
