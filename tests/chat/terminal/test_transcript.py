"""Conversations in files."""

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatbot.chat.conversation import Exchange
from chatbot.chat.terminal import transcript
from chatbot.chat.terminal.transcript import load, save
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.errors import UserError
from chatbot.inference.ratings import rating_of

TURNS = [("你好", "你好呀"), ('a "b"', "c"), ("你几岁", "三岁"), ("再见", "再见啦")]


def turns_of(exchanges: Sequence[Exchange]) -> list[tuple[str, str]]:
    return [(exchange.question, exchange.reply) for exchange in exchanges]


@pytest.mark.parametrize("bad", [[0], [1, 2], [3]])
def test_training_reads_what_was_saved_but_no_reply_that_was_rated_bad(tmp_path: Path, bad: list[int]) -> None:
    path = tmp_path / "chat.jsonl"
    exchanges = [
        Exchange(*turn, rated=rating_of(*turn, (), "bad" if number in bad else "good", "weibo"), model="weibo")
        for number, turn in enumerate(TURNS)
    ]
    save(path, exchanges)
    learned = [turn for number, turn in enumerate(TURNS) if number not in bad]
    assert [pair[:2] for pair in read(find_sources([str(path)])[0], Report())] == learned
    assert load(path) == exchanges


@pytest.mark.parametrize(
    "content",
    [
        b"\n \n",
        b"\xff\xfe\x00",
        b'{"messages": []}\n{',
        b'{"question": "a", "rejected": 1}',
        b'{"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]}',
        b'{"messages": ["a", "b"]}',
        b"x" * 101,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_file_that_holds_no_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    if len(content) == 101:
        monkeypatch.setattr(transcript, "LARGEST_FILE", 100)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=r"holds no conversation; give a file as /save writes it$"):
        load(tmp_path / "file")


def test_overwrite_keeps_the_mode_and_touches_no_other_file(tmp_path: Path) -> None:
    path, other = tmp_path / "chat.jsonl", tmp_path / "chat.jsonl.part"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o600)
    other.write_text("of the user", encoding="utf-8")
    save(path, [Exchange(*TURNS[0])], overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert turns_of(load(path)) == TURNS[:1]
    assert other.read_text(encoding="utf-8") == "of the user"
    assert len(list(tmp_path.iterdir())) == 2
