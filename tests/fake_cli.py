"""The real command line, whose worker is `fake_worker.py`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from kvtui import cli, client, connecting

FAKE = [sys.executable, str(Path(__file__).parent / "fake_worker.py")]

if __name__ == "__main__":
    connecting.WorkerClient = functools.partial(client.WorkerClient, argv=FAKE)  # type: ignore[assignment,misc]
    cli.main()
