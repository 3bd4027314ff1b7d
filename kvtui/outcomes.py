"""A remote run without a screen: a line for each request that ends, and one for a worker that does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TextIO

from engines import events
from kvtui import figures
from kvtui.literal import brief, one_line
from kvtui.source import Restored, SourceEndedError
from kvtui.watching import WatchSource, whose

_WAIT_S = 0.25


def print_outcomes(source: WatchSource, out: TextIO | None = None) -> int:
    """Prints them to `out` (stdout) until the run has ended: also those that ended before. Returns the exit code: 0, 1
    when the run is gone or its worker ended by itself, 2 when the broker will not have us."""
    out = out or sys.stdout
    said = died = ""
    try:
        with closing(source):
            source.start()
            while source.run is None or source.run.state == "live":
                for event in source.receive(_WAIT_S):
                    for outcome in _outcomes(event):
                        print(_line(outcome), file=out, flush=True)
                    before, died = died, _end(event, died)
                    if died not in ("", before) and source.run is not None:
                        print(f"kvtui: {brief(whose(source.run.name, died))}", file=sys.stderr, flush=True)
                if (waiting := _waiting(source)) not in ("", said):
                    said = waiting
                    print(f"kvtui: {brief(waiting)}", file=sys.stderr, flush=True)
    except SourceEndedError as fault:
        print(f"kvtui: {brief(str(fault))}", file=sys.stderr)
        return 2
    print(f"kvtui: {source.run.name} {'is gone' if source.run.state == 'gone' else 'has ended'}", file=sys.stderr)
    return 1 if source.run.state == "gone" or died else 0


def _end(event: events.AnyEvent | Restored, before: str) -> str:
    """Why the worker has ended; "" while one lives."""
    match event:
        case Restored(state=state):
            return state.end
        case events.Status(engine="", state="ended", detail=detail) if detail:
            return detail
        case events.Loading() | events.RunStarted():
            return ""
    return before


def _waiting(source: WatchSource) -> str:
    """What for, in a few words; "" while a run is watched."""
    standing = source.standing
    if standing.state == "connected":
        return "" if source.run is not None else "waiting for a run"
    return f"waiting for the broker {source.place}: {standing.detail}" if standing.detail else ""


def _outcomes(event: events.AnyEvent | Restored) -> Iterator[events.Outcome]:
    if isinstance(event, Restored):
        requests = [r for engine in event.state.engines.values() for r in engine.requests.values()]
        yield from (request.outcome for request in requests if request.outcome is not None)
    elif isinstance(event, events.Outcome):
        yield event


def _line(outcome: events.Outcome) -> str:
    parts = [f"prompt {outcome.request + 1}", one_line(outcome.engine), one_line(outcome.outcome)]
    if outcome.outcome == "ok":
        parts += [figures.counted(outcome.new_tokens, "token"), f"TTFT {figures.seconds(outcome.ttft_s)}"]
        parts += [f"TPOT {figures.seconds(outcome.tpot_s)}", figures.speed(outcome.decode_tok_s)]
    return "  ".join([*parts, *([f"({one_line(outcome.detail)})"] if outcome.detail else [])])
