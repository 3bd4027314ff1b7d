"""A bracketed paste in a real pseudo-terminal: until the chip is on screen, and what the keys after it wait.

    python -m benchmarks.paste [--kilobytes 300,1000] [--pieces 4,64] [--command "kvtui --max-new-tokens 2000"]

Writes the paste in pieces of so many KiB, as terminals and tmux do, while three engines decode; the time runs from the
first byte written. Then types letters and times each until it has been painted. One JSON line a size and piece.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shlex
import time

import pexpect

from benchmarks.keys import drain

START, END = b"\x1b[200~", b"\x1b[201~"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default="kvtui --max-new-tokens 4000")
    parser.add_argument("--kilobytes", default="300,1000")
    parser.add_argument("--pieces", default="4,64", help="KiB a write")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--wait-for", default="decoding", help="text on screen that says the race is on")
    options = parser.parse_args()
    program, *arguments = shlex.split(options.command)
    child = pexpect.spawn(program, arguments, dimensions=(36, 120), encoding=None, timeout=120)
    child.delaybeforesend = None
    child.expect(options.wait_for.encode())
    child.send(b"i")
    time.sleep(0.5)
    for kilobytes in map(int, options.kilobytes.split(",")):
        for piece in map(int, options.pieces.split(",")):
            chips, keys = [], []
            for _ in range(options.repeat):
                chips.append(paste(child, kilobytes * 1000, piece << 10))
                keys += [press(child, chr(0x430 + number).encode()) for number in range(8)]
                child.send(b"\x7f" * 9)  # the letters, then the chip
                time.sleep(0.5)
            print(
                json.dumps(
                    {
                        "paste_kB": kilobytes,
                        "piece_KiB": piece,
                        "chip_s": [round(chip_s, 3) for chip_s in chips],
                        "first_key_ms": round(max(keys[::8]) * 1e3),
                        "slowest_key_ms": round(max(keys) * 1e3),
                    }
                ),
                flush=True,
            )
    child.send(b"\x11")
    child.expect(pexpect.EOF)


def paste(child: pexpect.spawn, size: int, piece: int) -> float:
    """Seconds from the first byte written until the chip has been painted."""
    drain(child)
    stream = START + (b"a line of text\r" * (size // 15 + 1))[:size] + END
    said, started = b"", time.perf_counter()
    while b"pasted text" not in said:
        readable, writable, _ = select.select([child.fileno()], [child.fileno()] if stream else [], [], 10)
        if not readable and not writable:
            raise TimeoutError("no chip after ten seconds")
        if readable:
            said = said[-100:] + child.read_nonblocking(1 << 16)
        if writable:
            stream = stream[child_write(child, stream[:piece]) :]
    return time.perf_counter() - started


def child_write(child: pexpect.spawn, data: bytes) -> int:
    """As many bytes as there is room for; both ends would wait for each other otherwise."""
    os.set_blocking(child.fileno(), False)
    try:
        return os.write(child.fileno(), data)
    except BlockingIOError:
        return 0
    finally:
        os.set_blocking(child.fileno(), True)


def press(child: pexpect.spawn, letter: bytes) -> float:
    """Seconds until a letter that is in no model's answer has been painted."""
    drain(child)
    pressed = time.perf_counter()
    child.send(letter)
    child.expect_exact(letter)
    return time.perf_counter() - pressed


if __name__ == "__main__":
    main()
