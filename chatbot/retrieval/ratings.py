"""The file of ratings of replies, which train.py --data reads, one JSON object a line.

A reply rated good is the answer of its pair. A reply rated bad has another name, so that training leaves it out:

    {"written_to": ..., "history": [[question, reply], ...], "question": ..., "answer": ..., "rating": "good", ...}
    {"written_to": ..., "history": [[question, reply], ...], "question": ..., "rejected": ..., "rating": "bad", ...}

They end in "model", "client" and "time". "written_to" is the question of the pair that the reply was looked up in, ""
if the model generated it. It is absent where a rating may not change replies: of a client without a key, or of a reply
that the model is not known to have given. "client" tells clients apart; it is absent for the operator.

The line of a rating that was corrected is blank. A full file gets a number, NAME-0001.jsonl, and stays; another begins.
"""

import contextlib
import datetime
import glob
import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import filelock

from chatbot.durable import write_file
from chatbot.errors import UserError

# Bytes of a line, and of a file before another begins.
LARGEST_RATING = 2**12
LARGEST_FILE = 2**24

Rating = Literal["good", "bad"]

OPERATOR = ""  # the client of ratings in the terminal, which decide alone

_lock = threading.Lock()


class TooLongError(UserError):
    """A question and a reply are too long for a rating."""


class GivenReply(NamedTuple):
    """A reply that a model has given, and its rating. written_to: as in the file. client: a hash, or OPERATOR."""

    question: str
    reply: str
    rating: Rating
    written_to: str
    client: str = OPERATOR


def rating_of(
    question: str,
    reply: str,
    history: Sequence[str],
    rating: Rating,
    model: str,
    client: str | None = None,
    *,
    written_to: str | None = None,
    time: str | None = None,
) -> dict[str, Any]:
    """Return the record of a rated reply.

    history: the turns before the question, alternately question and reply. client: who rates, an address or a key, of
    which the record has a hash; None: the operator. written_to: as in the file; None: absent. time: in ISO 8601;
    None: now.
    """
    return {
        **({} if written_to is None else {"written_to": written_to}),
        "history": [[*turn] for turn in zip(history[::2], history[1::2], strict=False)],  # none without a reply
        "question": question,
        "answer" if rating == "good" else "rejected": reply,
        "rating": rating,
        "model": model,
        **({} if client is None else {"client": hashlib.sha256(client.encode()).hexdigest()[:16]}),
        "time": time or datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
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
            if path.exists() and path.stat().st_size + len(line) > LARGEST_FILE:
                number = 1 + max((int(full.stem[-4:]) for full in files_of(path)[:-1]), default=0)
                path.rename(path.with_stem(f"{path.stem}-{number:04}"))
            with path.open("a+b") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                if file.read(1) not in (b"", b"\n"):  # an editor saved the file without an end of its last line
                    line = b"\n" + line
                file.write(line)  # one write: another process may append, too
            if replaced is not None:
                _blank(files_of(path)[:-3:-1], replaced)  # the one that was full last may have it
    except OSError as error:
        raise UserError(f"{path}: the rating cannot be written: {error.strerror}; check the disk") from error


def _last_turns(record: Mapping[str, Any]) -> list[Any]:
    """Return the last turns of the history of a record that fit in its line."""
    bytes_left = LARGEST_RATING - len(_line_of({**record, "history": []}))
    kept = []
    for turn in reversed(record["history"]):
        bytes_left -= len(_json(turn)) + len(b", ")
        if bytes_left < 0:
            break
        kept.append(turn)
    return kept[::-1]


def files_of(path: Path) -> list[Path]:
    """Return the files of ratings that there are, the oldest first: the full ones, and the one that grows."""
    full = path.parent.glob(f"{glob.escape(path.stem)}-{4 * '[0-9]'}{path.suffix}")
    return [file for file in (*sorted(full), path) if file.is_file()]


def given_replies(content: bytes, names: Collection[str]) -> Iterator[GivenReply]:
    """Yield the rated replies that a model with one of these names has given, the oldest first.

    content: lines of a file. Damaged ones are left out.
    """
    for line in content.split(b"\n"):
        if b'"written_to"' not in line:
            continue
        try:
            record = json.loads(line)
            rating = record["rating"]
            reply = record[{"good": "answer", "bad": "rejected"}[rating]]
            given = GivenReply(record["question"], reply, rating, record["written_to"], record.get("client", OPERATOR))
            "".join(given).encode()  # or an error: texts that can be written
        except (ValueError, LookupError, TypeError, RecursionError):  # damaged
            continue
        if record.get("model") in names:
            yield given


def rename_model(path: Path, old: str, new: str) -> int:
    """Give the ratings of a model to its new name, and return their number. Any process may append meanwhile.

    Raises OSError.
    """
    if not files_of(path):
        return 0
    count = 0
    with _lock_of(path):
        for file in files_of(path):
            lines = file.read_bytes().split(b"\n")
            for number, line in enumerate(lines):
                if _json(old) in line and (record := _renamed(line, old, new)):
                    lines[number] = _line_of(record)[:-1]
                    count = count + 1
            write_file(file, b"\n".join(lines))
    return count


def _renamed(line: bytes, old: str, new: str) -> dict[str, Any] | None:
    """Return the record of a line with the new name of a model; None if it has not the old one, or is damaged."""
    try:
        record = json.loads(line)
        return {**record, "model": new} if record.get("model") == old else None
    except (ValueError, AttributeError, RecursionError):
        return None


@contextlib.contextmanager
def _lock_of(path: Path) -> Iterator[None]:
    """Hold a file of ratings, against other threads and processes. Raises OSError."""
    with _lock, filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


def _line_of(record: Mapping[str, Any]) -> bytes:
    return _json(record) + b"\n"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _blank(files: Sequence[Path], record: Mapping[str, Any]) -> None:
    """Overwrite the line of a record with spaces in the first file that has it, so that no line moves.

    The time tells the ratings of equal replies apart. What is before the question may differ: ratings of the turns
    before it change the history.
    """
    end = _line_of({name: value for name, value in record.items() if name not in ("written_to", "history")})[1:]
    for path in files:
        lines = path.read_bytes()
        status = path.stat()
        start = lines.rfind(b" " + end)
        if start >= 0:
            begin = lines.rfind(b"\n", 0, start) + 1
            with path.open("r+b") as file:
                file.seek(begin)
                file.write(b" " * (start + len(end) - begin))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # who reads what was appended knows it
            return
