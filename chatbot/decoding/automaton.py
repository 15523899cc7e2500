"""The sequences of ids that a search may generate, as a finite automaton."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.vocabulary import EOS
from chatbot.decoding.array_functions import INFINITY, Array, functions_of


class Automaton(NamedTuple):
    """The sequences of ids that a search may generate, as a finite automaton. Its state before the first id is 0.

    A sequence may end, by the end symbol or at the maximum length, in the states that allow the end symbol.
    """

    allowed: npt.NDArray[np.bool_]  # [states, vocabulary]
    next_states: npt.NDArray[np.int32]  # [states, vocabulary], 0 for ids that are not allowed


class BoundedAutomaton:
    """An automaton for sequences of 1 to max_length ids.

    Each state of the automaton must lead to one that allows the end symbol. A state that allows it needs another
    allowed id, too, by which it stays in such a state.

    max_length: in ids, the end symbol counts. start: the state before the first id.
    """

    def __init__(self, automaton: Automaton, max_length: int) -> None:
        self.max_length, self.start = max_length, len(automaton.allowed)
        # The start is another state, since the end is not allowed there: a reply is not empty.
        allowed = np.concatenate([automaton.allowed, automaton.allowed[:1]])  # [states, vocabulary]
        allowed[self.start, EOS] = False
        next_states = np.concatenate([automaton.next_states, automaton.next_states[:1]])
        # The number of ids that must follow an id before the sequence may end, [states, vocabulary].
        following = _ids_to_end(automaton)[next_states]
        self._most = int(following.max())
        # The ids after which the sequence can end in time, [(most + 1) * states, vocabulary], by the ids left.
        self._in_time = np.concatenate([allowed & (following <= left) for left in range(self._most + 1)])
        self._next_states = next_states.astype(np.int64).reshape(-1)

    def allowed_logits(self, logits: Array, states: Array, positions: Array) -> Array:
        """Return the logits, -inf where an id may not follow, or could not be followed by an end in time.

        logits: [rows, vocabulary] float32. states: [rows] int64. positions: 0 at the first id, [rows] or a scalar.
        """
        functions = functions_of(logits)
        left = functions.minimum(self.max_length - 1 - positions, self._most)
        rows = functions.int64(left * (self.start + 1)) + states
        return functions.where(functions.rows(self._in_time, rows), logits, -INFINITY)

    def states_after(self, states: Array, ids: Array) -> Array:
        """Return the states after these ids, int64, in the shape of both. states, ids: int64."""
        vocabulary = self._in_time.shape[1]
        return functions_of(states).rows(self._next_states, states * vocabulary + ids)


def _ids_to_end(automaton: Automaton) -> npt.NDArray[np.int64]:
    """Return the least number of ids between each state and one that allows the end, [states]."""
    states = len(automaton.allowed)
    numbers = np.where(automaton.allowed[:, EOS], 0, states)
    while True:
        following = np.where(automaton.allowed, numbers[automaton.next_states], states).min(axis=1)
        smaller = np.minimum(numbers, following + 1)
        if (smaller == numbers).all():
            break
        numbers = smaller
    assert numbers.max() < states, "no end can be reached"
    return numbers
