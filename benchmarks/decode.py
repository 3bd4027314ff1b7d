"""TTFT and decode rate of each engine, one JSON line an engine and context.

    python -m benchmarks.decode [--engines vllm,h2o,infinigen] [--contexts 128,1024,4096] [--peers FILE]

Greedy, batch 1, 64 new tokens after a random prompt, best of two, as one would time any other server. Times are wall
times of the engine's own work; what a modelled link adds is told apart. `--peers` takes JSON lines of other programs
in the same form ({"peer", "context", "ttft_s", "decode_tok_s"}) and prints the ratios. Compare within one sitting only.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import engines


def measure(engine: Any, vocab: int, context: int, new_tokens: int) -> dict[str, float]:
    """Best of two: wall-clock TTFT and decode rate, and TPOT on the fair clock."""
    best: dict[str, float] = {}
    for attempt in range(2):
        ids = random.Random(attempt).sample(range(100, vocab - 100), min(context, vocab - 200))
        ids = (ids * (context // len(ids) + 1))[:context]
        engine.reset()
        start = time.perf_counter()
        engine.submit(attempt, ids, new_tokens + 1, ignore_eos=True)
        moments: list[float] = []
        while engine.has_work:
            for event in engine.advance():
                if type(event).__name__ == "Token":
                    moments.append(time.perf_counter())
                elif type(event).__name__ == "Outcome":
                    if event.outcome != "ok":
                        raise SystemExit(event.detail)
                    tpot_s = event.tpot_s or 0.0
        ttft_s, rate = moments[0] - start, new_tokens / (moments[-1] - moments[0])
        best = {
            "ttft_s": min(ttft_s, best.get("ttft_s", ttft_s)),
            "decode_tok_s": max(rate, best.get("decode_tok_s", rate)),
            "clock_tpot_s": min(tpot_s, best.get("clock_tpot_s", tpot_s)),
        }
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--engines", default="vllm,h2o,infinigen")
    parser.add_argument("--contexts", default="128,1024,4096")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--peers", type=Path)
    options = parser.parse_args()
    model = engines.load_model(options.model, device=options.device, dtype=options.dtype, weights=options.weights)
    precision = options.dtype if options.weights == "auto" else f"{options.dtype}, {options.weights} weights"
    rows = []
    for engine_id in options.engines.split(","):
        engine = engines.create_engine(engine_id, model, budget=options.budget)
        for context in map(int, options.contexts.split(",")):
            figures = measure(engine, model.shape.vocab, context, options.new_tokens)
            row = {"peer": f"kvtui {engine_id}", "dtype": precision, "context": context}
            rows.append(row | {name: round(value, 4) for name, value in figures.items()})
            print(json.dumps(rows[-1]), flush=True)
    if options.peers:
        peers = [json.loads(line) for line in options.peers.read_text().splitlines() if line.startswith("{")]
        print("\n| ours | peer | context | TTFT ours/peer | decode ours/peer |\n|---|---|---|---|---|")
        for ours in rows:
            for peer in peers:
                if peer["context"] == ours["context"]:
                    ttft, decode = ours["ttft_s"] / peer["ttft_s"], ours["decode_tok_s"] / peer["decode_tok_s"]
                    name = f"{peer['peer']} {peer.get('dtype', '')}"
                    print(f"| {ours['peer']} | {name} | {ours['context']} | {ttft:.2f} | {decode:.2f} |")


if __name__ == "__main__":
    main()
