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

    Raises UserError for a file that cannot be written, and for one that exists unless it is to be overwritten.
    """
    if path.is_dir():
        raise UserError(f"{path}: a folder; add the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; make it first, or give another path")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists; /overwrite {path} replaces it")
    if path.suffix.lower() == ".jsonl":
        content = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in _values_of(exchanges))
    else:
        exchanges = [exchange for exchange in exchanges if exchange.rating != "bad"]
        if not exchanges:
            raise UserError(
                f"{path}: all replies are rated bad, nothing to save; a name that ends in .jsonl keeps them"
            )
        content = "\n".join(f"{visible(exchange.question)}\n{visible(exchange.reply)}\n" for exchange in exchanges)
    try:
        write_file(path, content.encode())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; check the permissions and the free space") from error
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
    """Read a conversation: questions, replies and ratings. Raises UserError for a file that holds none."""
    if path.is_dir():
        raise UserError(f"{path}: a folder; add the name of a file")
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path}: larger than {LARGEST_FILE // 2**20} MiB; give the file of one conversation")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start:,}; {REMEDY}") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UserError(f"{path}: empty; {REMEDY}")
    if lines[0][1].lstrip().startswith(("{", "[")):
        return [exchange for number, line in lines for exchange in _exchanges_of(line, f"{path}, line {number}")]
    turns = [decodable(line.strip()) for _, line in lines]
    if len(turns) % 2:
        raise UserError(f"{path}: a question without a reply at its end; {REMEDY}")
    return [Exchange(question, reply) for question, reply in zip(turns[::2], turns[1::2], strict=True)]


def _exchanges_of(line: str, place: str) -> list[Exchange]:
    """Return the questions and replies of a line of JSON. Raises UserError for another value."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{place}: not JSON; {REMEDY}") from None
    turns = list(_turns(value))
    if not turns or len(turns) % 2 or not all(isinstance(text, str) for text, _ in turns):
        raise UserError(f"{place}: no questions with a reply each; {REMEDY}")
    return [
        _exchange(decodable(question), decodable(reply), of_reply)
        for (question, _), (reply, of_reply) in zip(turns[::2], turns[1::2], strict=True)
    ]


def _exchange(question: str, reply: str, of_reply: Mapping[str, Any]) -> Exchange:
    """Return a question and its reply. of_reply: the object with the reply, which may have its rating."""
    rating, model, time = (of_reply.get(name) for name in ("rating", "model", "time"))
    if rating not in ("good", "bad"):
        return Exchange(question, reply)
    model, time = (value if isinstance(value, str) else "" for value in (model, time))
    return Exchange(question, reply, rated=rating_of(question, reply, (), rating, model, time), model=model)


def _turns(value: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield the turns of a value, with None for what is no turn or not in its place, and the object of each."""
    if isinstance(value, list):
        for turn in value:
            yield turn, {}
    elif isinstance(value, dict) and isinstance(value.get("messages"), list):
        roles = [ASKING, ANSWERING]
        for message in value["messages"]:
            if not isinstance(message, dict):
                yield None, {}
            elif message.get("role") != "system":
                yield message.get("content") if message.get("role") == roles[0] else None, message
                roles.reverse()
    elif isinstance(value, dict):
        history = value.get("history", [])
        for turn in history if isinstance(history, list) else [None]:
            for text in turn if isinstance(turn, list) else [turn]:
                yield text, {}
        yield value.get("question"), {}
        yield value.get("rejected" if value.get("rating") == "bad" else "answer"), value
