"""The declared layouts of objects and rows, which layouts.yaml lists: which of them values have; their functions."""

import functools
import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from chatbot.corpus.reading.mapping import compiled
from chatbot.corpus.reading.messages import shown_marks, without_quotes
from chatbot.corpus.reading.records import NO_PAIR, Layout, repaired, text_of, without_html
from chatbot.corpus.reading.wordings import table_of


def shown_branch(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages that ChatGPT, DeepSeek or Open WebUI showed last, from the tree of a conversation."""
    history = value.get("chat", {}).get("history", {}) if "chat" in value else value
    nodes = history.get("mapping") or history.get("messages")
    nodes = {key: node for key, node in nodes.items() if isinstance(node, dict)} if isinstance(nodes, dict) else {}
    key = history.get("current_node", history.get("currentId"))
    if not isinstance(key, str) or key not in nodes:  # the last message that has no reply
        key = next(
            (key for key in reversed(nodes) if not nodes[key].get("children", nodes[key].get("childrenIds"))), ""
        )
    branch: list[Any] = []
    while isinstance(key, str) and key in nodes:
        node = nodes.pop(key)
        message = node.get("message", node)
        if isinstance(message, dict):
            branch += reversed(message.get("fragments") or [message])
        key = node.get("parent", node.get("parentId"))
    return branch[::-1]


def tree_of_replies(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages of a tree, each with the id of its parent as parent_id."""
    found: list[Any] = []
    waiting = [(root, "") for root in value.get("messagesTree") or [value.get("prompt") or value]]
    while waiting:
        node, parent = waiting.pop()
        if isinstance(node, dict):
            key = text_of(node.get("message_id", node.get("rpid", node.get("messageId"))))
            found.append({**node, "parent_id": parent, "message_id": key})
            replies = node.get("replies") or node.get("children")
            waiting += [(reply, key) for reply in reversed(replies)] if isinstance(replies, list) else []
    return found


def with_senders(value: Mapping[str, Any]) -> list[Any]:
    """Return the messages of WeFlow's compact file, each with its entry in the list of senders."""
    senders = {each.get("senderID"): each for each in value["senders"] if isinstance(each, dict)}
    messages = [each for each in value["messages"] if isinstance(each, dict)]
    return [{**each, "sender": senders.get(each.get("senderID"), {})} for each in messages]


def _without_details(markup: str) -> str:
    while "<details" in markup:  # the reasoning of a model
        before, _, rest = markup.partition("<details")
        markup = before + rest.partition("</details>")[2]
    return markup.strip()


def _without_marks(text: str) -> str:
    """Return a text of MOSS without the marks around it."""
    text = text.partition("|>:")[2] or text
    return text.rpartition("<eo")[0].strip() if "<eo" in text else text.strip()


def _of_json(text: str) -> str:
    """Return the text in an object of JSON, as some programs write it in a cell."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text_of(value.get("msg", value.get("text"))) if isinstance(value, dict) else text


def _of_post(text: str) -> str:
    return without_quotes(html.unescape(text))


def _of_slack(text: str) -> str:
    return html.unescape(shown_marks(text))


_DISCORD = re.compile(  # what Discord writes in place of a text
    r"Pinned a message\.|Joined the server\.|Started a (?:thread\.|call that lasted .*)|Left the group\."
    r"|Changed the channel (?:name|icon)\b.*|(?:Added|Removed) .{1,60} (?:to|from) the group\."
)


def of_discord(text: str) -> str:
    """Return a text of Discord, "" for what it wrote itself."""
    return "" if _DISCORD.fullmatch(text) else text


KAKAOTALK = re.compile(
    r"<?(?:사진|동영상|이모티콘|음성메시지)(?: \d+장)?(?: 읽지 않음)?>?|파일: .*|삭제된 메시지입니다\."
)


def _of_kakaotalk(text: str) -> str:
    return "" if KAKAOTALK.fullmatch(text) else text


def _alternating(value: Mapping[str, Any]) -> list[Any]:
    """Return the texts of a user and an assistant, who take turns, as messages."""
    return [{"role": ("user", "assistant")[n % 2], "text": text} for n, text in enumerate(value["data"])]


def _without_name(text: str) -> str:
    """Return a reply to a reply without 回复 @name : before it."""
    return text.partition(":")[2].strip() if text.startswith("回复 @") and ":" in text else text


def _with_outer(value: Mapping[str, Any]) -> list[Any]:
    """Return the objects in the lists of an object, each with the fields around it, such as questions of a passage."""
    lists = [part for part in value.values() if isinstance(part, list)]
    return [{**value, **each} for part in lists for each in part if isinstance(each, dict)]


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "shown_branch": shown_branch,
    "tree_of_replies": tree_of_replies,
    "with_senders": with_senders,
    "with_outer": _with_outer,
    "without_details": _without_details,
    "without_marks": _without_marks,
    "without_name": _without_name,
    "without_html": without_html,
    "repaired": repaired,
    "of_json": _of_json,
    "of_post": _of_post,
    "of_slack": _of_slack,
    "of_discord": of_discord,
    "of_kakaotalk": _of_kakaotalk,
    "alternating": _alternating,
}


@functools.cache
def table() -> list[tuple[list[str], Layout]]:
    """Return (signature, layout) of each row of layouts.yaml."""
    return [(row["signature"], _layout(row)) for row in table_of("layouts.yaml")]


def _layout(row: dict[str, Any]) -> Layout:
    return Layout(
        compiled(row["map"], is_declared=True),
        row["name"],
        frozenset(row.get("texts", ())),
        frozenset(row.get("notices", ())),
        FUNCTIONS[row["finish"]] if "finish" in row else str,
        FUNCTIONS[row["unfold"]] if "unfold" in row else None,
        row.get("rejected", NO_PAIR),
    )


def declared(values: Sequence[object]) -> list[Layout]:
    """Return the declared layouts whose signature is true of each of these values."""
    return [
        layout
        for signature, layout in table()
        if values and all(exists(value, path) for path in signature for value in values)
    ]


HEAD = 50  # items of a list in which the path of a signature is looked for
_TYPES: dict[str, Callable[[Any], bool]] = {
    "": lambda value: True,
    "text": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float),
    "label": lambda value: isinstance(value, int) or (isinstance(value, str) and value.isdecimal()),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def exists(value: object, path: str) -> bool:
    """Return whether a path exists in a value: names with dots between, [] for an item of a list, * for any field.

    Of several paths with | between, one must exist.
    """
    if "|" in path:
        return any(exists(value, each) for each in path.split("|"))
    if path.startswith("#"):
        return isinstance(value, dict) and len(value) == int(path[1:])
    if path.startswith("!"):
        return not exists(value, path[1:])
    path, _, kind = path.partition(":")
    steps = path.replace("[", ".[").removeprefix(".").split(".")
    return _exists(value, steps, _TYPES[kind])


def _exists(value: Any, steps: Sequence[str], is_kind: Callable[[Any], bool]) -> bool:
    if not steps:
        return is_kind(value)
    step, *rest = steps
    if step == "[]":
        return isinstance(value, list) and (not value or any(_exists(item, rest, is_kind) for item in value[:HEAD]))
    if step.startswith("["):
        place = int(step[1:-1])
        return isinstance(value, list) and len(value) > place and _exists(value[place], rest, is_kind)
    if not isinstance(value, dict):
        return False
    if step == "*":
        return any(_exists(part, rest, is_kind) for part in [*value.values()][:HEAD])
    return step in value and _exists(value[step], rest, is_kind)
