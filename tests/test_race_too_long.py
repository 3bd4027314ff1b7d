"""Prompts that the context has no room for."""

import pytest
from msgspec.structs import replace
from race_course import ANSWER, Course

from engines.commands import (
    Cancel,
    Prompt,
    Submit,
)
from engines.errors import BadRequest
from engines.events import Notice, Outcome, Status, Submitted, Token, TooLong


def test_a_prompt_that_is_too_long_comes_back_and_can_be_sent_again_with_a_cut():
    course = Course(max_new_tokens=100).finish()
    asked = Prompt(document="the light " * 500, text="which word?", title="Moby", ticket="t1")
    course.race.handle(Submit(prompts=[asked]))
    assert not course.race.advance()  # it is not in the stream
    refused = course.of(TooLong)[0]
    assert (refused.ticket, refused.title, refused.room_tokens) == ("t1", "Moby", 412)
    assert refused.tokens > 1500
    assert not course.of(Notice)
    course.race.handle(Submit(prompts=[replace(asked, cut="start")]))
    course.finish()
    submitted = course.of(Submitted)[0]
    assert (submitted.request, submitted.ticket) == (0, "t1")
    assert 400 < submitted.prompt_tokens <= 412
    assert submitted.text.startswith("<|im_start|>user\n[…]\n")
    assert "the light \n\nwhich word?<|im_end|>" in submitted.text
    assert course.of(Notice)[0].text.endswith("tokens were cut off its start")
    assert {o.outcome for o in course.of(Outcome)} == {"ok"}


def test_a_first_prompt_that_is_too_long_is_asked_about_before_the_run_begins():
    course = Course(Prompt(text="z" * 5000, ticket="t1")).finish()
    assert isinstance(course.events[0], TooLong)
    assert course.of(Status)[-1].state == "idle"


def test_without_a_ticket_a_prompt_that_is_too_long_is_one_line():
    with pytest.raises(BadRequest, match=r"more than the context of 512; .*--truncate start, middle or end"):
        Course(Prompt(text="z" * 5000))


def test_a_follow_up_has_the_room_that_the_fullest_engine_has_left():
    answers = {"vllm": ANSWER, "h2o": ANSWER * 10}
    course = Course(Prompt(text="x" * 200), answers=answers, max_new_tokens=100).finish()
    used = max(len(engine.context) for engine in course.built.values())
    asked = Prompt(document="y" * 400, text="why?", follow_up=True, ticket="t1", max_new_tokens=20)
    course.race.handle(Submit(prompts=[asked]))
    course.finish()
    refused = course.of(TooLong)[0]
    assert refused.room_tokens == 512 - used - 20
    assert len(course.of(Submitted)) == 1
    course.race.handle(Submit(prompts=[replace(asked, cut="end")]))
    course.finish()
    assert {o.outcome for o in course.of(Outcome, request=1)} == {"ok"}
    for submitted in course.of(Submitted, request=1):
        assert submitted.ticket == "t1"
        assert refused.room_tokens - 4 <= submitted.prompt_tokens <= refused.room_tokens
        assert "y\n[…]\n\nwhy?" in submitted.text
    new_tokens = {len(course.of(Token, engine=engine, request=1)) for engine in ("vllm", "h2o")}
    assert new_tokens == {min(len(ANSWER), 20), 20}


def test_a_follow_up_that_no_conversation_has_room_for_does_not_wait_for_its_turn():
    course = Course(Prompt(text="one"))
    course.race.advance()
    course.race.handle(Submit(prompts=[Prompt(text="y" * 5000, follow_up=True, ticket="t1")]))
    assert course.of(TooLong)[0].room_tokens < 512 - 128
    course.finish()
    assert len(course.of(Submitted)) == 1


def test_a_follow_up_in_a_file_is_cut_when_the_command_line_says_so():
    prompts = Prompt(text="x" * 400), Prompt(text="y" * 400, follow_up=True)
    course = Course(*prompts, truncate="end", max_new_tokens=20).finish()
    assert {o.outcome for o in course.of(Outcome)} == {"ok"}


def test_a_conversation_that_fills_the_context_is_said_with_the_prompt_that_comes_back():
    course = Course(Prompt(text="x" * 440)).finish()
    asked = Prompt(text="why " * 50, follow_up=True, ticket="t1", cut="middle")
    course.race.handle(Submit(prompts=[asked]))
    course.finish()
    notice = course.of(Notice, level="error")[0]
    assert notice.ticket == "t1"
    assert "cannot be cut" in notice.text
    course.race.handle(Submit(prompts=[Prompt(text="z", follow_up=True)]))
    assert {o.outcome for o in course.finish().of(Outcome, request=1)} == {"ok"}


def test_a_follow_up_to_nothing_that_is_too_long_ends_nothing():
    course = Course(Prompt(text="one"), Prompt(text="y" * 5000, follow_up=True), Prompt(text="z", follow_up=True))
    course.race.advance()
    course.race.handle(Cancel())
    course.race.handle(Submit(prompts=[Prompt(text="y" * 5000, follow_up=True), Prompt(text="last")]))
    course.finish()
    assert "more than the context of 512" in course.of(Notice, level="error")[0].text
    assert course.of(Submitted)[-1].title == "last"
