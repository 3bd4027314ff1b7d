"""Shared fixtures. The cache folder of the tests is their own, except for the default model, which is large."""

from __future__ import annotations

import os

import pytest

from kvtui import palette, spelling

USUAL = palette.now


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


@pytest.fixture(autouse=True)
def _the_usual_look():
    """An app's colours and spelling are its process's; the next test begins without them."""
    yield
    palette.use(USUAL)
    spelling.use(False)


# Set where tests run in several processes; programs in a pseudo-terminal would believe them rather than it.
for _name in ("LINES", "COLUMNS"):
    os.environ.pop(_name, None)
# Triton asks at its import whether kernels are to run in its interpreter, on CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "1")
