"""A conversation with a model: questions, their replies, and what the next reply may depend on.

Ratings of replies are in a file that train.py --data reads, one JSON object a line. A reply rated good is the answer of
its pair. A reply rated bad has another name, so that training leaves it out:

    {"history": [[question, reply], ...], "question": ..., "answer": ..., "rating": "good", "model": ..., "time": ...}
    {"history": [[question, reply], ...], "question": ..., "rejected": ..., "rating": "bad", "model": ..., "time": ...}

A comparison of the replies of two models has both, the better one as the answer; neither if they are equal:

    {..., "answer": ..., "rejected": ..., "rating": "better", "model": ..., "rejected_model": ..., "time": ...}
    {..., "equal": [..., ...], "rating": "equal", "models": [..., ...], "time": ...}

The line of a rating that was corrected is blank.
"""

import dataclasses
import datetime
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from chatbot.errors import UserError

RATINGS = Path("data/ratings.jsonl")
LARGEST_FILE = 2**28  # bytes

Rating = Literal["good", "bad"]
Better = Literal["first", "second", "equal"]

_lock = threading.Lock()


@dataclasses.dataclass
class Exchange:
    """A question and its reply.

    before: the turns that the model read before the question. replies: all replies to it so far, with `reply` the last.
    rated: the record of the reply's rating in the file of ratings; None if it is not rated. model: the name of the one
    that replied; empty if it is not known.
    """

    question: str
    reply: str
    before: tuple[str, ...] = ()
    replies: list[str] = dataclasses.field(default_factory=list)
    rated: Mapping[str, Any] | None = None
    model: str = ""

    @property
    def rating(self) -> Rating | None:
        """The rating of the reply."""
        return None if self.rated is None else self.rated["rating"]

    def replace(self, reply: str, before: tuple[str, ...], model: str) -> None:
        """Replace the reply by another one, which is not rated yet. before, model: of the new one."""
        self.reply, self.before, self.model, self.rated = reply, before, model, None
        self.replies.append(reply)


class Conversation:
    """The questions and replies of a chat. read: the maximum number of turns that the model reads before a question."""

    def __init__(self, read: int) -> None:
        self.read = read
        self.exchanges: list[Exchange] = []

    @property
    def last(self) -> Exchange | None:
        """The last question and its reply."""
        return self.exchanges[-1] if self.exchanges else None

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns that the model reads before the next question, the oldest first."""
        return self._turns_before(len(self.exchanges))

    @property
    def last_reply(self) -> str:
        """The reply before the next question, whatever the model reads; "" before the first one."""
        return self._reply_before(len(self.exchanges))

    @property
    def turns_before_last(self) -> tuple[str, ...]:
        """The turns that the model reads before the last question if it answers that again."""
        return self._turns_before(len(self.exchanges) - 1)

    @property
    def reply_before_last(self) -> str:
        """The reply before the last question; "" if that is the first one."""
        return self._reply_before(len(self.exchanges) - 1)

    def _reply_before(self, number: int) -> str:
        return self.exchanges[number - 1].reply if number else ""

    def _turns_before(self, number: int) -> tuple[str, ...]:
        """Return the turns that the model reads before a question. number: of the questions before it."""
        exchanges = self.exchanges[max(0, number - (self.read + 1) // 2) : number]
        turns = [turn for exchange in exchanges for turn in (exchange.question, exchange.reply)]
        return tuple(turns[max(0, len(turns) - self.read) :])

    @property
    def turns_to_learn(self) -> list[str]:
        """The turns that the model read before the last question, from a question on, after the last bad reply.

        Training learns those replies, too.
        """
        *before, last = self.exchanges
        read = before[max(0, len(before) - len(last.before) // 2) :]
        bad = max((number for number, exchange in enumerate(read, 1) if exchange.rating == "bad"), default=0)
        return [turn for exchange in read[bad:] for turn in (exchange.question, exchange.reply)]

    def add(self, question: str, reply: str, model: str = "", rated: Mapping[str, Any] | None = None) -> None:
        """Add a question and its reply. model, rated: as in `Exchange`."""
        self.exchanges.append(Exchange(question, reply, self.turns, [reply], rated, model))


def rate_last(path: Path, conversation: Conversation, rating: Rating, model: str) -> None:
    """Append a rating of the last reply of a conversation to a file; it replaces another rating of this reply.

    model: its name. Raises UserError if the rating cannot be written.
    """
    last = conversation.last
    assert last is not None
    if last.rating != rating:
        record = rating_of(last.question, last.reply, conversation.turns_to_learn, rating, model)
        append_rating(path, record, last.rated)
        last.rated = record


def rating_of(
    question: str, reply: str, history: Sequence[str], rating: Rating, model: str, time: str | None = None
) -> dict[str, Any]:
    """Return the record of a rated reply.

    history: the turns before the question, alternately question and reply. time: in ISO 8601; None: now.
    """
    name = "answer" if rating == "good" else "rejected"
    return {
        **_fields_of(question, history),
        name: reply,
        "rating": rating,
        "model": model,
        "time": time or _now(),
    }


def comparison_of(
    question: str,
    compared: tuple[tuple[str, str], tuple[str, str]],
    histories: Sequence[Sequence[str]],
    better: Better,
    time: str | None = None,
) -> dict[str, Any]:
    """Return the record of a comparison of two replies.

    compared: each reply and its model. histories: the turns before the question, of each model. time: in ISO 8601;
    None: now.
    """
    time = time or _now()
    if better == "equal":
        replies, models = zip(*compared, strict=True)
        both = {"equal": [*replies], "rating": "equal", "models": [*models]}
        return {**_fields_of(question, histories[0]), **both, "time": time}
    chosen = 0 if better == "first" else 1
    (reply, model), (rejected, rejected_model) = compared[chosen], compared[1 - chosen]
    return {
        **_fields_of(question, histories[chosen]),
        "answer": reply,
        "rejected": rejected,
        "rating": "better",
        "model": model,
        "rejected_model": rejected_model,
        "time": time,
    }


def append_rating(path: Path, record: Mapping[str, Any], replaced: Mapping[str, Any] | None = None) -> None:
    """Append a record to a file, and make the line of the record that it replaces blank, if the file has it.

    Any thread may call this. Raises UserError if the record cannot be written.
    """
    line = _line_of(record)
    try:
        with _lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                if file.tell() + len(line) > LARGEST_FILE:
                    raise UserError(f"{path}: {LARGEST_FILE:,} bytes of ratings; move the file away to collect others")
                file.write(line)  # one write: another process may append, too
            if replaced is not None:
                _blank(path, replaced)
    except OSError as error:
        raise UserError(f"{path}: the rating cannot be written: {error.strerror}; check the disk") from error


def _line_of(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _blank(path: Path, record: Mapping[str, Any]) -> None:
    """Overwrite the line of a record with spaces, so that no line moves while another process appends.

    The time tells the ratings of equal replies apart. The history may differ: ratings of the turns before change it.
    """
    end = _line_of({name: value for name, value in record.items() if name != "history"})[1:]
    lines = path.read_bytes()
    start = lines.rfind(b" " + end)
    if start >= 0:
        begin = lines.rfind(b"\n", 0, start) + 1
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(b" " * (start + len(end) - begin))


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _fields_of(question: str, history: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a question. A turn without a reply is left out."""
    return {"history": [[*turn] for turn in zip(history[::2], history[1::2], strict=False)], "question": question}
