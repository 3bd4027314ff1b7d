"""What no run can have sent is refused, field by field, also where it is well-formed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engines import events
from kvtui.plausible import check
from kvtui.state import RunState
from tests.synthetic import started, whole_race
from tests.test_instruments import GPU, HOST

RACE = whole_race(prompt_tokens=40, new_tokens=6)
MEMORY = next(event for event in RACE if isinstance(event, events.Memory))
TRANSFER = next(event for event in RACE if isinstance(event, events.Transfer))
PREFILL = next(event for event in RACE if isinstance(event, events.Prefill))
OUTCOME = next(event for event in RACE if isinstance(event, events.Outcome))
LOAD = events.ServerLoad(engine="vllm-server", kv_usage=0.5, prefix_hit_share=1.0)
LABEL = events.EngineInfo(id="h2o", label="x" * 48, knobs={"budget": 1.0, "alpha": 4.0})


def test_what_a_race_says_can_be() -> None:
    for event in [*RACE, started(), replace(started(), engines=[LABEL]), LOAD, replace(HOST, gpus=[GPU] * 64)]:
        check(event)


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        (MEMORY, "waste", 1.1),
        (MEMORY, "device_bytes", {"kv": (1 << 53) - 1}),
        (TRANSFER, "hit_rate", 1e15),
        (LOAD, "kv_usage", 1e15),
        (LOAD, "kv_usage_peak", 1.5),
        (LOAD, "prefix_hit_share", 1e9),
        (events.Loading(stage="x"), "fraction", 2.0),
        (HOST, "worker_cpu_percent", 1e15),
        (HOST, "worker_page_faults_per_s", 1e12),
        (HOST, "gpus", [GPU] * 65),
        (GPU, "busy_percent", 1e15),
        (GPU, "temperature_c", 1e8),
        (GPU, "power_w", 1e15),
        (GPU, "pcie_rx_bytes_per_s", 1 << 50),
        (OUTCOME, "decode_tok_s", 1e9),
        (OUTCOME, "tpot_s", -1000.0),
        (PREFILL, "tokens_total", 0),
        (PREFILL, "layers_total", 0),
        (started(), "engines", [replace(LABEL, label="W" * 49)]),
        (started(), "engines", [replace(LABEL, knobs={"budget": 1e300})]),
        (started(), "engines", [replace(LABEL, knobs={"budget": float("nan")})]),
        (started(), "engines", [replace(LABEL, knobs={"alpha": float("inf")})]),
        (started(), "link", replace(started().link, bytes_per_s=1e15)),
    ],
)
def test_what_cannot_be_is_refused(event: events.AnyEvent | events.Gpu, field: str, value: object) -> None:
    changed = replace(event, **{field: value})
    with pytest.raises(ValueError, match="cannot be"):
        check(replace(HOST, gpus=[changed]) if isinstance(changed, events.Gpu) else changed)


def test_a_clock_that_goes_backwards_makes_no_negative_time_and_no_endless_speed() -> None:
    state = RunState()
    state.apply_all([started(), *(e for e in RACE if isinstance(e, events.Submitted))])
    for index, clock_s in enumerate((9e6, 1e6, 0.0, 5e6)):
        state.apply(
            events.Token(engine="h2o", request=0, index=index, token_id=1, text="x", logprob=0.0, clock_s=clock_s)
        )
        request = state.engines["h2o"].requests[0]
        assert request.ttft_s is not None
        assert request.ttft_s >= 0
        assert (request.tpot_s or 0.0) >= 0
        assert request.tokens_per_s is None
