"""Conversations in files: /save, /overwrite and /load.

A file whose name ends in .jsonl has the line {"messages": [{"role": ..., "content": ...}, ...]}. The message of a reply
that was rated good also has the rating. A reply that was rated bad is a line of its own between two such lines, as in
the file of ratings: {"question": ..., "rejected": ..., "rating": "bad", ...}. Any other file has two lines for each
question and its reply, with a blank line between them, without the replies that were rated bad. `train.py --data` reads
both, and leaves out the replies that were rated bad.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from chatbot.chat.conversation import Exchange, rating_of
from chatbot.corpus.reading.display import decodable, visible
from chatbot.durable import write_file
from chatbot.errors import UserError

LARGEST_FILE = 2**24  # bytes
ASKING, ANSWERING = "user", "assistant"
REMEDY = "give a file as /save writes it: JSON Lines, or two lines for each question and its reply"


def save(path: Path, exchanges: Sequence[Exchange], overwrite: bool = False) -> int:
    """Write a conversation to a file. Returns the number of its questions: a file of text leaves out bad replies.

    Raises UserError for one that exists unless it is to be overwritten, and OSError for one that cannot be written.
    """
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists; /overwrite {path} replaces it")
    if path.suffix.lower() == ".jsonl":
        content = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in _values_of(exchanges))
    else:
        exchanges = [exchange for exchange in exchanges if exchange.rating != "bad"]
        content = "\n".join(f"{visible(exchange.question)}\n{visible(exchange.reply)}\n" for exchange in exchanges)
    if not exchanges:
        raise UserError(f"{path}: there is no reply to save; a name that ends in .jsonl keeps those rated bad, too")
    write_file(path, content.encode())
    return len(exchanges)


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
        lines = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        if lines[0].startswith("{"):
            return [exchange for line in lines for exchange in _exchanges_of(json.loads(line))]
        turns = [decodable(line.strip()) for line in lines]
        return [Exchange(question, reply) for question, reply in zip(turns[::2], turns[1::2], strict=True)]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path}: holds no conversation; {REMEDY}") from None


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
    question, reply = decodable(question), decodable(reply)
    if (rating := of_reply.get("rating")) not in ("good", "bad"):
        return Exchange(question, reply)
    model, time = str(of_reply.get("model", "")), str(of_reply.get("time", ""))
    return Exchange(question, reply, rated=rating_of(question, reply, (), rating, model, time), model=model)
