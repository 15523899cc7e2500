"""Ratings of replies, in a file that `train.py --data` reads.

One JSON object a line. A good reply is the answer of its question. A bad one has another name, so that training leaves
it out:

    {"history": [[question, reply], ...], "question": ..., "answer": ..., "rating": "good", "model": ..., "time": ...}
    {"history": [[question, reply], ...], "question": ..., "rejected": ..., "rating": "bad", "model": ..., "time": ...}
"""

import datetime
import json
import os
from pathlib import Path

from chatbot.chat.conversation import Conversation, Rating
from chatbot.errors import UserError

RATINGS = Path("data/ratings.jsonl")


class Ratings:
    """The ratings of a chat. path: the file that they are appended to."""

    def __init__(self, path: Path = RATINGS) -> None:
        self.path = path
        self._last_line = b""

    def rate(self, conversation: Conversation, rating: Rating, model: str) -> None:
        """Append a rating of the last reply; another rating of the same reply replaces the first one.

        model: its name. Raises UserError without a reply, and if the first rating is no longer the last line.
        """
        last = conversation.last
        if last is None:
            raise UserError(f"/{rating}: no reply to rate yet; ask a question first")
        if last.rating == rating:
            raise UserError(f"/{rating}: the reply is in {self.path} already")
        record = {
            "history": _history(conversation),
            "question": last.question,
            "answer" if rating == "good" else "rejected": last.reply,
            "rating": rating,
            "model": model,
            "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if last.rating is not None:
            self._remove_last_line(last.rating)
        with self.path.open("ab", buffering=0) as file:
            file.write(line)  # one write: another chat may append, too
        last.rating, self._last_line = rating, line

    def _remove_last_line(self, rating: Rating) -> None:
        with self.path.open("r+b") as file:
            file.seek(-min(len(self._last_line), file.seek(0, os.SEEK_END)), os.SEEK_END)
            place = file.tell()
            if file.read() != self._last_line:
                raise UserError(f"{self.path}: the reply is rated {rating}, in a line before others; correct it there")
            file.truncate(place)


def _history(conversation: Conversation) -> list[list[str]]:
    """Return the questions and replies that the model read before the last question, after the last bad reply.

    Training learns those replies, too.
    """
    *before, last = conversation.exchanges
    read = before[max(0, len(before) - len(last.before) // 2) :]
    bad = max((number for number, exchange in enumerate(read, 1) if exchange.rating == "bad"), default=0)
    return [[exchange.question, exchange.reply] for exchange in read[bad:]]
