"""Shared fixtures. The cache folder of the tests is their own, except for the default model, which is large."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def smollm2():
    """The default model in float32; fetched by `make test` before the tests run."""
    import engines

    return engines.load_model("smollm2-135m", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def smollm2_bf16():
    import engines

    return engines.load_model("smollm2-135m", device="cpu", dtype="bfloat16")


@pytest.fixture(scope="session")
def prose() -> str:
    """Some 20,000 words of real English that come with every Python: its language reference."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in ("objects", "exceptions", "import", "typesseq", "compound"))


# Set where tests run in several processes; programs in a pseudo-terminal would believe them rather than it.
for _name in ("LINES", "COLUMNS"):
    os.environ.pop(_name, None)
# Triton asks at its import whether kernels are to run in its interpreter, on CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "1")
