"""Timings. The engines come first: they set how threads wait before torch is imported."""

import engines as engines
