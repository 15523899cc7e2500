"""Saves and loads conversations as JSON Lines files, for /save, /overwrite and /load.

A line contains consecutive questions and replies: {"messages": [{"role": ..., "content": ...}, ...]}. If a reply was
rated good, its message also contains the rating. If a reply was rated bad, it has a line of its own with its question:
{"question": ..., "rejected": ..., "rating": "bad", ...}. `train.py --data` skips such lines.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from chatbot.chat.conversation import Exchange
from chatbot.display import replace_surrogates
from chatbot.durable import write_file
from chatbot.errors import UserError
from chatbot.retrieval.ratings import rating_record

MAX_FILE_BYTES = 2**24
USER = "user"
ASSISTANT = "assistant"


def save(path: Path, exchanges: Sequence[Exchange], overwrite: bool = False) -> None:
    """Write a conversation to a file.

    Args:
        path: The file to write, with the suffix .jsonl.
        exchanges: The questions and replies of the conversation.
        overwrite: Whether to replace an existing file.

    Raises:
        UserError: If the file has another suffix or already exists, or if the conversation is empty.
        OSError: If the file cannot be written.
    """
    if path.suffix.lower() != ".jsonl":
        raise UserError(f"{path}: the file name must end in .jsonl, for example /save chat.jsonl")
    if path.exists() and not overwrite:
        raise UserError(f"{path} already exists; use /overwrite {path} to replace the file")
    if not exchanges:
        raise UserError(f"{path}: there are no replies to save; ask a question first")
    content = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in _build_records(exchanges))
    write_file(path, content.encode())


def _build_records(exchanges: Sequence[Exchange]) -> Iterator[dict[str, Any]]:
    """Yield a JSON object for each line of the file."""
    for is_bad, group in groupby(exchanges, lambda exchange: exchange.rating == "bad"):
        if is_bad:
            for exchange in group:
                yield {"question": exchange.question, "rejected": exchange.reply, **_rating_fields(exchange)}
        else:
            messages = []
            for exchange in group:
                messages.append({"role": USER, "content": exchange.question})
                messages.append({"role": ASSISTANT, "content": exchange.reply, **_rating_fields(exchange)})
            yield {"messages": messages}


def _rating_fields(exchange: Exchange) -> dict[str, Any]:
    record = exchange.stored_rating or {}
    return {name: record[name] for name in ("rating", "model", "time") if name in record}


def load(path: Path) -> list[Exchange]:
    """Read a conversation and its ratings from a file.

    Raises:
        UserError: If the file contains no conversation.
        OSError: If the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    try:
        if len(content) > MAX_FILE_BYTES:
            raise ValueError
        values = [json.loads(line) for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        exchanges = [exchange for value in values for exchange in _parse_exchanges(value)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        exchanges = []
    if not exchanges:
        raise UserError(f"{path}: the file contains no conversation; choose a file created by /save")
    return exchanges


def _parse_exchanges(value: Any) -> list[Exchange]:
    """Return the questions and replies of a line. Invalid values raise one of the exceptions that `load` handles."""
    if "messages" not in value:
        return [_create_exchange(value["question"], value["rejected"], value)]
    messages = value["messages"]
    if [message["role"] for message in messages] != [USER, ASSISTANT] * (len(messages) // 2):
        raise ValueError
    pairs = zip(messages[::2], messages[1::2], strict=True)
    return [_create_exchange(question["content"], reply["content"], reply) for question, reply in pairs]


def _create_exchange(question: str, reply: str, fields: Mapping[str, Any]) -> Exchange:
    """Create an exchange. `fields` is the JSON object that contains the reply, and possibly its rating."""
    question = replace_surrogates(question)
    reply = replace_surrogates(reply)
    if (rating := fields.get("rating")) not in ("good", "bad"):
        return Exchange(question, reply)
    model = str(fields.get("model", ""))
    record = rating_record(question, reply, (), rating, model, time=str(fields.get("time", "")))
    return Exchange(question, reply, stored_rating=record, model=model)
