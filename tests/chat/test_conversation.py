"""Ratings of replies as training data."""

from pathlib import Path

from chatbot.chat.conversation import Conversation, rate_last
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.reading.turns import NEXT
from chatbot.retrieval.ratings import Rating


def conversation_of(*ratings: Rating | None, max_turns: int = 4) -> Conversation:
    """Return a conversation of questions q0, q1, ... with replies r0, r1, ... and these ratings."""
    conversation = Conversation(max_turns)
    for number, rating in enumerate(ratings):
        conversation.add(f"q{number}", f"r{number}")
        conversation.exchanges[-1].stored_rating = rating and {"rating": rating}
    return conversation


def linked(path: Path) -> list[tuple[str, str, int]]:
    """Return the pairs that `train.py --data` reads from a file, with their links."""
    return [pair[:3] for pair in read(find_sources([str(path)])[0], Report())]


def test_training_reads_good_replies_of_conversations_and_no_bad_ones(tmp_path: Path) -> None:
    """Bad replies before a good one are left out, too."""
    path = tmp_path / "data" / "ratings.jsonl"
    rate_last(path, conversation_of("bad", None, None), "good", "weibo")
    rate_last(path, conversation_of(None), "bad", "weibo")
    rate_last(path, conversation_of("good", "good", None, max_turns=3), "good", "weibo")
    rate_last(path, conversation_of(None, None, max_turns=0), "good", "weibo")
    assert linked(path) == [
        ("q1", "r1", 0),
        ("q2", "r2", NEXT),
        ("q1", "r1", 0),
        ("q2", "r2", NEXT),
        ("q1", "r1", 0),  # a model that reads no turns gets the pair alone
    ]
