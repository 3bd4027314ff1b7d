"""The real worker process around a fake model, whose name says what shall happen: run it like `engines.worker`."""

from __future__ import annotations

import os
import time
from typing import Any

from msgspec.structs import replace
from race_fakes import FakeEngine, FakeModel

import engines
from engines import worker
from engines.errors import ModelUnavailable
from engines.events import Outcome


class SlowEngine(FakeEngine):
    def advance(self, observe: bool = False) -> list[Any]:
        time.sleep(0.02)
        return super().advance(observe)


class UnspeakableEngine(FakeEngine):
    def advance(self, observe: bool = False) -> list[Any]:
        said = super().advance(observe)
        return [replace(e, new_tokens=1 << 70) if isinstance(e, Outcome) else e for e in said]


def load_model(name: str, *, progress: Any, **options: Any) -> FakeModel:
    progress("loading weights", 0.5)
    match name:
        case "noisy":
            print("a library's greeting", flush=True)
            os.write(1, b"a C library's greeting\n")
        case "missing":
            raise ModelUnavailable('no model "missing"; kvtui models lists those with short names')
        case "broken":
            raise ZeroDivisionError("by hand")
        case "unspeakable fault":
            raise ZeroDivisionError("by \udc80 hand")
        case "endless load":
            time.sleep(600)
    return FakeModel(name=name)


def create_engine(engine_id: str, model: FakeModel, **knobs: Any) -> FakeEngine:
    answer = [ord(letter) for letter in f"I am {engine_id}."]
    if model.name == "endless":
        return SlowEngine(engine_id, model, answer * 1000)
    engine = FakeEngine(engine_id, model, answer)
    if model.name == "full h2o" and engine_id == "h2o":
        engine.oom_at = 2
    if model.name == "faulty h2o" and engine_id == "h2o":
        engine.fault = ZeroDivisionError("by hand")
    if model.name == "unspeakable" and engine_id == "h2o":
        return UnspeakableEngine(engine_id, model, answer)
    if model.name == "escapes":
        engine.answer = [ord(letter) for letter in "\x1b[31mred"]
    return engine


if __name__ == "__main__":
    engines.load_model, engines.create_racer = load_model, create_engine  # type: ignore[assignment]
    os._exit(worker.main())
