"""Conversations in files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from chatbot.chat.conversation import Exchange
from chatbot.chat.ratings import rating_of
from chatbot.chat.terminal import transcript
from chatbot.chat.terminal.transcript import load, save
from chatbot.corpus.reading.files.sources import find_sources
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

TURNS = [("你好", "你好呀"), ('a "b"', "c"), ("你几岁", "三岁"), ("再见", "再见啦")]


def turns_of(exchanges: Sequence[Exchange]) -> list[tuple[str, str]]:
    return [(exchange.question, exchange.reply) for exchange in exchanges]


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.txt"])
def test_training_reads_what_was_saved(tmp_path: Path, name: str) -> None:
    save(tmp_path / name, [Exchange(*turn) for turn in TURNS])
    assert turns_of(load(tmp_path / name)) == TURNS
    assert [pair[:2] for pair in read(find_sources([str(tmp_path / name)])[0], Report())] == TURNS


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.txt"])
@pytest.mark.parametrize("bad", [[0], [1, 2], [3]])
def test_training_reads_no_reply_that_was_rated_bad(tmp_path: Path, name: str, bad: list[int]) -> None:
    exchanges = [
        Exchange(*turn, rated=rating_of(*turn, (), "bad" if number in bad else "good", "weibo"), model="weibo")
        for number, turn in enumerate(TURNS)
    ]
    learned = [turn for number, turn in enumerate(TURNS) if number not in bad]
    assert save(tmp_path / name, exchanges) == (len(TURNS) if name == "chat.jsonl" else len(learned))
    assert [pair[:2] for pair in read(find_sources([str(tmp_path / name)])[0], Report())] == learned
    if name == "chat.jsonl":
        assert load(tmp_path / name) == exchanges


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        (b'\xef\xbb\xbf["a", "b", "c", "d"]', [("a", "b"), ("c", "d")]),
        (b'{"question": "c", "answer": "d", "history": [["a", "b"]]}\r\n', [("a", "b"), ("c", "d")]),
        (b'{"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "a"}, ', None),
        (b"a\r\nb\r\n\r\nc\nd", [("a", "b"), ("c", "d")]),
        (b'["\\ud800", "b"]', [("?", "b")]),
    ],
)
def test_shapes_that_are_loaded(tmp_path: Path, content: bytes, turns: list[tuple[str, str]] | None) -> None:
    if turns is None:
        content, turns = content + b'{"role": "assistant", "content": "b"}]}', [("a", "b")]
    (tmp_path / "file").write_bytes(content)
    assert turns_of(load(tmp_path / "file")) == turns


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "empty"),
        (b"a\nb\nc", "a question without a reply"),
        (b"\xff\xfe\x00", "not UTF-8 at byte 0"),
        (b'["a", "b"]\n{', "line 2: not JSON"),
        (b"[" * 100_000, "line 1: not JSON"),
        (b'["a"]', "line 1: no questions"),
        (b'["a", 1]', "line 1: no questions"),
        (b"[]", "line 1: no questions"),
        (b'{"question": "a"}', "line 1: no questions"),
        (b'{"question": "a", "answer": "b", "history": "c"}', "line 1: no questions"),
        (
            b'{"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]}',
            "line 1: no questions",
        ),
        (b'{"messages": ["a", "b"]}', "line 1: no questions"),
        (b"x" * 101, "larger than 0 MiB"),
    ],
)
def test_file_that_holds_no_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    if len(content) == 101:
        monkeypatch.setattr(transcript, "LARGEST_FILE", 100)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError) as raised:
        load(tmp_path / "file")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
