"""Conversations in files."""

import json
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from chatbot.chat.conversation import Exchange, rating_of
from chatbot.chat.terminal import transcript
from chatbot.chat.terminal.transcript import load, save
from chatbot.corpus.reading.open.sources import find_sources
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError
from tests.chat.terminal.typed import Line, Printed, printed

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


def test_text_of_other_systems_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n\r\nc\nd")
    assert turns_of(load(tmp_path / "file")) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    "content",
    [
        b"\n \n",
        b"a\nb\nc",
        b"\xff\xfe\x00",
        b'{"messages": []}\n{',
        b'{"a":' * 50_000,
        b'{"question": "a"}',
        b'{"question": "a", "rejected": 1}',
        b'{"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]}',
        b'{"messages": [{"role": "user", "content": "a"}]}',
        b'{"messages": ["a", "b"]}',
        b"x" * 101,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_file_that_holds_no_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    if len(content) == 101:
        monkeypatch.setattr(transcript, "LARGEST_FILE", 100)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match=r"holds no conversation; give a file as /save writes it: .*$"):
        load(tmp_path / "file")


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.txt"])
def test_saved_conversation_is_continued(capsys: Printed, work_dir: Path, name: str) -> None:
    lines: list[Line] = ["/save x.txt", "a", "b", f"/save {name}", f"/save {name}", "c", f"/overwrite {name}"]
    _, err = printed(capsys, [*lines, "/save", "/save .", "/overwrite no/x", "/load none", "/load ."], turns=2)
    assert err[:4] == [
        "error: x.txt: there is no reply to save; a name that ends in .jsonl keeps those rated bad, too",
        f"{name}: 2 questions saved.",
        f"error: {name} exists; /overwrite {name} replaces it",
        f"{name}: 3 questions saved.",
    ]
    assert err[4] == "error: /save: the name of a file is missing, such as /save chat.jsonl"
    assert err[5] == "error: . exists; /overwrite . replaces it"
    assert ["No such file" in line for line in err[6:8]] == [True, True]
    assert err[8].startswith("error: .: Is a directory")
    assert [path.name for path in work_dir.iterdir()] == [name]
    out, err = printed(capsys, ["old", f"/load {name}", "d", "/history"], turns=2)
    assert out[1] == "d/1+2"
    assert [line[:7] for line in out[2::2]] == ["  1 > a", "  2 > b", "  3 > c", "  4 > d"]
    assert err == [f"{name}: 3 questions loaded. The conversation continues."]


def test_bad_reply_is_left_out_of_text_and_marked_in_json_lines(capsys: Printed, work_dir: Path) -> None:
    lines: list[Line] = ["a", "/bad", "/save all.txt", "b", "/good", "/save chat.txt", "/save chat.jsonl"]
    _, err = printed(capsys, lines)
    assert err[1].startswith("error: all.txt: there is no reply to save; ")
    assert err[3:] == ["chat.txt: 1 question saved.", "chat.jsonl: 2 questions saved."]
    assert Path("chat.txt").read_text() == "b\nb/1\n"
    out, err = printed(capsys, ["/load chat.jsonl", "/history", "/good", "/bad"])
    assert out == ["  1 > a", "      a/1  (bad)", "  2 > b", "      b/1  (good)"]
    assert err[1:] == [
        "error: /good: the reply is in data/ratings.jsonl already",
        "data/ratings.jsonl: rated bad.",
    ]
    lines_left = [line for line in Path("data/ratings.jsonl").read_text().splitlines() if line.strip()]
    assert [json.loads(line)["rating"] for line in lines_left] == ["bad", "bad"]  # not good, which was corrected


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.txt"])
def test_overwrite_keeps_the_mode_and_touches_no_other_file(tmp_path: Path, name: str) -> None:
    path, other = tmp_path / name, tmp_path / f"{name}.part"
    path.write_text("old", encoding="utf-8")
    path.chmod(0o600)
    other.write_text("of the user", encoding="utf-8")
    save(path, [Exchange(*TURNS[0])], overwrite=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert turns_of(load(path)) == TURNS[:1]
    assert other.read_text(encoding="utf-8") == "of the user"
    assert len(list(tmp_path.iterdir())) == 2
