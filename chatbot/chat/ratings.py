"""Ratings of replies by users, in a file that train.py --data reads.

One JSON object a line. A reply rated good is the answer of its pair. A reply rated bad has another name, so that
training leaves it out:

    {"history": [[question, reply], ...], "question": ..., "answer": ..., "rating": "good", "model": ..., "time": ...}
    {"history": [[question, reply], ...], "question": ..., "rejected": ..., "rating": "bad", "model": ..., "time": ...}

A comparison of the replies of two models has both, the better one as the answer; neither if they are equal:

    {..., "answer": ..., "rejected": ..., "rating": "better", "model": ..., "rejected_model": ..., "time": ...}
    {..., "equal": [..., ...], "rating": "equal", "models": [..., ...], "time": ...}

The line of a rating that was corrected is blank.
"""

import datetime
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from chatbot.chat.conversation import Conversation, Rating
from chatbot.errors import UserError

RATINGS = Path("data/ratings.jsonl")
LARGEST_FILE = 2**28  # bytes

Better = Literal["first", "second", "equal"]

_lock = threading.Lock()


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
    return {**_asked(question, history), name: reply, "rating": rating, "model": model, "time": time or _now()}


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
        return {**_asked(question, histories[0]), **both, "time": time}
    chosen = 0 if better == "first" else 1
    (reply, model), (rejected, rejected_model) = compared[chosen], compared[1 - chosen]
    return {
        **_asked(question, histories[chosen]),
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
    place = lines.rfind(b" " + end)
    if place >= 0:
        begin = lines.rfind(b"\n", 0, place) + 1
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(b" " * (place + len(end) - begin))


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _asked(question: str, history: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a question. A turn without a reply is left out."""
    return {"history": [[*turn] for turn in zip(history[::2], history[1::2], strict=False)], "question": question}
