"""A race between fake engines, for the tests of races."""

from race_fakes import FakeEngine, FakeModel, full_device
from tokenizer_fakes import byte_level_tokenizer

from engines.commands import (
    WorkerConfig,
)
from engines.race import Race

TOKENIZER = byte_level_tokenizer()
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
ANSWER = TOKENIZER.encode("a goat 🙂")
MODEL = FakeModel(TOKENIZER, eos_ids={END})


class Course:
    """A race between fake engines, with every event that it sends."""

    def __init__(self, *prompts, engines=("vllm", "h2o"), answers=None, steps=None, wall=None, unbuildable=(), **knobs):
        self.events, self.built, self.budgets, self.prefills, self.options = [], {}, [], {}, {}
        answers, steps = answers or {}, steps or {}

        def build(engine_id, model, *, budget, prefill, **options):
            self.prefills[engine_id], self.options[engine_id] = prefill, options
            if engine_id in unbuildable:
                raise full_device()
            self.budgets.append((engine_id, budget))
            made = FakeEngine(engine_id, model, answers.get(engine_id, ANSWER), steps.get(engine_id, 0.01))
            self.built[engine_id] = made
            return made

        config = WorkerConfig(engines=list(engines), prompts=list(prompts), **knobs)
        clock = {} if wall is None else {"wall": wall}
        self.race = Race(MODEL, config, self.events.append, build=build, **clock)
        self.race.start()

    def finish(self):
        for _ in range(10_000):
            if not self.race.advance():
                return self
        raise AssertionError("the race does not end")

    def of(self, kind, **fields):
        return [e for e in self.events if isinstance(e, kind) and all(getattr(e, k) == v for k, v in fields.items())]
