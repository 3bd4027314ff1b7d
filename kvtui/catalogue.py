"""`kvtui models`: what has a short name, and fetching it ahead of time."""

from __future__ import annotations

import json
from contextlib import closing

import msgspec

from engines.commands import WorkerConfig
from engines.errors import KvtuiError
from engines.events import Loading, Notice
from kvtui import figures
from kvtui.client import WorkerClient
from kvtui.source import SourceEndedError

_WAIT_S = 0.25


def show(*, as_json: bool) -> int:
    """Prints every alias: where it comes from, its size at 16 bits a parameter, its context, whether it is here."""
    from engines import checkpoint

    infos = checkpoint.aliases()
    if as_json:
        print(json.dumps([msgspec.to_builtins(info) for info in infos], indent=2))
        return 0
    lines = [("name", "parameters", "weights", "context", "cached", "comes from")]
    lines += [
        (
            info.name,
            f"{info.parameters / 1e6:,.0f} M",
            figures.size(info.weights_bytes),
            f"{info.context:,}",
            "yes" if info.cached else "no",
            info.repo,
        )
        for info in infos
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    for name, *numbers, origin in lines:
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:5], strict=True)]
        print("  ".join([name.ljust(widths[0]), *cells, origin]))
    return 0


def fetch(name: str) -> int:
    """Fetches and converts one model in a worker, with a progress bar where a person watches. Raises KvtuiError."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    client = WorkerClient(WorkerConfig(model=name, engines=[]))
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with closing(client), Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)
        client.start()
        while True:
            try:
                batch = client.receive(_WAIT_S)
            except SourceEndedError as ended:
                raise KvtuiError(str(ended)) from None
            for event in batch:
                match event:
                    case Loading(stage=stage, fraction=fraction):
                        total = None if fraction is None else 1.0
                        progress.update(task, description=stage, completed=fraction or 0.0, total=total)
                    case Notice(level="error", text=text):
                        raise KvtuiError(text)
                    case Notice(text=text):
                        progress.stop()
                        print(text)
                        return 0
