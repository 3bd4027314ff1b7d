"""Whether engines pay for one another: each one's TPOT in a three-way race over its TPOT alone, on the fair clock.

    python -m benchmarks.race [--context 1024] [--rounds 3]

Alone and race alternate, so that drift of the machine hits both alike; medians. 1.00 is a perfectly fair clock.
"""

from __future__ import annotations

import argparse
import json
from statistics import median

import engines
from engines.commands import Prompt, WorkerConfig
from engines.events import Outcome
from engines.race import Race

IDS = ["vllm", "h2o", "infinigen"]


def tpot_s(model, engine_ids: list[str], text: str, new_tokens: int) -> dict[str, float]:
    """TPOT of each engine for one prompt, all of `engine_ids` racing."""
    happened = []
    config = WorkerConfig(
        engines=engine_ids, prompts=[Prompt(text=text)], max_new_tokens=new_tokens, ignore_eos=True, observe=False
    )
    race = Race(model, config, happened.append, build=engines.create_engine)
    race.start()
    while race.advance():
        pass
    return {event.engine: event.tpot_s for event in happened if isinstance(event, Outcome) and event.tpot_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = engines.load_model(options.model)
    text = model.tokenizer.decode([200 + i * 37 % 40000 for i in range(options.context)])
    alone: dict[str, list[float]] = {engine_id: [] for engine_id in IDS}
    raced: dict[str, list[float]] = {engine_id: [] for engine_id in IDS}
    for _ in range(options.rounds):
        for engine_id in IDS:
            alone[engine_id].append(tpot_s(model, [engine_id], text, options.new_tokens)[engine_id])
        for engine_id, seconds in tpot_s(model, IDS, text, options.new_tokens).items():
            raced[engine_id].append(seconds)
    for engine_id in IDS:
        a, r = median(alone[engine_id]), median(raced[engine_id])
        print(
            json.dumps({"engine": engine_id, "alone_s": round(a, 4), "race_s": round(r, 4), "ratio": round(r / a, 3)})
        )


if __name__ == "__main__":
    main()
