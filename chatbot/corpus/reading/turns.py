"""From who said what to pairs: the only way, for every layout.

Consecutive messages of one speaker are one turn. A turn that answers makes a pair with the turn before it if that asks.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from typing import NamedTuple

from chatbot.corpus.reading.conversation import NEW, NEXT, OVERLAP, Pair
from chatbot.corpus.reading.names import ANSWERING, ASKING, ROLES, UNHEARD, key_of
from chatbot.display import CHINESE_OR_KANA

MAX_TURN = 10_000  # characters of several messages; a longer turn is no reply
TOO_LONG = f"turns of more than {MAX_TURN:,} characters"
_CHINESE = re.compile(f"[{CHINESE_OR_KANA}]")

NOT_TEXT = "utterances that are not text"
OF_PROGRAMS = "messages of systems, developers and tools"
UNKNOWN_ROLES = "messages of roles that are not known"

Drop = Callable[[str], None]  # counts a part without pairs, by the reason


class Said(NamedTuple):
    """What somebody says at once: a message, or an utterance."""

    text: str  # without one, such as a picture, a message stands between the turns around it
    speaker: str | None = None  # the same for all messages of one; None for an utterance, which is a turn by itself
    asks: bool = True  # whether the next turn may answer it
    answers: bool = True  # whether it is to be learned as an answer


def pairs_of_turns(said: Iterable[Said | None], drop: Drop) -> Iterator[Pair]:
    """Yield each turn that answers, with the turn before it if that asks. None ends a conversation."""
    before: Said | None = None
    link = NEW
    for key, messages in groupby(said, _key):
        turn = _turn(filter(None, messages), drop) if key else None
        if turn is None:
            link = NEW
        elif before is not None and before.asks and turn.answers:
            yield before.text, turn.text, link
            link = OVERLAP
        elif link == OVERLAP:
            link = NEXT
        before = turn


def _key(said: Said | None) -> object:
    """Return what is equal for the messages of a turn; None where a conversation ends."""
    return said and (object() if said.speaker is None else (said.speaker,))


def _turn(messages: Iterator[Said], drop: Drop) -> Said:
    """Return the messages of one speaker as one, which without text, or with too much, neither asks nor answers."""
    first = next(messages)
    second = next(messages, None)
    if second is None and (first.speaker is None or first.text.strip()):
        return first
    said: list[Said] = []
    characters = count = 0
    for message in chain((first, second), messages):
        if message and message.text.strip():
            count += 1
            characters += len(message.text)
            if count == 1 or characters <= MAX_TURN:
                said.append(message)
    if count > len(said):
        drop(TOO_LONG)
        said = []
    text = said[0].text if count == 1 else joined(message.text for message in said)
    return Said(text, first.speaker, any(each.asks for each in said), any(each.answers for each in said))


def pairs_of_roles(
    messages: Iterable[tuple[str, str] | None], drop: Drop, are_accepted: bool = False, me: str = ""
) -> Iterator[Pair]:
    """Yield the pairs of messages of (role, text), without those of programs. None ends a conversation.

    are_accepted: whether the user accepted roles that are not known, which then ask and answer.
    me: the role that answers all others; "" for those that are known to answer.
    """

    def said() -> Iterator[Said | None]:
        for message in messages:
            if message is None:
                yield None
                continue
            role = key_of(message[0])
            text = message[1]
            is_known = are_accepted or role in ROLES
            if role in UNHEARD:
                drop(OF_PROGRAMS)
                continue
            if not text.strip() or not is_known:
                drop(NOT_TEXT if is_known else UNKNOWN_ROLES)
            asks, answers = (role != me, role == me) if me else (role not in ANSWERING, role not in ASKING)
            yield Said(text if is_known else "", role, asks, answers)

    return pairs_of_turns(said(), drop)


def joined(parts: Iterable[str]) -> str:
    """Join messages or lines to one utterance.

    A comma separates Chinese that has no punctuation, nothing separates Chinese that has, and a space everything else.
    """
    text = ""
    for part in filter(None, map(str.strip, parts)):
        if text:
            chinese = _CHINESE.match(part) is not None
            if chinese and _CHINESE.match(text[-1]):
                text += "，"
            elif not (chinese and not text[-1].isascii() and not text[-1].isalnum()):
                text += " "
        text += part
    return text


def pairs_of_texts(texts: Iterable[str]) -> list[Pair]:
    """Return each utterance with the one after it: the pairs of a conversation in which everybody answers."""
    return [*pairs_of_turns(map(Said, texts), lambda reason: None)]
