"""The sequences of ids that a search may generate, as a finite automaton. This file needs no TensorFlow."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Automaton(NamedTuple):
    """The sequences of ids that a search may generate, as a finite automaton. Its state before the first id is 0.

    A sequence may end, by the end symbol or at the maximum length, in the states that allow the end symbol.
    """

    allowed: npt.NDArray[np.bool_]  # [states, vocabulary]
    next_states: npt.NDArray[np.int32]  # [states, vocabulary], 0 for ids that are not allowed


class BoundedAutomaton(NamedTuple):
    """An automaton for sequences of 1 to max_length ids."""

    start: int  # the state before the first id
    last: int  # the last position
    in_time: npt.NDArray[np.bool_]  # [ids left + 1, states, vocabulary], the ids after which the sequence can end
    next_states: npt.NDArray[np.int32]  # [states, vocabulary]


def bounded(automaton: Automaton, end: int, max_length: int) -> BoundedAutomaton:
    """Return the automaton for sequences of 1 to max_length ids.

    Each state must lead to one that allows the end symbol. A state that allows it needs another allowed id, too, by
    which it stays in such a state.
    """
    # The start is another state, since the end is not allowed there: a reply is not empty.
    start = len(automaton.allowed)
    allowed = np.concatenate([automaton.allowed, automaton.allowed[:1]])  # [states, vocabulary]
    allowed[start, end] = False
    next_states = np.concatenate([automaton.next_states, automaton.next_states[:1]])
    # The number of ids that must follow an id before the sequence may end, [states, vocabulary].
    following = _ids_to_end(automaton, end)[next_states]
    in_time = np.stack([allowed & (following <= left) for left in range(int(following.max()) + 1)])
    return BoundedAutomaton(start, max_length - 1, in_time, next_states)


def _ids_to_end(automaton: Automaton, end: int) -> npt.NDArray[np.int64]:
    """Return the least number of ids between each state and one that allows the end, [states]."""
    states = len(automaton.allowed)
    numbers = np.where(automaton.allowed[:, end], 0, states)
    while True:
        following = np.where(automaton.allowed, numbers[automaton.next_states], states).min(axis=1)
        smaller = np.minimum(numbers, following + 1)
        if (smaller == numbers).all():
            break
        numbers = smaller
    assert numbers.max() < states, "no end can be reached"
    return numbers
