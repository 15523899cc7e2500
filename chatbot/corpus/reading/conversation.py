"""Conversations as turns, and their pairs of text.

A pair is (question, answer, link), a plain tuple, since a named one takes ten times as long to create. The link says
how it follows the previous pair of its file:

    NEW      the pair begins a conversation, as every row of a table does
    OVERLAP  its question is the answer of the previous pair, as in a list of utterances
    NEXT     its question comes after the answer of the previous pair, as in messages of a user and an assistant
    RESUMED  it belongs to the conversation of the previous pair, but the turns between them were dropped

The turns before a question follow from the previous pairs, up to the first NEW or RESUMED one: OVERLAP adds the
question of the previous pair, NEXT its question and its answer. Readers yield no RESUMED link; cleaning does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from chatbot.display import listing, one_line
from chatbot.errors import UserError

Pair = tuple[str, str, int]

NEW, OVERLAP, NEXT, RESUMED = range(4)


class Turn(NamedTuple):
    """A turn of a conversation."""

    text: str
    asks: bool = True  # whether the next turn may answer it
    answers: bool = True  # whether it is to be learned as an answer


def pairs_of_turns(turns: Iterable[Turn | None]) -> Iterator[Pair]:
    """Yield each turn that answers, with the turn before it if that asks. None ends a conversation."""
    before: Turn | None = None
    link = NEW
    for turn in turns:
        if turn is None:
            before, link = None, NEW
            continue
        if before is not None and before.asks and turn.answers:
            yield before.text, turn.text, link
            link = OVERLAP
        elif link == OVERLAP:
            link = NEXT
        before = turn


def pairs_of_texts(texts: Sequence[str]) -> list[Pair]:
    """Return each utterance with the one after it: the pairs of a conversation in which everybody answers."""
    return list(zip(texts, texts[1:], chain((NEW,), repeat(OVERLAP)), strict=False))


def without_lost(pairs: Iterable[Pair], lost: str, drop: Callable[[], None]) -> Iterator[Pair]:
    """Yield the pairs without this character, and call `drop` for the others.

    The pair after one that is left out begins a new conversation.
    """
    interrupted = False
    for question, answer, link in pairs:
        if lost in question or lost in answer:
            drop()
            interrupted = True
        else:
            yield question, answer, NEW if interrupted else link
            interrupted = False


def of_position(pairs: Iterable[Pair], position: int) -> Iterator[Pair]:
    """Yield the pairs that one of two speakers without names answers. position: 1 for the one who begins, 2."""
    turn = 0  # the position of the last answer, from 0
    kept_turn = -2
    for question, answer, link in pairs:
        turn = turn + 1 if link == OVERLAP else turn + 2 if link == NEXT else 1
        if link == NEW:
            kept_turn = -2
        if turn % 2 == (position - 1) % 2:
            yield question, answer, NEXT if turn - kept_turn == 2 else OVERLAP if turn - kept_turn == 1 else NEW
            kept_turn = turn


def nobody_is(me: str, people: Iterable[str], place: str) -> UserError:
    """Return the error about a name for --me that nobody has. people: their names."""
    names = [one_line(name, 30) for name in people if name]
    if not names:
        reason = "nothing in it has a name; leave --me out, or give 1 or 2"
        return UserError(f"{place}: --me {one_line(me, 30)}, but {reason}")
    return UserError(listing(f"{place}: nobody is called {one_line(me, 30)}; give --me one of: ", names))
