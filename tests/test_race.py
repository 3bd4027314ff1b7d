import itertools

import pytest
from race_course import ANSWER, END, MODEL, TOKENIZER, Course

from engines.commands import (
    Cancel,
    Focus,
    Pause,
    Prompt,
    Rerun,
    Resume,
    SetBudget,
    SetEngines,
    SetImprovements,
    Step,
    Submit,
)
from engines.errors import BadRequest, DeviceOutOfMemory
from engines.events import Cache, Heads, Memory, Notice, Outcome, Prefill, RunStarted, Status, Submitted, Token


def test_every_engine_answers_every_prompt():
    course = Course(Prompt(text="one"), Prompt(text="two")).finish()
    for engine, request in itertools.product(["vllm", "h2o"], [0, 1]):
        tokens = course.of(Token, engine=engine, request=request)
        assert [t.token_id for t in tokens] == ANSWER
        assert "".join(t.text for t in tokens) == "a goat 🙂"
        assert [o.outcome for o in course.of(Outcome, engine=engine, request=request)] == ["ok"]
    assert course.of(RunStarted)[0].engines[1].label == "H2O"
    assert [s.state for s in course.of(Status, engine="")] == ["racing", "idle"]


def test_events_are_stamped():
    course = Course(Prompt(text="one")).finish()
    assert len({e.run for e in course.events}) == 1
    assert course.events[0].run
    assert all(e.wall_s >= 0 for e in course.events)
    assert [e.wall_s for e in course.events] == sorted(e.wall_s for e in course.events)
    for engine in ("vllm", "h2o"):
        clocks = [e.clock_s for e in course.events if e.engine == engine]
        assert clocks == sorted(clocks)
        assert clocks[0] == 0.0  # whatever the engine's own clock said


def test_the_engine_that_is_furthest_behind_goes_next():
    course = Course(
        Prompt(text="one"), engines=["vllm", "h2o", "infinigen"], steps={"vllm": 0.01, "h2o": 0.03, "infinigen": 0.002}
    )
    clocks = dict.fromkeys(course.built, 0.0)
    longest = 0.03
    for event in course.finish().of((Token, Prefill)):
        running = {
            e: c
            for e, c in clocks.items()
            if not any(o.engine == e for o in course.events[: course.events.index(event)] if isinstance(o, Outcome))
        }
        clocks[event.engine] = event.clock_s
        assert event.clock_s <= min(running.values()) + longest + 1e-9


def test_a_round_starts_at_one_clock_in_all_engines():
    course = Course(Prompt(text="one"), Prompt(text="two"), steps={"vllm": 0.01, "h2o": 0.05}).finish()
    slowest = max(e.clock_s for e in course.of(Outcome, request=0))
    second = course.of(Submitted, request=1)[0]
    assert second.clock_s == pytest.approx(slowest)
    for engine, step_s in (("vllm", 0.01), ("h2o", 0.05)):
        assert course.of(Prefill, engine=engine, request=1)[0].clock_s == pytest.approx(slowest + step_s)
    assert course.events.index(second) > course.events.index(course.of(Outcome, request=0)[-1])


def test_an_exception_in_one_engine_is_its_outcome_and_nobody_elses():
    course = Course(Prompt(text="one"), Prompt(text="two"))
    course.race.advance()
    course.built["h2o"].fault = ZeroDivisionError("by hand")
    course.finish()
    first = {o.engine: o for o in course.of(Outcome, request=0)}
    assert (first["h2o"].outcome, first["h2o"].detail) == ("error", "ZeroDivisionError: by hand")
    assert first["vllm"].outcome == "ok"
    assert [o.outcome for o in course.of(Outcome, request=1)] == ["ok", "ok"]  # a fresh start
    assert course.of(Status, engine="h2o", state="failed")


