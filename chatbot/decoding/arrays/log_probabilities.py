"""The log-probabilities of the next id, of which some are not allowed."""

import numpy as np
import numpy.typing as npt

from chatbot.decoding.automaton import BoundedAutomaton

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

INFINITE = np.float32(np.inf)


def log_softmax(logits: Floats) -> Floats:
    """Return the logarithm of the softmax of each row; an id of -inf keeps it."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def allowed_logits(automaton: BoundedAutomaton, logits: Floats, states: Ids, positions: Ids) -> Floats:
    """Return the logits, -inf where an id may not follow: [rows, vocabulary].

    states: of the automaton. positions: 0 at the first id. [rows] both.
    """
    left = np.minimum(automaton.last - positions, len(automaton.in_time) - 1)
    return np.where(automaton.in_time[left, states], logits, -INFINITE)
