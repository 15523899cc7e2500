"""Telegram's result.json: one chat with its "messages", or an account whose "chats" have a "list" of such chats.

A file of any size is read message by message.
"""

import re
from collections.abc import Iterator

import ijson

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.formats.chat import NOTICES, Message, pairs_of_messages, time_of
from chatbot.corpus.reading.formats.json_files import JsonInput, json_errors
from chatbot.corpus.reading.open.text_file import TextFile, decoded
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

LISTS = ("messages", "chats.list.item.messages", "left_chats.list.item.messages")
MAX_PREFIX = 1000  # characters of the names around a value

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

    def messages() -> Iterator[Message | None]:
        builder: ijson.ObjectBuilder | None = None
        for prefix, event, scalar in ijson.parse(source):
            if len(prefix) > MAX_PREFIX:
                raise UserError(f"{text.place}: values nested too deeply; export the chat from Telegram again")
            if prefix in LISTS and event == "start_array":
                yield None
            in_list = prefix.endswith(".item") and prefix.removesuffix(".item") in LISTS
            if in_list and event == "start_map":
                builder = ijson.ObjectBuilder()
            if builder is None:
                source.value_start = source.read_bytes
                continue
            builder.event(event, scalar)
            if in_list and event == "end_map":
                source.value_is_read()
                if message := _message(builder.value):
                    yield message
                else:
                    drop(NOTICES)
                builder = None

    with json_errors(source):
        yield from decoded(pairs_of_messages(messages(), options, report, text.place), text, report, drop)


def _message(value: dict[str, object]) -> Message | None:
    """Return a message; None for a notice."""
    if value.get("type", "message") != "message":
        return None
    names = tuple(str(value[name]) for name in ("from", "from_id") if value.get(name)) or ("",)
    time = time_of(str(value.get("date_unixtime", value.get("date", ""))))
    return Message(names[-1], names, time, _text(value.get("text")))


def _text(value: object) -> str:
    """Return the text of a message: a text, or a list of texts and of parts with a format."""
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return _text(value.get("text"))
    return value if isinstance(value, str) else ""
