"""/good and /bad: ratings of the replies of a chat in a terminal."""

import datetime
import os
from pathlib import Path

from chatbot.chat.conversation import Conversation
from chatbot.chat.ratings import RATINGS, Rating, append_rating, line_of, rating_of
from chatbot.errors import UserError


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
            **rating_of(last.question, last.reply, _turns(conversation), rating, model),
            "time": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        if last.rating is not None:
            self._remove_last_line(last.rating)
        append_rating(self.path, record)
        last.rating, self._last_line = rating, line_of(record)

    def _remove_last_line(self, rating: Rating) -> None:
        with self.path.open("r+b") as file:
            file.seek(-min(len(self._last_line), file.seek(0, os.SEEK_END)), os.SEEK_END)
            place = file.tell()
            if file.read() != self._last_line:
                raise UserError(f"{self.path}: the reply is rated {rating}, in a line before others; correct it there")
            file.truncate(place)


def _turns(conversation: Conversation) -> list[str]:
    """Return the turns that the model read before the last question, from a question on, after the last bad reply.

    Training learns those replies, too.
    """
    *before, last = conversation.exchanges
    read = before[max(0, len(before) - len(last.before) // 2) :]
    bad = max((number for number, exchange in enumerate(read, 1) if exchange.rating == "bad"), default=0)
    return [turn for exchange in read[bad:] for turn in (exchange.question, exchange.reply)]
