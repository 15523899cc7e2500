"""Telegram's result.json: one chat with its "messages", or an account whose "chats" have a "list" of such chats.

A file of any size is read message by message.
"""

import re
from collections.abc import Iterator

import ijson

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.formats.chat import NOTICES, Message, pairs_of_messages, time_of
from chatbot.corpus.reading.formats.json_files import Event, JsonInput, fields_of, items_of, json_errors, skip_value
from chatbot.corpus.reading.open.text_file import TextFile, decoded
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

ACCOUNT = ("chats", "left_chats")  # the fields of an account that have a list of chats
MAX_DEPTH = 4  # objects from the account to a chat

_CHAT = re.compile(r'"messages"\s*:\s*\[')
_MESSAGE = re.compile(r'"(?:from_id|actor_id|date_unixtime)"\s*:\s*["\d]')  # a number before 2021
_ACCOUNT = re.compile(r'"(?:personal_information|frequent_contacts)"\s*:\s*\{')


def is_telegram(text: TextFile) -> bool:
    """Return whether a JSON object is Telegram's. Its beginning may lack the messages of an account."""
    sample = text.sample
    return sample.lstrip().startswith("{") and bool(
        (_CHAT.search(sample) and _MESSAGE.search(sample)) or _ACCOUNT.search(sample)
    )


def read_telegram(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of all chats.

    Raises UserError for JSON that is incomplete or invalid, and if `options.me` wrote no message.
    """
    source = JsonInput(text.stream, text.place)

    def drop(reason: str) -> None:
        report.drop(reason, f"{text.place}, message {source.values:,}")

    with json_errors(source):
        events: Iterator[Event] = iter(ijson.basic_parse(source))
        if next(events)[0] != "start_map":
            raise UserError(f"{text.place}: not Telegram's result.json, which is an object with messages or chats")
        pairs = pairs_of_messages(_messages(events, source, report), options, report, text.place)
        yield from decoded(pairs, text, report, drop)


def _messages(events: Iterator[Event], source: JsonInput, report: Report, depth: int = 0) -> Iterator[Message | None]:
    """Yield the messages of an object whose first event has been taken, with None before each chat."""
    for key, first in fields_of(events, source):
        if first[0] == "start_array" and key == "messages":
            yield None
            for _, _, value in items_of(events, source):
                if message := _message(value):
                    yield message
                else:
                    report.drop(NOTICES, f"{source.place}, message {source.values:,}")
        elif first[0] == "start_map" and key in ACCOUNT and depth < MAX_DEPTH:
            yield from _messages(events, source, report, depth + 1)
        elif first[0] == "start_array" and key == "list" and depth:
            for event in iter(events.__next__, ("end_array", None)):
                if event[0] == "start_map":
                    yield from _messages(events, source, report, depth + 1)
                else:
                    skip_value(event, events, source)
        else:
            skip_value(first, events, source)


def _message(value: object) -> Message | None:
    """Return a message; None for a notice."""
    if not isinstance(value, dict) or value.get("type", "message") != "message":
        return None
    name, key = value.get("from"), value.get("from_id")
    names = tuple(str(part) for part in (name, key) if part)
    number = re.sub(r"^[a-z]+", "", names[-1]) if names else ""
    time = time_of(str(value.get("date_unixtime", value.get("date", ""))))
    return Message(names[-1] if names else "", (*names, number), time, _text(value.get("text")))


def _text(value: object) -> str:
    """Return the text of a message: a text, or a list of texts and of parts with a format."""
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return _text(value.get("text"))
    return value if isinstance(value, str) else ""