def test_out_of_device_memory_is_a_result_and_the_others_go_on():
    course = Course(Prompt(text="one"), Prompt(text="again", follow_up=True), Prompt(text="new"))
    course.built["h2o"].oom_at = 1
    while not course.of(Submitted, request=2):
        course.race.advance()
    course.built["h2o"].oom_at = None
    course.finish()
    assert [(o.request, o.outcome) for o in course.of(Outcome, engine="h2o")] == [
        (0, "device_oom"),
        (1, "device_oom"),
        (2, "ok"),
    ]
    assert "ended early" in course.of(Outcome, engine="h2o", request=1)[0].detail
    assert [o.outcome for o in course.of(Outcome, engine="vllm")] == ["ok"] * 3


def test_an_engine_that_does_not_fit_the_device_fails_alone():
    course = Course(Prompt(text="one"), unbuildable=["h2o"]).finish()
    outcomes = {o.engine: o for o in course.of(Outcome)}
    assert outcomes["h2o"].outcome == "device_oom"
    assert "weights" in outcomes["h2o"].detail
    assert outcomes["vllm"].outcome == "ok"


def test_when_no_engine_fits_there_is_no_race():
    with pytest.raises(DeviceOutOfMemory):
        Course(Prompt(text="one"), unbuildable=["vllm", "h2o"])


def test_a_follow_up_continues_each_engines_own_conversation():
    short = [*TOKENIZER.encode("yes"), END]  # this engine's model closes its turn itself
    course = Course(
        Prompt(text="one"), Prompt(text="which?", follow_up=True), answers={"vllm": short, "h2o": ANSWER}
    ).finish()
    tail = "<|im_end|>\n<|im_start|>user\nwhich?<|im_end|>\n<|im_start|>assistant\n"
    vllm, h2o = course.of(Submitted, request=1)
    assert (vllm.engine, vllm.text) == ("vllm", tail.removeprefix("<|im_end|>"))
    assert (h2o.engine, h2o.text) == ("h2o", tail)
    prompt = course.of(Submitted, request=0)[0].prompt_tokens
    assert vllm.first_position == prompt + len(short)
    assert h2o.first_position == prompt + len(ANSWER)
    assert vllm.offsets[-1] == len(vllm.text)
    decode = TOKENIZER.decode
    assert decode(course.built["vllm"].context[vllm.first_position :]).startswith(vllm.text)
    assert (
        decode(course.built["vllm"].context).count("<|im_end|>")
        == decode(course.built["h2o"].context).count("<|im_end|>") + 1
    )


def test_a_follow_up_that_outgrows_the_context_says_so():
    """And leaves the conversation as it was: something shorter can be asked."""
    too_long, short = Prompt(text="y" * 200, follow_up=True), Prompt(text="z", follow_up=True)
    course = Course(Prompt(text="x" * 400), too_long, short).finish()
    outcome = course.of(Outcome, request=1)[0]
    assert outcome.outcome == "error"
    assert "longer than the context of 512" in outcome.detail
    assert course.of(Outcome, request=2)[0].outcome == "ok"


def test_new_tokens_are_cut_to_what_the_context_has_room_for():
    course = Course(Prompt(text="x" * 450), max_new_tokens=10_000).finish()
    token_ids, limit, _ = course.built["vllm"].submitted[0]
    assert limit == 512 - len(token_ids) + 1


def test_pause_step_resume():
    course = Course(Prompt(text="one"))
    course.race.handle(Pause())
    assert not course.race.advance()
    for step in range(1, 5):
        course.race.handle(Step())
        for engine in ("vllm", "h2o"):
            assert len(course.of((Prefill, Token), engine=engine)) == step
        assert not course.race.advance()
    assert len(course.of(Memory, engine="h2o")) >= 4  # the picture follows every step
    course.race.handle(Resume())
    course.finish()
    assert [s.state for s in course.of(Status, engine="")] == ["paused", "racing", "idle"]
    assert len(course.of(Outcome)) == 2


def test_steps_without_a_pause_do_nothing():
    course = Course(Prompt(text="one"))
    course.race.handle(Step())
    assert not course.of(Token)
    assert not course.of(Submitted)


