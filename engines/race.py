"""The race: one prompt stream through several engines, each on its own clock, without any pipe or screen.

    race = Race(model, config, emit=print, build=create_racer)
    race.start()
    while race.advance():
        ...

Every prompt is a round: it starts in all engines at the same clock, and the next one waits until all have ended it.
Within a round the engine whose clock is furthest behind always goes next, so what is seen is what each would do on a
machine of its own. One prompt's index in the stream is its `request` number.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engines.chat import Chat, text_of, title_of
from engines.commands import (
    AnyCommand,
    Cancel,
    Focus,
    Pause,
    Rerun,
    Resume,
    SetBudget,
    SetEngines,
    SetImprovements,
    Step,
    Submit,
    WorkerConfig,
)
from engines.errors import KvtuiError, OutOfMemory
from engines.events import (
    ENGINE_LABELS,
    SERVER,
    EngineInfo,
    Event,
    LinkInfo,
    Notice,
    RunStarted,
    Status,
    Submitted,
)
from engines.knobs import PREFILLS, check_knobs
from engines.lane import Lane, Turn
from engines.sizes import counted
from engines.stream import Stream

Build = Callable[..., Any]

_CUT_WHERE = {"start": "off its start", "middle": "out of its middle", "end": "off its end"}


class Race:
    """Runs `config.prompts`, and whatever is submitted later, through the engines of `config` on one `model`.

    `emit` is called with complete events, in order. `build` makes an engine (`create.create_racer`), `wall` counts
    seconds. Raises BadRequest at once for prompts and knobs that cannot be served; a faulty prompt among several is
    named by its place in the stream.
    """

    def __init__(
        self,
        model: Any,
        config: WorkerConfig,
        emit: Callable[[Event], None],
        *,
        build: Build,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        check_knobs(config)
        self._model = model
        self._config = config
        self._wanted = config
        self._out = emit
        self._build = build
        self._wall = wall
        self._wall_start = wall()
        self._session = uuid.uuid4().hex[:8]
        self._runs = 0
        self._stream = Stream(Chat(model.tokenizer, model.context_limit), config, model.context_limit, self._emit)
        self._lanes: list[Lane] = []
        self._link: LinkInfo | None = None
        self._paused = False
        self._in_conversation = False
        self._focus: int | None = None
        self._status = ""
        self._stream.append(config.prompts)

    def start(self) -> None:
        """Builds the engines and begins the run. Raises KvtuiError when none of them can be built."""
        self._build_lanes()
        self._begin_run()

    def advance(self) -> bool:
        """One slice of the engine that is furthest behind, or the start of the next round. False when there is
        nothing to do: paused, or the stream has ended. A server that has sent nothing is waited for, a moment, only
        when nobody else has anything to do."""
        if self._paused:
            return False
        running = [(lane.next_s, lane) for lane in self._lanes if lane.running]
        if running:
            _, lane = min(running, key=lambda pair: float("inf") if pair[0] is None else pair[0])
            lane.advance()
            return True
        if self._stream.waiting:
            self._start_round()
            return True
        self._set_status("idle")
        return False

    def handle(self, command: AnyCommand) -> None:
        """Does what a person asked. What cannot be done becomes a Notice."""
        try:
            self._handle(command)
        except KvtuiError as fault:
            refused = command.prompts if isinstance(command, Submit) else []
            ticket = next((prompt.ticket for prompt in refused if prompt.ticket), "")
            self._emit(Notice(level="error", text=str(fault), ticket=ticket))

    def _handle(self, command: AnyCommand) -> None:
        match command:
            case Submit(prompts=prompts):
                self._stream.append(prompts, self._conversation_tokens() or 0)
                self._tell_stream()
            case Pause():
                self._paused = True
                self._show(whole=True)
                self._set_status("paused")
            case Resume():
                self._paused = False
                if any(lane.running for lane in self._lanes):
                    self._set_status("racing")
            case Step():
                if self._paused:
                    self._step()
            case Rerun():
                self._cancel()
                self._stream.rewind()
                self._adopt_knobs()
                self._begin_run()
                self._tell_stream()
            case Cancel(ticket=ticket):
                running = any(lane.running for lane in self._lanes)
                cancelled = self._stream.cancel(running=running)
                self._cancel()
                self._in_conversation = self._in_conversation and not running
                self._tell_stream()
                text = "cancelled" if cancelled else "there was nothing to cancel"
                self._emit(Notice(level="info", text=text, ticket=ticket))
            case Focus(layer=layer):
                self._focus = layer
                for lane in self._lanes:
                    lane.focus = layer
            case SetBudget(budget=budget):
                self._want(msgspec.structs.replace(self._wanted, budget=budget))
            case SetImprovements():
                asked = {name: value for name, value in msgspec.structs.asdict(command).items() if value is not None}
                self._want(msgspec.structs.replace(self._wanted, **{k: v or None for k, v in asked.items()}))
            case SetEngines(engines=engines):
                self._want(msgspec.structs.replace(self._wanted, engines=engines))

    def _step(self) -> None:
        if self._stream.waiting and not any(lane.running for lane in self._lanes):
            self._start_round()
        for lane in self._lanes:
            while lane.running and not lane.advance(watched=True) and lane.next_s is not None:
                pass
        self._show(whole=True)

    def _show(self, *, whole: bool = False) -> None:
        for lane in self._lanes:
            if lane.running:
                lane.show(whole=whole)

    def _cancel(self) -> None:
        for lane in self._lanes:
            lane.cancel()

    def _want(self, wanted: WorkerConfig) -> None:
        """A kind of prefill that only an engine outside of the race knows is kept for when it comes back."""
        if any(wanted.prefill in known for known in PREFILLS.values()):
            check_knobs(msgspec.structs.replace(wanted, prefill=None))
        else:
            check_knobs(wanted)
        self._wanted = wanted

    def _conversation_tokens(self) -> int | None:
        """Of the present conversation, in the engine where it is longest; None between two."""
        return max(lane.conversation_tokens for lane in self._lanes) if self._in_conversation else None

    def _start_round(self) -> None:
        """The next prompt, in all lanes, from the same clock; or none, if it turns out not to fit."""
        taken = self._stream.take(self._conversation_tokens())
        if taken is None:
            self._tell_stream()
            return
        request, prompt, rendered = taken
        follow_up = prompt.follow_up
        clock_s = max(lane.clock_s for lane in self._lanes)
        if not follow_up:
            if self._adopt_knobs():
                self._announce()
            self._in_conversation = True
        for lane in self._lanes:
            lane.start_clock_at(clock_s)
        self._set_status("paused" if self._paused else "racing")
        turn = Turn(
            request=request,
            title=title_of(prompt),
            rendered=rendered,
            follow_up=follow_up,
            max_new_tokens=self._stream.new_tokens(prompt),
            prompts_total=len(self._stream),
            sampling={
                "temperature": self._config.temperature,
                "top_p": self._config.top_p,
                "seed": self._config.seed,
                "ignore_eos": self._config.ignore_eos,
            },
            ticket=prompt.ticket,
            text=text_of(prompt),
        )
        if rendered.cut_tokens:
            where = _CUT_WHERE[rendered.cut]
            text = f"prompt {request + 1} was too long: {counted(rendered.cut_tokens, 'token')} were cut {where}"
            self._emit(Notice(level="warning", text=text))
        if not follow_up:
            self._emit(
                Submitted(
                    clock_s=clock_s,
                    request=request,
                    title=turn.title,
                    text=rendered.text,
                    offsets=rendered.offsets,
                    prompt_tokens=len(rendered.token_ids),
                    prompts_total=turn.prompts_total,
                    ticket=turn.ticket,
                )
            )
        for lane in self._lanes:
            lane.submit(turn)

    def _adopt_knobs(self) -> bool:
        """Builds anew the lanes whose knobs have been changed; True if there were any."""
        if self._wanted == self._config:
            return False
        same_knobs = msgspec.structs.replace(self._wanted, engines=self._config.engines) == self._config
        self._config = self._wanted
        # What is not kept is let go first: a device may not hold the old pools and the new.
        self._lanes = [lane for lane in self._lanes if same_knobs and lane.id in self._config.engines]
        self._build_lanes()
        return True

    def _build_lanes(self) -> None:
        """One lane for each of the configuration's engines, in its order; lanes that are there already stay."""
        config = self._config
        kept = {lane.id: lane for lane in self._lanes}
        options = {
            "budget": config.budget,
            "alpha": config.alpha,
            "scoring": config.scoring,
            "anchors": config.anchors,
            "prefetch": config.prefetch,
            "resident": config.resident,
            "link": config.link,
            "device_memory_bytes": config.device_memory_bytes,
            "host_memory_bytes": config.host_memory_bytes,
            "disk_bytes": config.disk_bytes,
            "disk_folder": None if config.disk_folder is None else Path(config.disk_folder),
        }
        lanes = []
        for engine_id in config.engines:
            if engine_id in kept:
                lanes.append(kept[engine_id])
                continue
            engine, fault = None, None
            try:
                prefill = config.prefill if config.prefill in PREFILLS[engine_id] else None
                where = {"server": config.server} if engine_id == SERVER else {}
                engine = self._build(engine_id, self._model, prefill=prefill, **options, **where)
                self._link = engine.link_info or self._link
            except OutOfMemory as full:  # this lane shows it; the others race on
                fault = full
            lanes.append(
                Lane(engine_id, engine, self._model, self._emit, self._wall, observe=config.observe, fault=fault)
            )
        if not self._runs and fault is not None and all(lane.engine is None for lane in lanes):
            raise fault
        self._lanes = lanes
        for lane in lanes:
            lane.focus = self._focus

    def _begin_run(self) -> None:
        self._runs += 1
        self._wall_start = self._wall()
        self._status = ""
        self._in_conversation = False
        for lane in self._lanes:
            lane.start_run()
        self._renew_links()
        self._announce()
        if self._paused:
            self._set_status("paused")

    def _renew_links(self) -> None:
        """A modelled link's rate comes from this machine's memory, which may have been measured while it was busy."""
        if links := [lane.link for lane in self._lanes if lane.link is not None]:
            from engines.link import renew

            renew(links)
            self._link = links[0].info

    def _announce(self) -> None:
        model, config = self._model, self._config
        self._emit(
            RunStarted(
                model=model.name,
                dtype=str(model.dtype).removeprefix("torch."),
                device=str(model.device),
                device_is_stand_in=model.device.type == "cpu",
                link=self._link,
                engines=[
                    EngineInfo(
                        id=lane.id,
                        label=ENGINE_LABELS.get(lane.id, lane.id) if lane.engine is None else lane.engine.label,
                        knobs={} if lane.engine is None else lane.engine.knobs(),
                    )
                    for lane in self._lanes
                ],
                layers=model.layers,
                kv_heads=model.kv_heads,
                context_limit=model.context_limit,
                weights_bytes=model.weights_bytes,
                kv_bytes_per_token=model.kv_bytes_per_token,
                device_cap_bytes=config.device_memory_bytes,
                weights=model.weights,
            )
        )

    def _tell_stream(self) -> None:
        """What is in it has changed."""
        if not self._runs:
            return
        busy = self._stream.waiting or any(lane.running for lane in self._lanes)
        self._status = "paused" if self._paused else "racing" if busy else "idle"
        self._emit(Status(state=self._status, stream=self._stream.titles))

    def _set_status(self, state: str) -> None:
        if state != self._status:
            self._status = state
            self._emit(Status(state=state))

    def _emit(self, event: Event) -> None:
        run = f"{self._session}-{self._runs}" if self._runs else ""  # refused before the first run began
        self._out(msgspec.structs.replace(event, run=run, wall_s=self._wall() - self._wall_start))
