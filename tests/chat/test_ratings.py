"""The file of ratings, and what training reads from it."""

from pathlib import Path

import pytest

from chatbot.chat import ratings
from chatbot.chat.ratings import append_rating, comparison_of, rating_of
from chatbot.corpus.reading.files.sources import find_sources
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError


def learned(path: Path) -> list[tuple[str, str]]:
    """The pairs that train.py --data reads from a file."""
    return [(pair[0], pair[1]) for pair in read(find_sources([str(path)])[0], Report())]


def test_training_reads_good_replies_and_no_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ratings.jsonl"
    append_rating(path, rating_of("你几岁\n\u202e", '"十八"', ["你好", "你好呀"], "good", "weibo"))
    append_rating(path, rating_of("你是谁", "呵呵", [], "bad", "weibo"))
    append_rating(path, comparison_of("天气", ("晴", "哦"), [["a", "b"], ["c", "d"]], "first", ("one", "two")))
    append_rating(path, comparison_of("天气", ("哦", "雨"), [[], []], "second", ("one", "two")))
    append_rating(path, comparison_of("早", ("早", "早上好"), [[], []], "equal", ("one", "two")))
    assert learned(path) == [
        ("你好", "你好呀"),
        ("你几岁\n\u202e", '"十八"'),
        ("a", "b"),
        ("天气", "晴"),
        ("天气", "雨"),
    ]


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "ratings.jsonl"
    append_rating(path, rating_of("\ud800", "好", [], "good", "weibo"))
    assert learned(path) == [("?", "好")]


def test_file_of_ratings_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratings, "LARGEST_FILE", 200)
    path = tmp_path / "ratings.jsonl"
    append_rating(path, rating_of("a", "b", [], "good", "weibo"))
    with pytest.raises(UserError, match="move the file away"):
        append_rating(path, rating_of("a" * 200, "b", [], "good", "weibo"))
    assert len(path.read_text().splitlines()) == 1
