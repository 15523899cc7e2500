"""Pairs of text, and how they follow each other in a conversation.

A pair is (question, answer, link), a plain tuple, since a named one takes ten times as long to create. The link says
how it follows the previous pair of its file:

    NEW      the pair begins a conversation, as every row of a table does
    OVERLAP  its question is the answer of the previous pair, as in a list of utterances
    NEXT     its question comes after the answer of the previous pair, as in messages of a user and an assistant
    RESUMED  it belongs to the conversation of the previous pair, but the turns between them were dropped

The turns before a question follow from the previous pairs, up to the first NEW or RESUMED one: OVERLAP adds the
question of the previous pair, NEXT its question and its answer. Readers yield no RESUMED link; cleaning does.
"""

from collections.abc import Callable, Iterable, Iterator

from chatbot.display import listing, one_line
from chatbot.errors import UserError

Pair = tuple[str, str, int]

NEW, OVERLAP, NEXT, RESUMED = range(4)


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
