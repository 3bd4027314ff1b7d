"""The race without a screen: the same worker and the same events as the live app, printed as a summary or as JSON."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from engines.commands import WorkerConfig
from engines.errors import KvtuiError
from engines.events import UNKNOWN_TOKEN, Cache, Heads, Loading, Notice, Outcome, RunStarted, Status
from kvtui import figures
from kvtui.connecting import connecting
from kvtui.literal import brief, literal, one_line
from kvtui.names import OTHER, served
from kvtui.source import Restored, Source, SourceEndedError
from kvtui.state import EngineState, RequestState, RunState
from kvtui.trace import TraceReader, TraceWriter

if TYPE_CHECKING:
    from probes.publisher import Publisher

_WIDTH = 100
_WAIT_S = 0.25
_SERVER_TELLS = ("model", "compares", "kv_usage_peak", "preemptions", "prefix_hit_share")
_COLUMNS = (
    "engine",
    "outcome",
    "tokens",
    "TTFT",
    "TPOT",
    "tok/s",
    "device KV peak",
    "host KV peak",
    "to device",
    "to host",
)


def run_headless(
    config: WorkerConfig,
    *,
    as_json: bool = False,
    trace: TraceWriter | None = None,
    publisher: Publisher | None = None,
    out: TextIO | None = None,
) -> int:
    """Runs `config.prompts` to their end and prints to `out` (stdout). Returns the exit code: 0, 1 when an engine's
    outcome is "error" or the worker died, 2 when the race could not begin. SIGTERM ends the worker too."""
    out = out or sys.stdout
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        observe = trace is not None or publisher is not None  # without any, nobody sees the picture
        config = msgspec.structs.replace(config, observe=observe)
        source = connecting(trace, publisher)(config)
        rows, state, progress = [], RunState(), _progress()
        for row in _race(source, state, progress):
            rows.append(row)
            if not as_json and len(rows) % len(config.engines) == 0:
                if progress is not None:
                    progress.stop()  # its line goes before others come; the next update brings it back
                print(_describe(state, rows[-len(config.engines) :], first=len(rows) == len(config.engines)), file=out)
                out.flush()
        if as_json:
            print(json.dumps(_report(state, rows)), file=out, flush=True)
    except _NotStarted as fault:
        print(f"kvtui: {brief(str(fault))}", file=sys.stderr)
        return 2
    except SourceEndedError as fault:
        print(f"kvtui: {brief(str(fault))}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 1 if any(row["outcome"] == "error" for row in rows) else 0


def summarize(reader: TraceReader, out: TextIO | None = None) -> int:
    """Prints what a recorded run came to, as `run_headless` does, and why it ended where its worker did. Returns the
    exit code 0."""
    out = out or sys.stdout
    state = RunState()
    for number, rows in enumerate(_recorded(reader, state)):
        print(_describe(state, rows, first=number == 0), file=out)
    when, end = one_line(reader.header.recorded), "; its end is cut off" if reader.cut_off else ""
    died = f"; {brief(state.end)}" if state.end else ""
    print(f"recorded {when}, {figures.seconds(reader.duration_s)}{died}{end}", file=out, flush=True)
    return 0


def _recorded(reader: TraceReader, state: RunState) -> Iterator[list[dict[str, Any]]]:
    """Feeds `state` and yields the rows of each prompt when all engines are done with it, and where a run ends, of
    those that some had not ended."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for batch in reader:
        for event in batch:
            if event.run not in ("", state.run) or (state.end and isinstance(event, (Loading, RunStarted))):
                yield from _unfinished(state, rows)
            if isinstance(event, (Cache, Heads)):  # nobody sees the picture
                continue
            try:
                state.apply(event)
            except ValueError:  # of an engine too many
                continue
            if isinstance(event, Outcome):
                done = rows.setdefault(event.request, [])
                done.append(_row(state, event))
                if len(done) == len(state.engines) and _presentable(state, event.request):
                    yield rows.pop(event.request)
    yield from _unfinished(state, rows)


