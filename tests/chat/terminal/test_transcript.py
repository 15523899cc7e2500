"""Conversations in files."""

import json
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
from tests.chat.terminal.typed import Line, Printed, printed

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


def test_saved_conversation_is_continued(capsys: Printed, work_dir: Path) -> None:
    name = "chat.jsonl"
    lines: list[Line] = ["/save x.jsonl", "a", "b", f"/save {name}", f"/save {name}", "c", f"/overwrite {name}"]
    _, err = printed(capsys, [*lines, "/save", "/save .", "/overwrite no/x.jsonl", "/load none", "/load ."], turns=2)
    assert err[:6] == [
        "error: x.jsonl: there is no reply to save; ask a question first",
        f"{name}: 2 questions saved.",
        f"error: {name} exists; /overwrite {name} replaces it",
        f"{name}: 3 questions saved.",
        "error: /save: the name of a file is missing, such as /save chat.jsonl",
        "error: .: expected a name that ends in .jsonl, such as /save chat.jsonl",
    ]
    assert ["No such file" in line for line in err[6:8]] == [True, True]
    assert err[8].startswith("error: .: Is a directory")
    assert [path.name for path in work_dir.iterdir()] == [name]
    out, err = printed(capsys, ["old", f"/load {name}", "d", "/history"], turns=2)
    assert out[1] == "d/1+2"
    assert [line[:7] for line in out[2::2]] == ["  1 > a", "  2 > b", "  3 > c", "  4 > d"]
    assert err == [f"{name}: 3 questions loaded. The conversation continues."]


def test_ratings_are_saved_and_can_be_corrected(capsys: Printed, work_dir: Path) -> None:
    printed(capsys, ["a", "/bad", "b", "/good", "/save chat.jsonl"])
    out, err = printed(capsys, ["/load chat.jsonl", "/history", "/good", "/bad"])
    assert out == ["  1 > a", "      a/1  (bad)", "  2 > b", "      b/1  (good)"]
    assert err[1:] == [
        "error: /good: the reply is in data/ratings.jsonl already",
        "data/ratings.jsonl: rated bad.",
    ]
    records = [line for line in Path("data/ratings.jsonl").read_text().splitlines() if line.strip()]
    assert [json.loads(line)["rating"] for line in records] == ["bad", "bad"]  # not good, which was corrected


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