def test_cancel_ends_the_running_and_drops_the_queued():
    course = Course(Prompt(text="one"), Prompt(text="two"))
    for _ in range(6):
        course.race.advance()
    course.race.handle(Cancel())
    course.finish()
    assert [(o.request, o.outcome) for o in course.of(Outcome)] == [(0, "cancelled"), (0, "cancelled")]
    course.race.handle(Submit(prompts=[Prompt(text="and?", follow_up=True)]))
    course.finish()
    assert not course.of(Submitted, request=1)[0].follow_up  # nothing is left to follow
    assert [o.outcome for o in course.of(Outcome, request=1)] == ["ok", "ok"]


def test_a_cancel_is_answered_when_it_is_done():
    course = Course(Prompt(text="one"), Prompt(text="two"))
    course.race.advance()
    course.race.handle(Cancel(ticket="c1"))
    assert [s.stream for s in course.of(Status) if s.stream is not None] == [["one"]]
    outcome, notice = course.of(Outcome)[-1], course.of(Notice)[-1]
    assert course.events.index(outcome) < course.events.index(notice)
    assert (notice.level, notice.text, notice.ticket) == ("info", "cancelled", "c1")
    course.finish().race.handle(Cancel(ticket="c2"))
    assert (course.of(Notice)[-1].text, course.of(Notice)[-1].ticket) == ("there was nothing to cancel", "c2")


def test_nothing_cancelled_leaves_the_conversation_as_it_is():
    course = Course(Prompt(text="one")).finish()
    course.race.handle(Cancel())
    course.race.handle(Submit(prompts=[Prompt(text="more", follow_up=True)]))
    assert course.finish().of(Submitted, request=1)[0].follow_up


def test_what_is_queued_is_told_at_once():
    course = Course(Prompt(text="one"))
    course.race.advance()
    course.race.handle(Submit(prompts=[Prompt(text="two", title="Second"), Prompt(text="three")]))
    told = course.of(Status)[-1]
    assert (told.state, told.engine, told.stream) == ("racing", "", ["one", "Second", "three"])
    assert not course.of(Submitted, request=1)


def rerun_titles(course):
    course.race.handle(Rerun())
    run = course.of(RunStarted)[-1].run
    course.finish()
    again = [e for e in course.events if e.run == run]
    submitted = {e.request: e.title for e in again if isinstance(e, Submitted)}
    assert list(submitted) == list(range(len(submitted)))
    assert next(e.stream for e in again if isinstance(e, Status) and e.stream is not None) == list(submitted.values())
    return list(submitted.values())


def test_a_rerun_is_of_the_running_conversation_and_what_came_with_it():
    course = Course(Prompt(text="one"), Prompt(text="two")).finish()
    course.race.handle(Submit(prompts=[Prompt(text="more", follow_up=True)]))
    assert rerun_titles(course.finish()) == ["one", "two", "more"]
    course.race.handle(Submit(prompts=[Prompt(text="new")]))
    course.finish().race.handle(Submit(prompts=[Prompt(text="and", follow_up=True)]))
    assert rerun_titles(course.finish()) == ["new", "and"]
    assert rerun_titles(course) == ["new", "and"]


def test_a_rerun_keeps_what_waits():
    course = Course(Prompt(text="one"), Prompt(text="two"))
    course.race.advance()
    course.race.handle(Submit(prompts=[Prompt(text="new")]))
    assert rerun_titles(course) == ["one", "two", "new"]


def test_a_rerun_leaves_out_what_was_cancelled():
    course = Course(Prompt(text="one")).finish()
    course.race.handle(Submit(prompts=[Prompt(text="new"), Prompt(text="dropped")]))
    course.race.advance()
    course.race.handle(Cancel())
    assert rerun_titles(course) == ["one"]
    course.race.handle(Submit(prompts=[Prompt(text="more", follow_up=True)]))
    course.race.advance()
    course.race.handle(Cancel())
    assert rerun_titles(course) == ["one"]


def test_a_rerun_of_nothing_but_what_was_cancelled_runs_it_again():
    course = Course(Prompt(text="one"))
    course.race.advance()
    course.race.handle(Cancel())
    assert rerun_titles(course) == ["one"]
    assert {o.outcome for o in course.of(Outcome)[-2:]} == {"ok"}


