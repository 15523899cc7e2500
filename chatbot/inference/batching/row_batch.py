"""Replies that are generated together, token by token. Each may begin and end at another time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.encoding.vocabulary import BOS, EOS, PAD
from chatbot.inference.batching.asked import Asked
from chatbot.inference.batching.reply import UnfinishedReply
from chatbot.inference.batching.rules import Floats, Rows
from chatbot.inference.row_model import RowModel

# The question of the anti-language model, as in `reply_search`.
EMPTY_QUESTION = [BOS]
# Rows that are not needed any more are left out when they are a quarter of all: the others are copied then.
LEAVING_SHARE = 0.25


class Started(NamedTuple):
    """The replies to a question before their first id."""

    source: Sequence[int]  # the ids of the question
    replies: list[UnfinishedReply]
    uniform: Floats  # [replies, max_length], for sampling


class RowBatch:
    """Replies that are generated together. max_length: of a reply, in tokens.

    The model's state has a row for each reply, and then one for each reply that needs the distribution without the
    question, for `anti_lm`.
    """

    def __init__(self, model: RowModel, max_length: int) -> None:
        self._model, self._max_length = model, max_length
        self.clear()

    def clear(self) -> None:
        """Forget all replies."""
        self._replies: list[UnfinishedReply] = []
        self._rows = self._new_rows([])
        self._generic = np.zeros(0, np.int64)  # the replies that the rows after those of the replies belong to
        self._has_ended = np.zeros(0, np.bool_)
        self._state: Any = None

    @property
    def unfinished(self) -> int:
        """The number of unfinished replies."""
        return len(self._replies) - int(self._has_ended.sum())

    @property
    def asked(self) -> list[Asked]:
        """The questions with unfinished replies."""
        return list(dict.fromkeys(self._replies[row].asked for row in np.flatnonzero(~self._has_ended)))

    def change(self, started: Sequence[Started]) -> None:
        """Add replies. If some are added, or many rows are not needed any more, leave these out."""
        for row, reply in enumerate(self._replies):
            self._has_ended[row] |= reply.asked.is_over
        kept, left = np.flatnonzero(~self._has_ended), self._generic_left()
        old, width = len(self._replies), len(self._replies) + len(self._generic)
        if not started and len(kept) + len(left) > (1 - LEAVING_SHARE) * width:
            return
        arrived = [reply for one in started for reply in one.replies]
        if not len(kept) + len(arrived):
            self.clear()
            return
        # The rows of the next state, as numbers of rows of the present one and of the questions behind it.
        numbers = [kept, *(np.full(len(one.replies), width + i, np.int64) for i, one in enumerate(started))]
        needing = [len(kept) + i for i, reply in enumerate(arrived) if reply.rules.generic_tokens]
        numbers += [old + left, np.full(len(needing), width + len(started), np.int64)]
        states = [] if self._state is None else [self._state]
        if started:
            states.append(self._model.encode([one.source for one in started] + [EMPTY_QUESTION] * bool(needing)))
        self._state = self._model.take(states, np.concatenate(numbers))
        self._generic = np.concatenate([np.searchsorted(kept, self._generic[left]), np.array(needing, np.int64)])
        self._replies = [self._replies[row] for row in kept] + arrived
        joined: Any = zip(self._rows.of(kept), self._new_rows(started), strict=True)
        self._rows = Rows(*map(np.concatenate, joined))
        self._has_ended = np.zeros(len(self._replies), np.bool_)

    def advance(self) -> None:
        """Add an id to each reply."""
        rows, number = self._rows, len(self._replies)
        logits, self._state = self._model.step(self._state, np.concatenate([rows.last, rows.last[self._generic]]))
        groups = defaultdict(list)
        for row, reply in enumerate(self._replies):
            groups[reply.rules].append(row)
        left = self._generic_left()
        generic_rows, generic_logits = self._generic[left], logits[number + left]
        ids, states = np.full(number, EOS, np.int64), np.zeros(number, np.int64)
        with np.errstate(all="ignore"):  # logarithms of 0 and differences of infinities are meant
            for rules, of_group in groups.items():
                # A view of all rows is not copied.
                places: Any = slice(None) if len(of_group) == number else np.array(of_group)
                try:
                    generic = None
                    if rules.generic_tokens and len(generic_rows):
                        generic = np.zeros((number, logits.shape[1]), np.float32)
                        generic[generic_rows] = generic_logits
                        generic = generic[places]
                    ids[places], states[places] = rules.choose(logits[:number][places], rows.of(places), generic)
                except Exception as error:  # of this group: the others go on
                    for row in of_group:
                        self._replies[row].asked.give(error)
        rows.ids[np.arange(number), rows.positions] = ids
        for row in np.flatnonzero(~self._has_ended).tolist():
            reply = self._replies[row]
            self._has_ended[row] = reply.asked.is_over or reply.add(int(ids[row]), logits[row])
        self._rows = rows._replace(positions=rows.positions + ~self._has_ended, last=ids, states=states)

    def _generic_left(self) -> npt.NDArray[np.intp]:
        """Return which rows without the question are still needed, as numbers from 0."""
        tokens = np.array([self._replies[row].rules.generic_tokens for row in self._generic], np.int64)
        return np.flatnonzero(~self._has_ended[self._generic] & (self._rows.positions[self._generic] < tokens))

    def _new_rows(self, started: Sequence[Started]) -> Rows:
        starts = [reply.rules.automaton.start for one in started for reply in one.replies]
        number = len(starts)
        return Rows(
            ids=np.full((number, self._max_length), PAD, np.int64),
            positions=np.zeros(number, np.int64),
            last=np.full(number, BOS, np.int64),
            states=np.array(starts, np.int64),
            uniform=np.concatenate([one.uniform for one in started] or [np.zeros((0, self._max_length), np.float32)]),
        )