def _unfinished(state: RunState, rows: dict[int, list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    for prompt in state.prompts:
        done = rows.pop(prompt.request, [])
        for engine in state.engines.values():
            request = engine.requests.get(prompt.request)
            if request is not None and request.outcome is None and (request.prefill is not None or request.tokens):
                so_far = Outcome(
                    engine=engine.id,
                    request=request.request,
                    outcome="unfinished",
                    detail=state.end,
                    ttft_s=request.ttft_s,
                    tpot_s=request.tpot_s,
                    decode_tok_s=request.tokens_per_s,
                )
                done.append(_row(state, so_far))
        if done and _presentable(state, prompt.request):
            yield done
    rows.clear()


def _presentable(state: RunState, request: int) -> bool:
    """Whether it is known what ran, and on what: the beginning of a trace may be somebody's own."""
    return state.started is not None and any(p.request == request for p in state.prompts)


class _NotStarted(KvtuiError):
    """What the worker said before it gave up."""


def _race(source: Source, state: RunState, progress: Any) -> Iterator[dict[str, Any]]:
    """Feeds `state` and yields a row of the report for every outcome, until the stream is at its end."""
    with closing(source), progress or nullcontext():
        source.start()
        while True:
            for event in source.receive(_WAIT_S):
                if isinstance(event, Restored):
                    continue
                state.apply(event)
                match event:
                    case Outcome():
                        yield _row(state, event)
                    case Notice(level="error", text=text) if state.started is None:
                        raise _NotStarted(text)
                    case Notice(text=text):
                        print(f"kvtui: {brief(text)}", file=sys.stderr)
                    case Status(engine="", state="idle"):
                        return
            if progress is not None:
                progress.update(_progress_line(state))
                progress.start()


def _row(state: RunState, outcome: Outcome) -> dict[str, Any]:
    """One entry of "runs": a request in one engine."""
    engine = state.engines[outcome.engine]
    request, memory = engine.requests[outcome.request], engine.memory
    nothing = None if engine.remote else 0  # what a server does not tell is not 0
    return {
        "engine": engine.id,
        "prompt_index": outcome.request,
        "prompt_tokens": request.counted_tokens,
        "tokens": [None if token == UNKNOWN_TOKEN else token for token in request.tokens],
        "text": request.text,
        "ttft_s": outcome.ttft_s,
        "tpot_s": outcome.tpot_s,
        "decode_tok_s": outcome.decode_tok_s,
        "device_kv_peak_bytes": memory.device_kv_peak_bytes if memory else nothing,
        "device_peak_bytes": memory.device_peak_bytes if memory else nothing,
        "host_kv_peak_bytes": memory.host_kv_peak_bytes if memory else nothing,
        "h2d_bytes": nothing if engine.remote else outcome.h2d_bytes,
        "d2h_bytes": nothing if engine.remote else outcome.d2h_bytes,
        "outcome": outcome.outcome,
        "detail": outcome.detail,
        **_improved(engine, request),
    }


def _improved(engine: EngineState, request: RequestState) -> dict[str, Any]:
    """What improvements came to, where they were at work, and what a server says of itself: a baseline's row has
    none of it."""
    memory, traffic = engine.memory, request.traffic
    told: dict[str, Any] = {}
    if memory is not None and memory.anchors is not None:
        told |= {"anchors": memory.anchors, "anchors_left_out": memory.anchors_left_out}
    if traffic.hit_rate is not None:
        told |= {
            "hit_rate": traffic.hit_rate,
            "saved_bytes": traffic.saved_bytes,
            "hidden_share": traffic.hidden_share,
        }
    if engine.disk_bytes:
        told["disk_bytes"] = engine.disk_bytes
    if engine.remote and (load := engine.load) is not None:
        told["server"] = {name: getattr(load, name) for name in _SERVER_TELLS}
    return told


def _report(state: RunState, rows: list[dict[str, Any]]) -> dict[str, Any]:
    started = _started(state)
    order = {engine: place for place, engine in enumerate(state.engines)}
    return {
        "model": started.model,
        "device": started.device,
        "link": {name: getattr(started.link, name, None) for name in ("profile", "measured", "bytes_per_s")},
        "runs": sorted(rows, key=lambda row: (row["prompt_index"], order[row["engine"]])),
    }


def _describe(state: RunState, rows: list[dict[str, Any]], *, first: bool) -> str:
    """One prompt's table and answers; above the first, what they were run on."""
    lines = [_heading(state), ""] if first else []
    prompt = next(p for p in state.prompts if p.request == rows[0]["prompt_index"])
    lines.append(f"{prompt.request + 1}. {one_line(prompt.title)} ({figures.counted(prompt.prompt_tokens, 'token')})")
    rows = sorted(rows, key=lambda row: list(state.engines).index(row["engine"]))
    table = [_COLUMNS, *(_cells(state, row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_COLUMNS))]
    for line in table:
        cells = [
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("   " + "  ".join(cells).rstrip())
    if any(served(state, state.engines[row["engine"]]).startswith(OTHER) for row in rows):
        lines.append(f"   ({OTHER} another model than {one_line(_started(state).model)}, the local one)")
    for row in rows:
        lines += ["", f"   {state.engines[row['engine']].label}:"]
        if row["text"].strip():
            for paragraph in literal(row["text"].strip()).split("\n"):
                lines += textwrap.wrap(paragraph, _WIDTH, initial_indent="     ", subsequent_indent="     ") or [""]
        if row["detail"]:
            lines.append(f"     ({one_line(row['detail'])})")
    return "\n".join([*lines, ""])


def _cells(state: RunState, row: dict[str, Any]) -> tuple[str, ...]:
    engine = state.engines[row["engine"]]
    model = served(state, engine)
    return (
        f"{engine.label} ({model})" if model else engine.label,
        row["outcome"],
        f"{len(row['tokens']):,}",
        figures.seconds(row["ttft_s"]),
        figures.seconds(row["tpot_s"]),
        figures.speed(row["decode_tok_s"]),
        *(
            figures.known(row[name])
            for name in ("device_kv_peak_bytes", "host_kv_peak_bytes", "h2d_bytes", "d2h_bytes")
        ),
    )


def _heading(state: RunState) -> str:
    started = _started(state)
    device = f"{started.device}{' (CPU stand-in)' if started.device_is_stand_in else ''}"
    facts = [started.model, started.precision, f"device {device}"]
    if (link := started.link) is not None:
        facts.append(f"link {link.description or link.profile} ({'measured' if link.measured else 'modelled'})")
    return " · ".join([*facts, "times on each engine's own clock"])


def _started(state: RunState) -> RunStarted:
    if state.started is None:
        raise SourceEndedError("the worker reported results of a run that it never announced")
    return state.started


def _progress() -> Any:
    """A line that moves, for a person at a terminal; nothing at all for a pipe or a log."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=True).status("starting")


def _progress_line(state: RunState) -> str:
    from rich.markup import escape

    if state.started is None:
        loading = state.loading
        if loading is None:
            return "starting"
        return escape(loading.stage) + (f" {loading.fraction:.0%}" if loading.fraction is not None else "")
    parts = []
    for engine in state.engines.values():
        request = engine.current
        if request is None:
            continue
        done = figures.counted(len(request.tokens), "token")
        if request.status == "prefill" and request.prefill is not None:
            done = f"prefill {request.prefill.layers_done}/{request.prefill.layers_total} layers"
        parts.append(f"{engine.id} {request.outcome.outcome if request.outcome else done}")
    return escape(f"prompt {len(state.prompts)} of {state.prompts_total}: {', '.join(parts)}")


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)
