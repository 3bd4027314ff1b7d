"""A race that never ran: events as three engines would send them, deterministic, without torch or a model."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator

import numpy as np

from engines import events

LAYERS, KV_HEADS, BYTES_PER_TOKEN, WEIGHTS = 30, 3, 23_040, 269_060_000
MASS_BINS = 128
ANSWER = """The code word is lantern, mentioned in the second chapter, where the keeper writes it on the back of a
chart before the storm. She repeats it once more near the end: “lantern, and only lantern”, and asks the boy to remember
it when the light goes out. Nothing else in the document refers to it, although the third chapter describes the lamp
room at length, its brass and its smell of oil, and the keeper’s habit of counting the seconds between the flashes."""
FORGETFUL = """The code word is not given in the text. The keeper mentions a chart and a storm, and asks the boy to
remember something when the light goes out, but the document does not say what it is. It describes the lamp room
length, its brass and its smell of oil, and the habit of counting the seconds between the flashes, one after another."""
TITLES = ("The lighthouse keeper", "Minutes of the harbour board", "A recipe for marmalade", "The third letter home")


def pieces(text: str) -> list[str]:
    """Words as a tokenizer would cut them, the space before each."""
    return [" " + word if index else word for index, word in enumerate(text.split())]


def started(
    engines: tuple[str, ...] = ("vllm", "h2o", "infinigen"), budget: float = 0.3, cap: int | None = None
) -> events.RunStarted:
    knobs: dict[str, dict[str, str | float | int | bool | None]] = {
        "vllm": {"block": 16},
        "h2o": {"budget": budget, "recent": 0.5},
        "infinigen": {"alpha": 4.0, "budget": budget},
    }
    knobs |= {"h2o+": knobs["h2o"] | {"anchors": True}, "infinigen+": knobs["infinigen"] | {"predict": True}}
    return events.RunStarted(
        run="synthetic",
        model="smollm2-135m",
        dtype="bfloat16",
        device="cpu",
        device_is_stand_in=True,
        link=events.LinkInfo(
            profile="pcie4", measured=False, bytes_per_s=245e6, latency_s=1e-5, description="A100:PCIe4"
        ),
        engines=[
            events.EngineInfo(id=e, label=events.ENGINE_LABELS.get(e, e), knobs=knobs.get(e, {})) for e in engines
        ],
        layers=LAYERS,
        kv_heads=KV_HEADS,
        context_limit=8192,
        weights_bytes=WEIGHTS,
        kv_bytes_per_token=BYTES_PER_TOKEN,
        device_cap_bytes=cap,
    )


class Race:
    """One request in three engines; `events_of` yields one engine's events in the order of its clock."""

    def __init__(
        self,
        request: int = 0,
        title: str = TITLES[0],
        prompt_tokens: int = 3071,
        new_tokens: int = 96,
        start_s: float = 0.0,
        oom: str = "",
        follow_up: bool = False,
        budget: float = 0.3,
        text: str = "",
        total: int = 1,
    ) -> None:
        self.request, self.title, self.prompt_tokens, self.new_tokens = request, title, prompt_tokens, new_tokens
        self.start_s, self.oom, self.follow_up, self.budget, self.total = start_s, oom, follow_up, budget, total
        words = "It was on the night of the great storm that the keeper wrote a word on the back of the chart. " * 400
        self.text = text or words[: prompt_tokens * 5] + "\n\nQuestion: what is the code word?"

    def submitted(self) -> events.Submitted:
        size = len(self.text)
        return events.Submitted(
            run="synthetic",
            clock_s=self.start_s,
            request=self.request,
            title=self.title,
            text=self.text,
            offsets=[round((i + 1) * size / self.prompt_tokens) for i in range(self.prompt_tokens)],
            prompt_tokens=self.prompt_tokens,
            follow_up=self.follow_up,
            prompts_total=self.total,
        )

    def events_of(self, engine: str) -> Iterator[events.AnyEvent]:
        prefill_s, step_s, words = {
            "vllm": (2.1, 0.026, pieces(ANSWER)),
            "h2o": (2.6, 0.024, pieces(FORGETFUL)),
            "infinigen": (2.3, 0.081, pieces(ANSWER)),
        }[engine]
        random_ = random.Random(f"{engine}{self.request}")
        clock_s, n = self.start_s, self.prompt_tokens
        common = {"run": "synthetic", "engine": engine}
        moved = [0, 0]
        before: np.ndarray | None = None
        picture_at = transfer_at = clock_s
        rng = np.random.default_rng(self.request * 7 + len(engine))
        # Attention as it looks in models: sinks, a few spans that many layers read, layers with tastes of their own.
        size = n + self.new_tokens
        spans = np.repeat(rng.gamma(0.25, size=size // 24 + 1), 24)[:size] ** 1.5
        taste = np.repeat(rng.gamma(0.4, size=(LAYERS, size // 12 + 1)), 12, axis=1)[:, :size]
        depth = np.linspace(0.2, 1, LAYERS)[:, None]
        scores = (0.02 + spans * depth + 0.5 * taste * (1.1 - depth)) * rng.gamma(1.0, size=(LAYERS, size))
        scores[:, :4] += 30
        scores[:, -self.new_tokens :] += 0.5

        yield events.Status(**common, clock_s=clock_s, state="prefill", request=self.request)
        for layer in range(1, LAYERS + 1):
            clock_s += prefill_s / LAYERS
            yield events.Prefill(
                **common,
                clock_s=clock_s,
                request=self.request,
                tokens_done=n,
                tokens_total=n,
                layers_done=layer,
                layers_total=LAYERS,
            )
            yield self.memory(engine, clock_s, n * layer // LAYERS, scores=engine == "h2o")
            if engine == "infinigen":
                moved[1] += n * BYTES_PER_TOKEN // LAYERS
                yield events.Transfer(
                    **common,
                    clock_s=clock_s,
                    h2d_bytes=0,
                    d2h_bytes=n * BYTES_PER_TOKEN // LAYERS,
                    h2d_total_bytes=moved[0],
                    d2h_total_bytes=moved[1],
                    span_s=prefill_s / LAYERS,
                    busy_s=0.05,
                    hidden_s=0.04,
                    measured=False,
                )
            if engine == self.oom and layer == 3:
                yield events.Outcome(
                    **common,
                    clock_s=clock_s,
                    request=self.request,
                    outcome="device_oom",
                    prompt_tokens=n,
                    detail=f"out of device memory at {n:,} tokens: needs 633 MB for scores, cap 537 MB",
                )
                return
        first_s = clock_s
        last_transfer_s = clock_s
        pending = 0
        for index in range(self.new_tokens):
            if index:
                clock_s += step_s * random_.uniform(0.9, 1.1)
            n += 1
            if engine == "infinigen":
                pending += int(0.2 * n) * BYTES_PER_TOKEN
            token = words[index % len(words)]
            yield events.Token(
                **common,
                clock_s=clock_s,
                request=self.request,
                index=index,
                token_id=sum(map(ord, token)) * 7 + len(token),
                text=token,
                logprob=-0.2,
            )
            if clock_s >= picture_at:
                picture_at = clock_s + 0.1
                event, before = self.picture(engine, clock_s, n, scores, before, rng)
                yield event
                yield self.heads(engine, clock_s, n, scores, before, layer=n % LAYERS)
                yield self.memory(engine, clock_s, n)
            if clock_s >= transfer_at:
                transfer_at = clock_s + 0.1
                moved[0] += pending
                yield events.Transfer(
                    **common,
                    clock_s=clock_s,
                    h2d_bytes=pending,
                    d2h_bytes=0,
                    h2d_total_bytes=moved[0],
                    d2h_total_bytes=moved[1],
                    span_s=clock_s - last_transfer_s,
                    busy_s=0.09 if pending else 0.0,
                    hidden_s=0.05 if pending else 0.0,
                    measured=False,
                )
                last_transfer_s, pending = clock_s, 0
        tpot_s = (clock_s - first_s) / max(1, self.new_tokens - 1)
        yield events.Outcome(
            **common,
            clock_s=clock_s,
            request=self.request,
            outcome="ok",
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            ttft_s=first_s - self.start_s,
            tpot_s=tpot_s,
            decode_tok_s=1 / tpot_s,
            h2d_bytes=moved[0],
            d2h_bytes=moved[1],
        )

    def memory(self, engine: str, clock_s: float, n: int, scores: bool = False) -> events.Memory:
        kv = n * BYTES_PER_TOKEN
        device, host = {"weights": WEIGHTS, "kv": kv}, {}
        if engine == "h2o":
            device["kv"] = int(kv if scores else kv * self.budget)
            device["scores"] = 9 * n * n * 4 if scores else 0
        elif engine == "infinigen":
            device |= {"kv": 0, "staging": int(0.02 * kv) + 2_000_000, "partial keys": int(0.08 * kv)}
            host = {"kv": kv}
        total = sum(device.values())
        return events.Memory(
            run="synthetic",
            engine=engine,
            clock_s=clock_s,
            device_bytes=device,
            host_bytes=host,
            device_peak_bytes=total,
            host_peak_bytes=sum(host.values()),
            device_kv_peak_bytes=device["kv"],
            host_kv_peak_bytes=host.get("kv", 0),
            blocks_used=n // 16,
            blocks_free=512 - n // 16,
        )

    def picture(
        self,
        engine: str,
        clock_s: float,
        n: int,
        scores: np.ndarray,
        before: np.ndarray | None,
        rng: np.random.Generator,
    ) -> tuple[events.Cache, np.ndarray]:
        state, share = np.full((LAYERS, n), events.KvState.DEVICE, np.uint8), np.full((LAYERS, n), 31, np.uint8)
        now = scores[:, :n]
        if engine == "h2o":
            keep = int(self.budget * n / 2)
            threshold = np.partition(now[:, :-keep], -keep, axis=1)[:, -keep]
            gone = now < threshold[:, None]
            gone[:, -keep:] = False
            state[gone], share[gone] = events.KvState.EVICTED, 0
        elif engine == "infinigen":
            state[:], share[:] = events.KvState.HOST, 0
            noisy = now * rng.uniform(0.6, 1.4, size=now.shape)
            fetched = noisy >= np.quantile(noisy, 0.8, axis=1, keepdims=True)
            fetched[:, -48:] = True
            fetched[0] = True
            state[fetched], share[fetched] = events.KvState.FETCHED, 31
        cells = (state | share << 3).astype(np.uint8)
        delta = cells.copy()
        if before is not None:
            delta[:, : before.shape[1]] ^= before
        edges = np.arange(MASS_BINS) * n // MASS_BINS
        mass = np.add.reduceat(now / now.sum(axis=1, keepdims=True), edges, axis=1)
        log = np.clip((np.log10(np.maximum(mass, 1e-9)) + 6) / 6 * 255, 0, 255).astype(np.uint8)
        event = events.Cache(
            run="synthetic",
            engine=engine,
            clock_s=clock_s,
            request=self.request,
            tokens=n,
            layers=LAYERS,
            whole=before is None,
            states=events.deflate(delta.tobytes()),
            mass=events.deflate(log.tobytes()),
            mass_bins=MASS_BINS,
            fetched_tokens=float((state == events.KvState.FETCHED).sum() / LAYERS),
            evicted_tokens=float((state == events.KvState.EVICTED).sum() / LAYERS),
        )
        return event, cells

    def heads(
        self, engine: str, clock_s: float, n: int, scores: np.ndarray, cells: np.ndarray, layer: int
    ) -> events.Heads:
        """One layer head by head: each head with a third of the mass, the states those of the picture."""
        mass = scores[layer, :n] / scores[layer, :n].sum() / KV_HEADS
        log = np.clip((np.log10(np.maximum(mass, 1e-9)) + 6) / 6 * 255, 0, 255).astype(np.uint8)
        return events.Heads(
            run="synthetic",
            engine=engine,
            clock_s=clock_s,
            request=self.request,
            layer=layer,
            kv_heads=KV_HEADS,
            tokens=n,
            states=events.deflate(np.tile(cells[layer] & 7, KV_HEADS).tobytes()),
            mass=events.deflate(np.tile(log, KV_HEADS).tobytes()),
        )

    def merged(self, engines: tuple[str, ...] = ("vllm", "h2o", "infinigen")) -> Iterator[events.AnyEvent]:
        """All engines', the one furthest behind first: as the scheduler of a fair clock would."""
        return heapq.merge(*(self.events_of(engine) for engine in engines), key=lambda event: event.clock_s)


def whole_race(**options) -> list[events.AnyEvent]:
    """A complete run: start, one request, its end."""
    race = Race(**options)
    return [started(), events.Status(run="synthetic", state="racing"), race.submitted(), *race.merged()]
