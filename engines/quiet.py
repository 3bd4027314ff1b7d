"""Loading through transformers without its warnings and progress bars, which would be written over the screen."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Also holds back garbage collection: loading makes hundreds of thousands of objects and no garbage, and without
    those passes over them a tokenizer opens in two thirds of the time."""
    collecting = gc.isenabled()
    gc.disable()
    from transformers.utils import logging

    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
        if collecting:
            gc.enable()
