"""The file of ratings: what training reads from it, and which replies a model is known to have given."""

import json
import re
from pathlib import Path

import pytest

from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.retrieval import ratings
from chatbot.retrieval.ratings import (
    GivenReply,
    TooLongError,
    append_rating,
    given_replies,
    rating_files,
    rating_record,
    rename_model,
)


def learned(path: Path) -> list[tuple[str, str]]:
    """The pairs that train.py --data reads from a file."""
    return [(pair[0], pair[1]) for pair in read(find_sources([str(path)])[0], Report())]


def given(path: Path, model: str = "weibo") -> list[GivenReply]:
    """The rated replies that a model has given, of all files."""
    return [reply for file in rating_files(path) for reply in given_replies(file.read_bytes(), [model])]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "ratings.jsonl"


# What earlier versions wrote of the replies of two models.
COMPARED_EARLIER = """\
{"history": [], "question": "天气", "answer": "晴", "rejected": "哦", "rating": "better", "model": "a", \
"rejected_model": "b", "time": "2026-01-01"}
{"history": [], "question": "早", "equal": ["早", "早上好"], "rating": "equal", "models": ["a", "b"], \
"time": "2026-01-01"}
"""


def test_training_reads_good_replies_and_no_bad_ones(path: Path) -> None:
    """Neither where a reply comes from; a lone surrogate is replaced. Each record ends in its time."""
    turns = ["你好", "你好呀", "吃了吗", "吃了", "?"]
    for record in (
        rating_record("你几岁\n\u202e", '"十八"', turns, "good", "weibo", written_to="你多大"),
        rating_record("你是谁", "呵呵", [], "bad", "weibo", written_to="谁"),
        rating_record("\ud800", "好", [], "good", "weibo", "address 10.0.0.1"),
    ):
        append_rating(path, record)
        assert [*record][-1] == "time"
        assert "10.0.0.1" not in str(record)  # nobody needs to know an address
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", record["time"])
    assert learned(path) == [
        ("你好", "你好呀"),
        ("吃了吗", "吃了"),
        ("你几岁\n\u202e", '"十八"'),
        ("?", "好"),
    ]
    with path.open("a", encoding="utf-8") as file:
        file.write(COMPARED_EARLIER)
    assert learned(path)[-2:] == [("?", "好"), ("天气", "晴")]


def test_only_the_rating_of_the_same_time_is_replaced(path: Path) -> None:
    first, second = (rating_record("q", "r", [], "good", "weibo", time=time) for time in ("2026-01-01", "2026-01-02"))
    for record in (first, second):
        append_rating(path, record)
    append_rating(path, rating_record("q", "r", [], "bad", "weibo"), first)
    append_rating(path, rating_record("q", "r", [], "bad", "weibo"), first)  # it is not there any more
    assert learned(path) == [("q", "r")]


def test_missing_last_newline_is_added(path: Path) -> None:
    for reply in ("一", "二", "三"):
        append_rating(path, rating_record("数", reply, [], "good", "weibo", written_to=""))
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert [reply.reply for reply in given(path)] == ["一", "二", "三"]


def test_replies_that_a_model_has_given(path: Path) -> None:
    """Not those of other models, and not those of which nobody knows."""
    bad = rating_record("q", "坏", [], "bad", "weibo", written_to="Q")
    for record in (
        rating_record("q", "好", ["a", "b"], "good", "weibo", written_to=""),
        rating_record("q", "x", [], "good", "other", written_to=""),
        rating_record("q", "y", [], "good", "weibo"),
        bad,
    ):
        append_rating(path, record)
    expected = [GivenReply("q", "好", "good", ""), GivenReply("q", "坏", "bad", "Q")]
    assert given(path) == expected
    append_rating(path, rating_record("q", "坏", [], "good", "weibo", written_to="Q"), {**bad, "written_to": "?"})
    assert given(path) == [expected[0], GivenReply("q", "坏", "good", "Q")]


