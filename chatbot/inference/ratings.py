"""The file of ratings of replies, which train.py --data reads, one JSON object a line.

A reply rated good is the answer of its pair. A reply rated bad has another name, so that training leaves it out:

    {"written_to": ..., "history": [[question, reply], ...], "question": ..., "answer": ..., "rating": "good", ...}
    {"written_to": ..., "history": [[question, reply], ...], "question": ..., "rejected": ..., "rating": "bad", ...}

They end in "model" and "time". "written_to" is the question of the pair that the reply was looked up in, or "" if the
model generated it. It is absent if nobody knows whether the model gave the reply: on a page, anyone may rate anything.

A comparison of the replies of two models has both, the better one as the answer; neither if they are equal:

    {..., "answer": ..., "rejected": ..., "rating": "better", "model": ..., "rejected_model": ..., "time": ...}
    {..., "equal": [..., ...], "rating": "equal", "models": [..., ...], "time": ...}

The line of a rating that was corrected is blank.
"""

import contextlib
import datetime
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import filelock

from chatbot.durable import replacing
from chatbot.errors import UserError

RATINGS = Path("data/ratings.jsonl")
# Bytes of a line, and of the file: a client that floods the server voids no rating of others, and fills it slowly.
LARGEST_RATING, LARGEST_FILE = 2**12, 2**24

Rating = Literal["good", "bad"]
Better = Literal["first", "second", "equal"]

_lock = threading.Lock()


class TooLongError(UserError):
    """A question and a reply are too long for a rating."""


class GivenReply(NamedTuple):
    """A reply that a model has given, and its rating. written_to: as in the file."""

    question: str
    reply: str
    rating: Rating
    written_to: str


def rating_of(
    question: str,
    reply: str,
    history: Sequence[str],
    rating: Rating,
    model: str,
    *,
    written_to: str | None = None,
    time: str | None = None,
) -> dict[str, Any]:
    """Return the record of a rated reply.

    history: the turns before the question, alternately question and reply. written_to: as in the file; None: absent.
    time: in ISO 8601; None: now.
    """
    name = "answer" if rating == "good" else "rejected"
    return {
        **({} if written_to is None else {"written_to": written_to}),
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

    Of a history that makes it too long, the last turns are kept. Any thread and process may call this. Raises UserError
    if the record cannot be written, TooLongError if it is too long without a history.
    """
    line = _line_of({**record, "history": _last_turns(record)})
    if len(line) > LARGEST_RATING:
        raise TooLongError(f"a rating of {len(line):,} bytes, of at most {LARGEST_RATING:,}; rate a shorter reply")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_of(path):
            with path.open("a+b") as file:
                size = file.seek(0, os.SEEK_END)
                if size + len(line) > LARGEST_FILE:
                    raise UserError(f"{path}: {LARGEST_FILE:,} bytes of ratings; move the file away to collect others")
                file.seek(max(0, size - 1))
                if file.read(1) not in (b"", b"\n"):  # an editor saved the file without an end of its last line
                    line = b"\n" + line
                file.write(line)  # one write: another process may append, too
            if replaced is not None:
                _blank(path, replaced)
    except OSError as error:
        raise UserError(f"{path}: the rating cannot be written: {error.strerror}; check the disk") from error


def _last_turns(record: Mapping[str, Any]) -> list[Any]:
    """Return the last turns of the history of a record that fit in its line."""
    bytes_left, kept = LARGEST_RATING - len(_line_of({**record, "history": []})), []
    for turn in reversed(record["history"]):
        bytes_left -= len(_json(turn)) + len(b", ")
        if bytes_left < 0:
            break
        kept.append(turn)
    return kept[::-1]


def given_replies(path: Path, names: Collection[str]) -> list[GivenReply]:
    """Return the rated replies that a model with one of these names has given, the oldest first.

    Damaged lines are left out. There is none if the file cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    return [given for line in lines if b'"written_to"' in line for given in _given(line, names)]


def rename_model(path: Path, old: str, new: str) -> int:
    """Give the ratings of a model to its new name, and return their number. Any process may append meanwhile.

    Raises OSError.
    """
    if not path.exists():
        return 0
    count = 0
    with _lock_of(path), replacing(path) as part:
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines):
            if _json(old) in line and (record := _renamed(line, old, new)):
                lines[number], count = _line_of(record)[:-1], count + 1
        part.write_bytes(b"\n".join(lines))
    return count


def _renamed(line: bytes, old: str, new: str) -> dict[str, Any] | None:
    """Return the record of a line with the new name of a model; None if it has not the old one, or is damaged."""
    try:
        record = json.loads(line)
        changes: dict[str, Any] = {name: new for name in ("model", "rejected_model") if record.get(name) == old}
        if old in (models := record.get("models", [])):
            changes["models"] = [new if name == old else name for name in models]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return {**record, **changes} if changes else None


@contextlib.contextmanager
def _lock_of(path: Path) -> Iterator[None]:
    """Hold a file of ratings, against other threads and processes. Raises OSError."""
    with _lock, filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


def _given(line: bytes, names: Collection[str]) -> Iterator[GivenReply]:
    try:
        record = json.loads(line)
        rating = record["rating"]
        reply = record[{"good": "answer", "bad": "rejected"}[rating]]
        given = GivenReply(record["question"], reply, rating, record["written_to"])
        "".join(given).encode()  # or an error: texts that can be written
    except (ValueError, LookupError, TypeError, RecursionError):  # damaged, or a comparison
        return
    if record.get("model") in names:
        yield given


def _line_of(record: Mapping[str, Any]) -> bytes:
    return _json(record) + b"\n"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _blank(path: Path, record: Mapping[str, Any]) -> None:
    """Overwrite the line of a record with spaces, so that no line moves while another process appends.

    The time tells the ratings of equal replies apart. What is before the question may differ: ratings of the turns
    before it change the history.
    """
    end = _line_of({name: value for name, value in record.items() if name not in ("written_to", "history")})[1:]
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
