"""Ratings of replies by users, in a file that train.py --data reads.

One JSON object a line. A reply rated good is the answer of its pair. A reply rated bad has another name, so that
training leaves it out:

    {"history": [[question, reply], ...], "question": ..., "answer": ..., "rating": "good", "model": ...}
    {"history": [[question, reply], ...], "question": ..., "rejected": ..., "rating": "bad", "model": ...}

A comparison of the replies of two models has both, the better one as the answer; neither if they are equal:

    {..., "answer": ..., "rejected": ..., "rating": "better", "model": ..., "rejected_model": ...}
    {..., "equal": [..., ...], "rating": "equal", "models": [..., ...]}
"""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from chatbot.errors import UserError

RATINGS = Path("data/ratings.jsonl")
LARGEST_FILE = 2**28  # bytes

Rating = Literal["good", "bad"]
Better = Literal["first", "second", "equal"]

_lock = threading.Lock()


def rating_of(question: str, reply: str, history: Sequence[str], rating: Rating, model: str) -> dict[str, Any]:
    """Return the record of a rated reply. history: the turns before the question, alternately question and reply."""
    name = "answer" if rating == "good" else "rejected"
    return {**_asked(question, history), name: reply, "rating": rating, "model": model}


def comparison_of(
    question: str, replies: tuple[str, str], histories: Sequence[Sequence[str]], better: Better, models: tuple[str, str]
) -> dict[str, Any]:
    """Return the record of a comparison of two replies. histories: the turns before the question, of each model."""
    if better == "equal":
        return {**_asked(question, histories[0]), "equal": [*replies], "rating": "equal", "models": [*models]}
    chosen = 0 if better == "first" else 1
    return {
        **_asked(question, histories[chosen]),
        "answer": replies[chosen],
        "rejected": replies[1 - chosen],
        "rating": "better",
        "model": models[chosen],
        "rejected_model": models[1 - chosen],
    }


def line_of(record: dict[str, Any]) -> bytes:
    """Return the line of a record."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def append_rating(path: Path, record: dict[str, Any]) -> None:
    """Append a record to a file. Any thread may call this. Raises UserError if it cannot be written."""
    line = line_of(record)
    try:
        with _lock:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                if file.tell() + len(line) > LARGEST_FILE:
                    raise UserError(f"{path}: {LARGEST_FILE:,} bytes of ratings; move the file away to collect others")
                file.write(line)  # one write: another process may append, too
    except OSError as error:
        raise UserError(f"{path}: the rating cannot be written: {error.strerror}; check the disk") from error


def _asked(question: str, history: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a question. A turn without a reply is left out."""
    return {"history": [[*turn] for turn in zip(history[::2], history[1::2], strict=False)], "question": question}
