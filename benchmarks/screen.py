"""What the screen costs the engines: the same race headless and in a real pseudo-terminal.

    python -m benchmarks.screen [--repeat 5] [--new-tokens 96] [--rounds 3]

The document is the built-in one, `--repeat` times. The two ways alternate, and each is the median of its rounds: decode
rates by the engines' fair clocks (whose own ratio is noisy: they run one after the other, some milliseconds at a time)
and the tokens of all engines over the wall time from the first prefill to the end of the race.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import pexpect

from engines import events
from kvtui.prompts import built_in_document
from kvtui.trace import TraceReader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="times that the document is read")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"headless": [], "screen": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document = folder / "document.txt"
        document.write_text("\n\n".join([built_in_document()] * options.repeat))
        race = ["--document", str(document), "--prompt", "What was the code word?"]
        race += ["--max-new-tokens", str(options.new_tokens)]
        for turn in range(options.rounds):
            for way, words in (("headless", ["run"]), ("screen", [])):
                rounds[way].append(measure([*words, *race], folder / f"{way}{turn}.kvtrace"))
                print(way, json.dumps(rounds[way][-1]), file=sys.stderr, flush=True)
    median = {
        way: {name: statistics.median(one[name] for one in taken) for name in taken[0]} for way, taken in rounds.items()
    }
    ratio = {name: round(median["screen"][name] / median["headless"][name], 3) for name in median["headless"]}
    print(json.dumps({**median, "screen over headless": ratio}, indent=1))


def measure(arguments: list[str], trace: Path) -> dict[str, float]:
    """Decode tok/s by engine, and of all over the wall time as "race", of one race."""
    command = [*arguments, "--trace", str(trace)]
    child = pexpect.spawn(sys.executable, ["-m", "kvtui.cli", *command], dimensions=(36, 120), timeout=900)
    if arguments[0] == "run":
        child.expect(pexpect.EOF)
    else:
        while not ended(trace):  # reading the trace costs too, so not often
            child.expect([pexpect.TIMEOUT], timeout=4)
            child.buffer = b""
        child.send(b"\x11")
        child.expect(pexpect.EOF)
    child.close()
    rates, tokens, began_s, ended_s = {}, 0, None, 0.0
    for batch in TraceReader(trace):
        for event in batch:
            if isinstance(event, events.Prefill) and began_s is None:
                began_s = event.wall_s
            if isinstance(event, events.Outcome):
                rates[event.engine], ended_s = round(event.decode_tok_s or 0.0, 2), event.wall_s
                tokens += event.prompt_tokens + event.new_tokens
    return {**rates, "race": round(tokens / (ended_s - (began_s or 0.0)), 2)}


def ended(trace: Path) -> bool:
    done = [e for batch in TraceReader(trace) for e in batch if isinstance(e, events.Outcome)] if trace.exists() else []
    return len(done) >= 3


if __name__ == "__main__":
    main()
