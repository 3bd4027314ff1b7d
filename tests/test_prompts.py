import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import commands
from engines.commands import Prompt
from engines.errors import BadRequest
from kvtui import piped, prompts
from kvtui.prompts import built_in_prompts, check, decode_text, parse_jsonl, read_prompt_file


def test_a_text_file_is_one_prompt(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes("\ufeffline one\r\nline two 🙂\n".encode())
    assert read_prompt_file(path) == [Prompt(text="line one\nline two 🙂", title="notes.txt")]


def test_a_jsonl_file_is_a_stream(tmp_path):
    path = tmp_path / "stream.JSONL"
    path.write_text(
        '{"prompt": "one", "title": "T", "max_new_tokens": 5}\n\n'
        '{"follow_up": true, "messages": '
        '[{"role": "system", "content": ""}, {"role": "user", "content": "two\u2028three"}]}'
    )
    messages = [{"role": "system", "content": ""}, {"role": "user", "content": "two\u2028three"}]
    assert read_prompt_file(path) == [
        Prompt(text="one", title="T", max_new_tokens=5),
        Prompt(messages=messages, follow_up=True),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('"text"', "expected an object"),
        ("{}", "expected an object"),
        ('{"prompt": "a", "messages": []}', "expected an object"),
        ('{"prompt": ""}', "not empty"),
        ('{"prompt": 5}', "not empty"),
        ('{"prompt": "a", "max_tokens": 5}', 'unknown key "max_tokens"; known are follow_up'),
        ('{"prompt": "a", "follow_up": 1}', "true or false"),
        ('{"prompt": "a", "title": null}', "title"),
        ('{"prompt": "a", "max_new_tokens": 0}', "above 0"),
        ('{"prompt": "a", "max_new_tokens": true}', "above 0"),
        ('{"prompt": "a", "max_new_tokens": 99999999999999999999}', "above 0"),
        ('{"prompt": "\\ud800"}', "surrogate"),
        ('{"messages": []}', '"messages" is a list'),
        ('{"messages": ["a"]}', '"messages" is a list'),
        ('{"messages": [{"role": "tool", "content": "a"}]}', '"messages" is a list'),
        ('{"messages": [{"role": "user", "content": ["a"]}]}', '"messages" is a list'),
        ('{"messages": [{"role": "user", "content": " "}]}', "every message is empty"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
            "nothing to answer",
        ),
    ],
)
def test_a_faulty_line_is_named_by_its_number(line, said):
    with pytest.raises(BadRequest) as caught:
        parse_jsonl('{"prompt": "fine"}\n\n' + line, "stream.jsonl")
    assert str(caught.value).startswith("stream.jsonl, line 3: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stream_cannot_begin_with_a_follow_up():
    with pytest.raises(BadRequest, match="line 1: a follow-up needs a prompt before it"):
        parse_jsonl('{"prompt": "a", "follow_up": true}', "s.jsonl")


def test_files_that_are_no_text(tmp_path):
    for content, said in [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"GGUF\0\0\1", "binary"),
        (b"caf\xe9", "not UTF-8"),
    ]:
        path = tmp_path / "file.txt"
        path.write_bytes(content)
        with pytest.raises(BadRequest, match=said):
            read_prompt_file(path)
    with pytest.raises(BadRequest, match=r"cannot read .*: No such file"):
        read_prompt_file(tmp_path / "none")
    with pytest.raises(BadRequest, match="is not a file"):
        read_prompt_file(tmp_path)


def test_a_jsonl_file_of_blank_lines_is_empty(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text("\n \n")
    with pytest.raises(BadRequest, match="empty"):
        read_prompt_file(path)


def test_checks_of_single_prompts():
    assert check(Prompt(text="a")).text == "a"
    with pytest.raises(BadRequest, match="empty"):
        check(Prompt(text=" \n"))
    with pytest.raises(BadRequest, match="UTF-8"):
        check(Prompt(text="caf\udce9"))
    with pytest.raises(BadRequest, match="empty"):
        decode_text(b"", "stdin")


def test_the_built_in_stream_plants_a_fact_and_asks_for_it():
    first, second, *rest = built_in_prompts()
    paragraphs = first.text.split("\n\n")
    assert "marigold" in paragraphs[2]  # the document's second, after the request to read it
    assert sum("marigold" in p for p in paragraphs) == 1
    assert second.follow_up
    assert "code word" in second.text
    assert all(p.title for p in [first, second, *rest])
    assert {p.max_new_tokens for p in built_in_prompts(7)} == {7}


def test_old_line_ends_are_line_ends() -> None:
    assert decode_text(b"one\rtwo\r\nthree\n", "a file") == "one\ntwo\nthree"


@pytest.mark.parametrize("path", ["/dev/zero", "/"])
def test_what_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(BadRequest, match=f"^{path} is not a file|^cannot read {path}"):
        prompts.read_prompt_file(Path(path))


def test_a_pipe_that_nobody_writes_to_does_not_hold_up_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRequest, match="pipe is not a file"):
        prompts.read_text(tmp_path / "pipe")


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """A named pipe into which somebody writes these bytes."""
    writers: list[threading.Thread] = []

    def make(raw: bytes) -> Path:
        path = tmp_path / "pipe"
        os.mkfifo(path)

        def write() -> None:
            with contextlib.suppress(BrokenPipeError), path.open("wb") as file:
                file.write(raw)

        writers.append(threading.Thread(target=write))
        writers[-1].start()
        return path

    yield make
    for writer in writers:
        writer.join(10)


def test_a_pipe_is_read_to_its_end(pipe: Callable[[bytes], Path]) -> None:
    text = "a line of words\n" * 10_000  # more than a pipe holds
    (prompt,) = prompts.read_prompt_file(pipe(text.encode()))
    assert prompt == Prompt(text=text.removesuffix("\n"), title="pipe")


def test_a_pipe_without_a_writer_is_empty_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piped, "WRITER_WAIT_S", 0.1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRequest, match="pipe is empty"):
        prompts.read_prompt_file(tmp_path / "pipe")


def test_the_number_that_a_shell_gives_a_pipe_is_no_title() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"words")
    os.close(writer)
    try:
        assert prompts.read_prompt_file(Path(f"/dev/fd/{reader}")) == [Prompt(text="words")]
    finally:
        os.close(reader)


def test_a_pipe_without_an_end_is_refused(pipe: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LARGEST_BYTES", 100_000)
    with pytest.raises(BadRequest, match="pipe has more than the 100 kB that a document may have"):
        prompts.read_prompt_file(pipe(b"y\n" * 1_000_000))


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LARGEST_BYTES", 9)
    (tmp_path / "a.txt").write_text("ten bytes.")
    with pytest.raises(BadRequest, match="has 10 B: more than the 9 B that a document may have"):
        prompts.read_text(tmp_path / "a.txt")


def test_a_name_that_is_not_utf_8_can_be_sent_to_the_worker(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.txt")
    path.write_text("text")
    (prompt,) = prompts.read_prompt_file(path)
    assert commands.encode(commands.Submit(prompts=[prompt]))
