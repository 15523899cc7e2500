"""Conversations in files: /save, /overwrite and /load.

A file whose name ends in .jsonl has one line, {"messages": [{"role": ..., "content": ...}, ...]}. Any other has two
lines for each question and its reply, with a blank line between them. `train.py --data` reads both.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chatbot.chat.conversation import Exchange
from chatbot.chat.visible import decodable, visible
from chatbot.errors import UserError

LARGEST_FILE = 2**24  # bytes
ASKING, ANSWERING = "user", "assistant"
REMEDY = "give a file as /save writes it: JSON Lines, or two lines for each question and its reply"


def save(path: Path, exchanges: Sequence[Exchange], overwrite: bool = False) -> None:
    """Write a conversation to a file.

    Raises UserError for a file that cannot be written, and for one that exists unless it is to be overwritten.
    """
    if path.is_dir():
        raise UserError(f"{path}: a folder; add the name of a file")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}; make it first, or give another path")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists; /overwrite {path} replaces it")
    turns = [(exchange.question, exchange.reply) for exchange in exchanges]
    if path.suffix.lower() == ".jsonl":
        roles = (ASKING, ANSWERING)
        messages = [{"role": role, "content": text} for turn in turns for role, text in zip(roles, turn, strict=True)]
        content = json.dumps({"messages": messages}, ensure_ascii=False) + "\n"
    else:
        content = "\n".join(f"{visible(question)}\n{visible(reply)}\n" for question, reply in turns)
    written = path.with_name(path.name + ".part")
    try:
        written.write_text(content, encoding="utf-8")
        os.replace(written, path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; check the permissions and the free space") from error
    finally:
        with contextlib.suppress(OSError):
            written.unlink()


def load(path: Path) -> list[tuple[str, str]]:
    """Read a conversation: each question and its reply. Raises UserError for a file that holds none."""
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
        turns = [turn for number, line in lines for turn in _turns_of(line, f"{path}, line {number}")]
    else:
        turns = [line.strip() for _, line in lines]
    if len(turns) % 2:
        raise UserError(f"{path}: a question without a reply at its end; {REMEDY}")
    turns = [decodable(turn) for turn in turns]
    return list(zip(turns[::2], turns[1::2], strict=True))


def _turns_of(line: str, place: str) -> list[str]:
    """Return the turns of a line of JSON, alternately question and reply. Raises UserError for another value."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{place}: not JSON; {REMEDY}") from None
    turns = list(_texts(value))
    if not turns or len(turns) % 2 or not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{place}: no questions with a reply each; {REMEDY}")
    return turns


def _texts(value: Any) -> Iterator[Any]:
    """Yield the turns of a value, and None for what is no turn or not in its place."""
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict) and isinstance(value.get("messages"), list):
        roles = [ASKING, ANSWERING]
        for message in value["messages"]:
            if not isinstance(message, dict):
                yield None
            elif message.get("role") != "system":
                yield message.get("content") if message.get("role") == roles[0] else None
                roles.reverse()
    elif isinstance(value, dict):
        history = value.get("history", [])
        for turn in history if isinstance(history, list) else [None]:
            yield from turn if isinstance(turn, list) else [turn]
        yield value.get("question")
        yield value.get("answer")
