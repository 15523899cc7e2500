"""Ratings of the replies of a conversation, and what training reads of them."""

import json
from pathlib import Path

from chatbot.chat.conversation import Conversation, rate_last
from chatbot.corpus.reading.conversation import NEXT
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.retrieval.ratings import Rating


def test_corrected_rating_is_the_one_that_training_reads(tmp_path: Path) -> None:
    """Also where others were appended after it, and where a rating of another turn has changed the history."""
    path = tmp_path / "ratings.jsonl"
    chat = Conversation(4)
    for number in range(2):
        chat.add(f"q{number}", f"r{number}")
        rate_last(path, chat, "good", "weibo")
    other = Conversation(0)
    other.add("q1", '"r1"')
    rate_last(path, other, "good", "weibo")
    chat.exchanges[0].rated = {"rating": "bad"}
    rate_last(path, chat, "bad", "weibo")
    assert [pair[:2] for pair in linked(path)] == [("q0", "r0"), ("q1", '"r1"')]
    rate_last(path, chat, "good", "weibo")
    rate_last(path, chat, "good", "weibo")
    assert [pair[:2] for pair in linked(path)] == [("q0", "r0"), ("q1", '"r1"'), ("q1", "r1")]
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [bool(line.strip()) for line in lines] == [True, False, True, False, True]
    assert json.loads(lines[-1])["history"] == []


def conversation_of(*ratings: Rating | None, read: int = 4) -> Conversation:
    """A conversation of questions q0, q1, ... with replies r0, r1, ... and their ratings."""
    conversation = Conversation(read)
    for number, rating in enumerate(ratings):
        conversation.add(f"q{number}", f"r{number}")
        conversation.exchanges[-1].rated = rating and {"rating": rating}
    return conversation


def linked(path: Path) -> list[tuple[str, str, int]]:
    """The pairs that train.py --data reads from a file, with their links."""
    return [pair[:3] for pair in read(find_sources([str(path)])[0], Report())]


def test_training_reads_good_replies_of_conversations_and_no_bad_ones(tmp_path: Path) -> None:
    """Nor bad ones among the turns before a good one."""
    path = tmp_path / "data" / "ratings.jsonl"
    rate_last(path, conversation_of("bad", None, None), "good", "weibo")
    rate_last(path, conversation_of(None), "bad", "weibo")
    rate_last(path, conversation_of("good", "good", None, read=3), "good", "weibo")
    rate_last(path, conversation_of(None, None, read=0), "good", "weibo")
    assert linked(path) == [
        ("q1", "r1", 0),
        ("q2", "r2", NEXT),
        ("q1", "r1", 0),
        ("q2", "r2", NEXT),
        ("q1", "r1", 0),  # a model that reads no turns gets the pair alone
    ]
