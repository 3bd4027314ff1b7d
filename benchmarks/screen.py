"""What the screen costs the engines: the same race headless and in a real pseudo-terminal.

    python -m benchmarks.screen [--repeat 5] [--new-tokens 96]

The document is the built-in one, `--repeat` times. Prints decode rates by the engines' fair clocks and the wall time
from the first prefill to the end of the race, both ways, and their ratios.
"""

from __future__ import annotations

import argparse
import json
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        document = folder / "document.txt"
        document.write_text("\n\n".join([built_in_document()] * options.repeat))
        race = ["--document", str(document), "--prompt", "What was the code word?"]
        race += ["--max-new-tokens", str(options.new_tokens)]
        headless = measure(["run", *race], folder / "headless.kvtrace")
        screen = measure(race, folder / "screen.kvtrace")
    engines = {
        engine: {"headless": headless[engine], "screen": screen[engine], "ratio": screen[engine] / headless[engine]}
        for engine in headless
        if engine != "wall_s"
    }
    print(json.dumps({"decode_tok_s": engines, "wall_s": [headless["wall_s"], screen["wall_s"]]}, indent=1))


def measure(arguments: list[str], trace: Path) -> dict[str, float]:
    """Decode rates by engine, and seconds of wall time as "wall_s", of one race."""
    command = [*arguments, "--trace", str(trace)]
    child = pexpect.spawn(sys.executable, ["-m", "kvtui.cli", *command], dimensions=(36, 120), timeout=900)
    if arguments[0] == "run":
        child.expect(pexpect.EOF)
    else:
        child.expect("■ ready")  # shown once when the engines are built, and again when the race has ended
        while not ended(trace):
            child.expect([r".+", pexpect.TIMEOUT], timeout=1)
        child.send(b"\x11")
        child.expect(pexpect.EOF)
    child.close()
    rates, began_s, ended_s = {}, None, 0.0
    for batch in TraceReader(trace):
        for event in batch:
            if isinstance(event, events.Prefill) and began_s is None:
                began_s = event.wall_s
            if isinstance(event, events.Outcome):
                rates[event.engine], ended_s = round(event.decode_tok_s or 0.0, 2), event.wall_s
    return {**rates, "wall_s": round(ended_s - (began_s or 0.0), 2)}


def ended(trace: Path) -> bool:
    done = [e for batch in TraceReader(trace) for e in batch if isinstance(e, events.Outcome)] if trace.exists() else []
    return len(done) >= 3


if __name__ == "__main__":
    main()
