"""Reads and writes the file of ratings, a JSON Lines file that is also valid training data for train.py.

A reply rated good has the key "answer". A reply rated bad has the key "rejected", which training ignores:

    {"written_to": ..., "history": [[question, reply], ...], "question": ..., "answer": ..., "rating": "good", ...}
    {"written_to": ..., "history": [[question, reply], ...], "question": ..., "rejected": ..., "rating": "bad", ...}

The other keys are:

- "written_to": The question of the pair from which the reply was retrieved, or an empty string if the model generated
  the reply. The key is missing if the rating must not affect replies. This is the case if the client has no API key, or
  if it is unknown whether the model gave this reply.
- "client": A hash that identifies the client. The key is missing if the operator rated the reply.
- "model" and "time": The name of the model, and the time of the rating.

When a rating is corrected, the old line is overwritten with spaces. Full files are renamed to NAME-0001.jsonl, etc.
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

# The maximum sizes of a line and of a file, in bytes.
MAX_RATING_BYTES = 2**12
MAX_FILE_BYTES = 2**24

Rating = Literal["good", "bad"]

OPERATOR = ""  # the client of ratings in the terminal, which override all other ratings

_lock = threading.Lock()


class TooLongError(UserError):
    """Raised if a question and its reply are too long for a line in the file of ratings."""


class GivenReply(NamedTuple):
    """A reply given by a model, and its rating.

    Attributes:
        question: The question.
        reply: The reply.
        rating: "good" or "bad".
        written_to: The question of the pair from which the reply was retrieved, or an empty string.
        client: The hash that identifies the client, or OPERATOR.
    """

    question: str
    reply: str
    rating: Rating
    written_to: str
    client: str = OPERATOR


def rating_record(
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
    """Create the record of a rated reply.

    Args:
        question: The question.
        reply: The reply.
        history: The previous turns, alternating between question and reply.
        rating: "good" or "bad".
        model: The name of the model.
        client: The address or key of the client, or None for the operator. Only a hash of it is stored.
        written_to: The value of the key "written_to", or None to omit this key.
        time: The time of the rating in ISO 8601 format, or None for the current time.
    """
    return {
        **({} if written_to is None else {"written_to": written_to}),
        "history": [
            [*turn] for turn in zip(history[::2], history[1::2], strict=False)
        ],  # A final question without a reply is excluded.
        "question": question,
        "answer" if rating == "good" else "rejected": reply,
        "rating": rating,
        "model": model,
        **({} if client is None else {"client": hashlib.sha256(client.encode()).hexdigest()[:16]}),
        "time": time or datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def append_rating(path: Path, record: Mapping[str, Any], replaced: Mapping[str, Any] | None = None) -> None:
    """Append a record to the file of ratings. The record that it replaces, if any, is overwritten with spaces.

    If the record is too long, only the last turns of its history are kept. Several threads and processes can append to
    the same file.

    Args:
        path: The file of ratings.
        record: The record of the new rating.
        replaced: The record of an earlier rating of the same reply.

    Raises:
        UserError: The record cannot be written.
        TooLongError: The record is too long even without its history.
    """
    line = _encode_line({**record, "history": _last_turns(record)})
    if len(line) > MAX_RATING_BYTES:
        raise TooLongError(f"a rating of {len(line):,} bytes exceeds {MAX_RATING_BYTES:,} bytes; rate a shorter reply")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(path):
            if path.exists() and path.stat().st_size + len(line) > MAX_FILE_BYTES:
                number = 1 + max((int(full.stem[-4:]) for full in rating_files(path)[:-1]), default=0)
                path.rename(path.with_stem(f"{path.stem}-{number:04}"))
            with path.open("a+b") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                if file.read(1) not in (b"", b"\n"):  # An editor may have removed the last newline.
                    line = b"\n" + line
                file.write(line)  # Write everything in one call, because other programs can also append.
            if replaced is not None:
                _blank_line(rating_files(path)[:-3:-1], replaced)  # The record can also be in the previous file.
    except OSError as error:
        raise UserError(f"{path}: the rating cannot be written ({error.strerror}); check the disk") from error


def _last_turns(record: Mapping[str, Any]) -> list[Any]:
    """Return the last turns of a record's history that fit into a line of the file."""
    bytes_left = MAX_RATING_BYTES - len(_encode_line({**record, "history": []}))
    turns = []
    for turn in reversed(record["history"]):
        bytes_left -= len(_encode_json(turn)) + len(b", ")
        if bytes_left < 0:
            break
        turns.append(turn)
    return turns[::-1]


def rating_files(path: Path) -> list[Path]:
    """Return the existing files of ratings in chronological order, ending with the current file."""
    full = path.parent.glob(f"{glob.escape(path.stem)}-{4 * '[0-9]'}{path.suffix}")
    return [file for file in (*sorted(full), path) if file.is_file()]


def given_replies(content: bytes, names: Collection[str]) -> Iterator[GivenReply]:
    """Yield the rated replies of a model, oldest first.

    Args:
        content: Lines of the file of ratings. Damaged lines are skipped.
        names: All names of the model.
    """
    for line in content.split(b"\n"):
        if b'"written_to"' not in line:
            continue
        try:
            record = json.loads(line)
            rating = record["rating"]
            reply = record[{"good": "answer", "bad": "rejected"}[rating]]
            given = GivenReply(record["question"], reply, rating, record["written_to"], record.get("client", OPERATOR))
            "".join(given).encode()  # raises ValueError for lone surrogates
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
        if record.get("model") in names:
            yield given


def rename_model(path: Path, old: str, new: str) -> int:
    """Rename a model in all of its ratings. Other processes can append ratings at the same time.

    Returns:
        The number of changed ratings.

    Raises:
        OSError: A file cannot be read or written.
    """
    if not rating_files(path):
        return 0
    count = 0
    with _lock_file(path):
        for file in rating_files(path):
            lines = file.read_bytes().split(b"\n")
            for number, line in enumerate(lines):
                if _encode_json(old) in line and (record := _rename_in_line(line, old, new)):
                    lines[number] = _encode_line(record)[:-1]
                    count += 1
            write_file(file, b"\n".join(lines))
    return count


def _rename_in_line(line: bytes, old: str, new: str) -> dict[str, Any] | None:
    """Return the record of a line with the new model name, or None if the line is damaged or of another model."""
    try:
        record = json.loads(line)
        return {**record, "model": new} if record.get("model") == old else None
    except (ValueError, AttributeError, RecursionError):
        return None


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Lock the file of ratings against other threads and processes."""
    with _lock, filelock.FileLock(path.with_name(f".{path.name}.lock")):
        yield


def _encode_line(record: Mapping[str, Any]) -> bytes:
    return _encode_json(record) + b"\n"


def _encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _blank_line(files: Sequence[Path], record: Mapping[str, Any]) -> None:
    """Overwrite the line of a record with spaces in the first file that contains this record.

    The history is not compared, because it may have been shortened. The time distinguishes ratings of equal replies.
    """
    end = _encode_line({name: value for name, value in record.items() if name not in ("written_to", "history")})[1:]
    for path in files:
        lines = path.read_bytes()
        status = path.stat()
        start = lines.rfind(b" " + end)
        if start >= 0:
            begin = lines.rfind(b"\n", 0, start) + 1
            with path.open("r+b") as file:
                file.seek(begin)
                file.write(b" " * (start + len(end) - begin))
            # Restore the modification time, so readers do not read the whole file again. The appended line already
            # tells them about the correction.
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            return