def test_rerun_is_a_new_run_with_fresh_caches():
    course = Course(Prompt(text="one"), Prompt(text="two")).finish()
    resets = course.built["vllm"].resets
    course.race.handle(Rerun())
    course.finish()
    first, second = course.of(RunStarted)
    assert first.run != second.run
    assert course.built["vllm"].resets > resets
    again = [e for e in course.events if e.run == second.run]
    assert [e.request for e in again if isinstance(e, Submitted)] == [0, 1]
    assert min(e.clock_s for e in again if e.engine) == 0.0
    assert again[0].wall_s <= again[-1].wall_s < course.events[-1].wall_s + 1e-9


def test_submitted_prompts_join_the_end_of_the_stream():
    course = Course(Prompt(text="one")).finish()
    course.race.handle(Submit(prompts=[Prompt(text="two"), Prompt(text="three")]))
    course.finish()
    assert [s.request for s in course.of(Submitted)] == [0, 1, 2]
    assert course.of(Submitted)[-1].prompts_total == 3


def test_a_faulty_submission_is_a_notice_and_adds_nothing():
    course = Course(Prompt(text="one")).finish()
    course.race.handle(Submit(prompts=[Prompt(text="two"), Prompt(text=" ")]))
    course.race.handle(Submit(prompts=[Prompt(text="z" * 5000)]))
    course.finish()
    notices = [n.text for n in course.of(Notice, level="error")]
    assert notices[0] == "prompt 3: the prompt is empty"
    assert "more than the context of 512" in notices[1]
    assert len(course.of(Submitted)) == 1


def test_a_budget_waits_for_the_next_conversation():
    course = Course(Prompt(text="one"), Prompt(text="more", follow_up=True), Prompt(text="two"))
    course.race.advance()
    course.race.handle(SetBudget(budget=0.1))
    while not course.of(Submitted, request=1):
        course.race.advance()
    assert course.budgets == [("vllm", 0.3), ("h2o", 0.3)]
    course.finish()
    assert course.budgets[2:] == [("vllm", 0.1), ("h2o", 0.1)]
    first, second = course.of(RunStarted)
    assert first.run == second.run
    assert course.events.index(second) < course.events.index(course.of(Submitted, request=2)[0])
    start = course.of(Submitted, request=2)[0].clock_s
    assert start == pytest.approx(max(o.clock_s for o in course.of(Outcome, request=1)))
    course.race.handle(SetBudget(budget=1.5))
    assert "budget" in course.of(Notice)[-1].text


def test_engines_come_and_go_in_the_wanted_order():
    course = Course(Prompt(text="one"))
    course.race.handle(SetEngines(engines=["infinigen", "vllm"]))
    course.race.handle(Rerun())
    course.finish()
    assert [e.id for e in course.of(RunStarted)[-1].engines] == ["infinigen", "vllm"]
    assert [b[0] for b in course.budgets] == ["vllm", "h2o", "infinigen"]  # what stays is not built again
    assert {o.engine for o in course.of(Outcome)} == {"infinigen", "vllm"}
    course.race.handle(SetEngines(engines=["vllm", "gpt"]))
    assert 'unknown engine "gpt"' in course.of(Notice)[-1].text


def test_pictures_are_at_most_ten_a_second_and_always_there_at_the_end():
    seconds = itertools.count(step=0.002)
    course = Course(
        Prompt(text="one"), answers={"vllm": ANSWER * 40}, engines=["vllm"], wall=lambda: next(seconds)
    ).finish()
    tokens, pictures, memories = course.of(Token), course.of(Cache), course.of(Memory)
    spent_s = course.events[-1].wall_s
    assert len(tokens) == len(ANSWER) * 40 or len(tokens) == 128
    assert 3 < len(pictures) <= spent_s * 10 + 2
    assert len(memories) == len(pictures)
    outcome = course.events.index(course.of(Outcome)[0])
    assert isinstance(course.events[outcome - 1], (Cache, Heads))
    assert course.of(Cache)[0].whole
    assert not any(p.whole for p in pictures[1:])


