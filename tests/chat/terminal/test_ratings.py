"""Ratings of replies, and what training reads from them."""

from pathlib import Path

import pytest

from chatbot.chat.conversation import Conversation, Rating
from chatbot.chat.terminal.ratings import Ratings
from chatbot.corpus.reading.files.sources import find_sources
from chatbot.corpus.reading.pair import NEXT
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError
from chatbot.training.data import prepare
from tests.training.small_run import small_settings


def conversation_of(*ratings: Rating | None, read: int = 4) -> Conversation:
    """A conversation of questions q0, q1, ... with replies r0, r1, ... and their ratings."""
    conversation = Conversation(read)
    for number, rating in enumerate(ratings):
        conversation.add(f"q{number}", f"r{number}")
        conversation.exchanges[-1].rated = rating and {"rating": rating}
    return conversation


def learned(path: Path) -> list[tuple[str, str, int]]:
    """The pairs that train.py --data reads from a file, with their links."""
    return [pair[:3] for pair in read(find_sources([str(path)])[0], Report())]


def test_training_reads_good_replies_and_no_bad_ones(tmp_path: Path) -> None:
    """Nor bad ones among the turns before a good one."""
    ratings = Ratings(tmp_path / "data" / "ratings.jsonl")
    ratings.rate(conversation_of("bad", None, None), "good", "weibo")
    ratings.rate(conversation_of(None), "bad", "weibo")
    ratings.rate(conversation_of("good", "good", None, read=3), "good", "weibo")
    assert learned(ratings.path) == [
        ("q1", "r1", 0),
        ("q2", "r2", NEXT),
        ("q1", "r1", 0),
        ("q2", "r2", NEXT),
    ]


def test_run_trains_on_good_replies_alone(work_dir: Path) -> None:
    ratings = Ratings()
    ratings.rate(conversation_of(None), "bad", "weibo")
    ratings.rate(conversation_of(None, None, read=0), "good", "weibo")
    data = prepare(small_settings(data=(str(ratings.path),)), ())
    assert data.training.all_lengths.counts.sum() == 1


def test_run_trains_on_the_corrected_rating(work_dir: Path) -> None:
    """Although another chat has rated a reply meanwhile."""
    ratings, chats = Ratings(), (conversation_of(None, read=0), conversation_of(None, None, read=0))
    for chat, rating in ((chats[0], "good"), (chats[1], "bad"), (chats[0], "bad"), (chats[1], "good")):
        ratings.rate(chat, rating, "weibo")  # type: ignore[arg-type]
    data = prepare(small_settings(data=(str(ratings.path),)), ())
    assert data.training.all_lengths.counts.sum() == 1


def test_model_without_history_gets_the_pair_alone(tmp_path: Path) -> None:
    ratings = Ratings(tmp_path / "ratings.jsonl")
    ratings.rate(conversation_of(None, None, read=0), "good", "weibo")
    assert learned(ratings.path) == [("q1", "r1", 0)]


@pytest.mark.parametrize(("first", "second", "pairs"), [("good", "bad", []), ("bad", "good", [("q0", "r0", 0)])])
def test_second_rating_of_a_reply_replaces_the_first(
    tmp_path: Path, first: Rating, second: Rating, pairs: list[tuple[str, str, int]]
) -> None:
    ratings, conversation = Ratings(tmp_path / "ratings.jsonl"), conversation_of(None)
    for rating in (first, second):
        ratings.rate(conversation, rating, "weibo")
    assert len(ratings.path.read_text().split("\n")) == 3
    ratings.rate(conversation_of(None), "bad", "weibo")
    assert learned(ratings.path) == pairs


def test_rating_that_the_reply_has_is_refused(tmp_path: Path) -> None:
    ratings, conversation = Ratings(tmp_path / "ratings.jsonl"), conversation_of(None)
    with pytest.raises(UserError, match="/good: no reply to rate yet"):
        ratings.rate(conversation_of(), "good", "weibo")
    ratings.rate(conversation, "good", "weibo")
    with pytest.raises(UserError, match=r"/good: the reply is in .*ratings.jsonl already"):
        ratings.rate(conversation, "good", "weibo")
