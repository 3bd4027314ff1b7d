"""The engines: weights, decoder, attention, memory pools, link, caches, scheduler and worker process.

    model = engines.load_model("smollm2-135m")
    engine = engines.create_engine("h2o", model, budget=0.3)
    result = engine.generate(model.tokenizer.encode("Once upon a time"), 64)

Importing this package is cheap: torch comes with the first of these calls.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engines.create import create_engine, create_racer
    from engines.engine import Engine
    from engines.model import Model, load_model

# Read once, when torch is imported. A thread that waits for torch's others spins for 0.2 ms, then sleeps: by default it
# spins for milliseconds, on a core that another thread (of the screen, of our own kernels) could use.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__all__ = ["Engine", "Model", "create_engine", "create_racer", "load_model"]


def __getattr__(name: str) -> Any:
    if name in ("load_model", "Model"):
        from engines import model

        return getattr(model, name)
    if name in ("create_engine", "create_racer"):
        from engines import create

        return getattr(create, name)
    if name == "Engine":
        from engines.engine import Engine

        return Engine
    raise AttributeError(f"module 'engines' has no attribute {name!r}")
