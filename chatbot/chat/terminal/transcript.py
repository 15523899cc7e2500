"""Conversations in files of JSON Lines: /save, /overwrite and /load.

A line is {"messages": [{"role": ..., "content": ...}, ...]}. The message of a reply that was rated good also has the
rating. A reply that was rated bad is a line of its own between two such lines, as in the file of ratings:
{"question": ..., "rejected": ..., "rating": "bad", ...}. `train.py --data` leaves it out.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from chatbot.chat.conversation import Exchange
from chatbot.display import decodable
from chatbot.durable import write_file
from chatbot.errors import UserError
from chatbot.retrieval.ratings import rating_of

LARGEST_FILE = 2**24  # bytes
ASKING = "user"
ANSWERING = "assistant"


def save(path: Path, exchanges: Sequence[Exchange], overwrite: bool = False) -> None:
    """Write a conversation to a file.

    Raises UserError for one that exists unless it is to be overwritten, for a name that does not end in .jsonl, and
    without a question; OSError for a file that cannot be written.
    """
    if path.suffix.lower() != ".jsonl":
        raise UserError(f"{path}: expected a name that ends in .jsonl, such as /save chat.jsonl")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists; /overwrite {path} replaces it")
    if not exchanges:
        raise UserError(f"{path}: there is no reply to save; ask a question first")
    content = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in _values_of(exchanges))
    write_file(path, content.encode())


def _values_of(exchanges: Sequence[Exchange]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a conversation, each for one line."""
    for is_bad, group in groupby(exchanges, lambda exchange: exchange.rating == "bad"):
        if is_bad:
            for exchange in group:
                yield {"question": exchange.question, "rejected": exchange.reply, **_mark(exchange)}
        else:
            messages = []
            for exchange in group:
                messages.append({"role": ASKING, "content": exchange.question})
                messages.append({"role": ANSWERING, "content": exchange.reply, **_mark(exchange)})
            yield {"messages": messages}


def _mark(exchange: Exchange) -> dict[str, Any]:
    rated = exchange.rated or {}
    return {name: rated[name] for name in ("rating", "model", "time") if name in rated}


def load(path: Path) -> list[Exchange]:
    """Read a conversation: questions, replies and ratings. Raises UserError or OSError for a file that holds none."""
    with path.open("rb") as file:
        content = file.read(LARGEST_FILE + 1)
    try:
        if len(content) > LARGEST_FILE:
            raise ValueError
        values = [json.loads(line) for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        exchanges = [exchange for value in values for exchange in _exchanges_of(value)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        exchanges = []
    if not exchanges:
        raise UserError(f"{path}: holds no conversation; give a file as /save writes it")
    return exchanges


def _exchanges_of(value: Any) -> list[Exchange]:
    """Return the questions and replies of a line of JSON. Raises any of several errors for another value."""
    if "messages" not in value:
        return [_exchange(value["question"], value["rejected"], value)]
    messages = value["messages"]
    if [message["role"] for message in messages] != [ASKING, ANSWERING] * (len(messages) // 2):
        raise ValueError
    pairs = zip(messages[::2], messages[1::2], strict=True)
    return [_exchange(asking["content"], answering["content"], answering) for asking, answering in pairs]


def _exchange(question: str, reply: str, of_reply: Mapping[str, Any]) -> Exchange:
    """Return a question and its reply. of_reply: the object with the reply, which may have its rating."""
    question = decodable(question)
    reply = decodable(reply)
    if (rating := of_reply.get("rating")) not in ("good", "bad"):
        return Exchange(question, reply)
    model = str(of_reply.get("model", ""))
    time = str(of_reply.get("time", ""))
    return Exchange(question, reply, rated=rating_of(question, reply, (), rating, model, time=time), model=model)