def test_without_an_observer_no_picture_is_made():
    assert not Course(Prompt(text="one"), observe=False).finish().of(Cache)


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"engines": ["vllm", "vllm"]}, "named twice"),
        ({"engines": ["tgi"]}, "known are vllm, h2o, h2o\\+, infinigen, infinigen\\+, hybrid"),
        ({"engines": []}, "no engine"),
        ({"budget": 0.0}, "budget"),
        ({"budget": float("nan")}, "budget"),
        ({"engines": ["vllm"], "prefill": "eager"}, "prefill"),
        ({"max_new_tokens": 0}, "new tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top-p"),
        ({"top_p": 1.1}, "top-p"),
        ({"resident": 0.0}, "resident"),
        ({"resident": float("nan")}, "resident"),
        ({"disk_bytes": 1}, "--host-memory"),
        ({"disk_folder": ""}, "no folder"),
    ],
)
def test_knobs_out_of_range_are_refused(knobs, said):
    with pytest.raises(BadRequest, match=said):
        Course(Prompt(text="one"), **knobs)


def test_engines_are_built_with_what_was_configured(tmp_path):
    given = {"resident": 0.5, "disk_bytes": 7, "host_memory_bytes": 5, "prefetch": "predictive", "anchors": 0.2}
    built = Course(Prompt(text="one"), disk_folder=str(tmp_path), **given).options["h2o"]
    assert built == built | given | {"disk_folder": tmp_path}


def test_a_stream_cannot_begin_with_a_follow_up():
    with pytest.raises(BadRequest, match="nothing comes before"):
        Course(Prompt(text="one", follow_up=True))


def test_truncation_leaves_room_for_the_answer():
    course = Course(Prompt(text="the light " * 500), truncate="middle", max_new_tokens=100).finish()
    token_ids, limit, _ = course.built["vllm"].submitted[0]
    assert len(token_ids) <= 412
    assert limit == 100
    assert "tokens were cut out of its middle" in course.of(Notice)[0].text


def test_a_kind_of_prefill_is_for_the_engines_that_have_it():
    course = Course(Prompt(text="one"), engines=["vllm", "h2o", "infinigen"], prefill="eager")
    assert course.prefills == {"vllm": None, "h2o": "eager", "infinigen": "eager"}


def test_what_stands_still_is_seen_in_every_layer() -> None:
    course = Course(Prompt(text="the light")).finish()
    for engine in ("vllm", "h2o"):
        assert {event.layer for event in course.of(Heads, engine=engine)} == set(range(MODEL.layers))


def test_the_layer_in_focus_comes_every_other_time() -> None:
    times = itertools.count(0, 0.3)
    course = Course(Prompt(text="the light"), wall=lambda: next(times))
    course.race.handle(Focus(layer=1))
    course.finish()
    seen = [event.layer for event in course.of(Heads, engine="vllm")][: -MODEL.layers]
    assert seen[::2] == [1] * len(seen[::2])
    assert len(seen) >= 3


def test_an_improvement_holds_from_the_next_run_on_and_can_be_taken_back() -> None:
    given = []
    course = Course(Prompt(text="the light"))
    build = course.race._build

    def noting(engine_id, model, **options):
        given.append((engine_id, options["anchors"], options["scoring"]))
        return build(engine_id, model, **options)

    course.race._build = noting
    course.race.handle(SetImprovements(anchors=0.4, scoring="flash"))
    assert not given
    course.race.handle(Rerun())
    assert given == [("vllm", 0.4, "flash"), ("h2o", 0.4, "flash")]
    course.race.handle(SetImprovements(anchors=0.0))
    course.race.handle(Rerun())
    assert given[2:] == [("vllm", None, "flash"), ("h2o", None, "flash")]
    course.race.handle(SetImprovements(prefetch="telepathy"))
    assert course.of(Notice)[-1].level == "error"