DAMAGED = [
    b"\xff",
    b"[]",
    b'"written_to"',
    b'{"written_to": "", "question": "q", "answer": "a", "rating": "good"}',
    b'{"written_to": "", "question": "q", "rating": "good", "model": "weibo"}',
    b'{"written_to": 1, "question": "q", "answer": "a", "rating": "good", "model": "weibo"}',
    b'{"written_to": "", "question": "q", "answer": "a", "rating": [], "model": "weibo"}',
    b'{"written_to": "", "question": "\\ud800", "answer": "a", "rating": "good", "model": "weibo"}',
    b'{"written_to": "", "question": "q", "answer": "a", "rating": "good", "model": "wei',
    b'{"written_to": ' + b"[" * 100_000,
]


def test_damaged_lines_are_left_out_and_all_of_a_long_file_is_read(path: Path) -> None:
    append_rating(path, rating_record("q", "first", [], "good", "weibo", written_to=""))
    with path.open("ab") as file:
        file.write(b"\n".join([*DAMAGED, b'"written_to"', b'{"question": "' + b"x" * 2**21 + b'"}', b""]))
    append_rating(path, rating_record("q", "last", [], "good", "weibo", written_to=""))
    assert [reply.reply for reply in given(path)] == ["first", "last"]
    path.rename(path.with_name("other"))
    assert given(path) == []
    path.mkdir()
    assert given(path) == []


def test_the_size_of_a_rating_is_limited(path: Path) -> None:
    """A rating keeps the last turns that fit."""
    append_rating(path, rating_record("q", "好", [], "good", "weibo", written_to=""))
    turns = [f"{number} {'长' * 300}" for number in range(200)]
    append_rating(path, rating_record("问", "答", turns, "good", "weibo", written_to=""))
    _, line = path.read_bytes().splitlines()
    assert 3000 < len(line) < ratings.MAX_RATING_BYTES
    assert [turn for both in json.loads(line)["history"] for turn in both] == turns[-4:]
    with pytest.raises(TooLongError, match=r"of [\d,]+ bytes exceeds 4,096 bytes"):
        append_rating(path, rating_record("问", "答" * 2000, turns, "good", "weibo"))
    assert [reply.reply for reply in given(path)] == ["好", "答"]


def test_a_full_file_stays_and_another_begins(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratings are never refused; all files are read, corrected and renamed."""
    records = [rating_record("数", f"{number}", [], "good", "weibo", written_to="") for number in range(5)]
    append_rating(path, records[0])
    monkeypatch.setattr(ratings, "MAX_FILE_BYTES", path.stat().st_size)
    for record in records[1:4]:
        append_rating(path, record)
    path.with_name("ratings-0001.jsonl").rename(path.with_name("away.jsonl"))  # no other one takes its name
    append_rating(path, records[4])
    names = ["ratings-0002.jsonl", "ratings-0003.jsonl", "ratings-0004.jsonl", "ratings.jsonl"]
    assert [file.name for file in rating_files(path)] == names
    assert [reply.reply for reply in given(path)] == ["1", "2", "3", "4"]
    append_rating(path, rating_record("数", "4", [], "bad", "weibo", written_to=""), records[4])
    assert [(reply.reply, reply.rating) for reply in given(path)] == [
        *((f"{i}", "good") for i in (1, 2, 3)),
        ("4", "bad"),
    ]
    assert rename_model(path, "weibo", "b") == len(given(path, "b")) == 4


def test_ratings_of_a_model_that_is_renamed(path: Path) -> None:
    assert rename_model(path, "a", "b") == 0
    records = [
        rating_record("a", "a", [], "good", "a", written_to=""),
        rating_record("q", "r", [], "good", "other", written_to=""),
    ]
    for record in records:
        append_rating(path, record)
    with path.open("ab") as file:
        file.write(b"\n".join([b'"a"', b'{"model": "a"', b'{"x": "a"}', b'["a"]', b""]))
    before = path.read_text().splitlines()
    assert rename_model(path, "a", "新") == 1
    after = path.read_text().splitlines()
    assert after[1:] == before[1:]
    assert json.loads(after[0])["model"] == "新"
    renamed = {**records[0], "model": "新"}
    append_rating(path, rating_record("a", "a", [], "bad", "新", written_to=""), renamed)  # it is found, and replaced
    assert given(path, "新") == [GivenReply("a", "a", "bad", "")]
