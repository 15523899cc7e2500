"""Generates a batch of replies token by token. Replies can start and end at different times.

The terminal chat, the server and exported models use this module unless a search compares several candidates.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.pieces import SPACE
from chatbot.corpus.vocabulary import BOS, EOS, PAD, Vocabulary
from chatbot.decoding.array_functions import Floats, Ids, NumpyFunctions, largest_indices
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.interface import EMPTY_QUESTION, NOT_FINITE, Model
from chatbot.decoding.processors import Prefix, apply_processors
from chatbot.decoding.reply_text import ReplyText
from chatbot.decoding.sampling import select_ids
from chatbot.errors import UserError
from chatbot.inference.request import FinishReason, Piece, Request, TokenLogProb

# Finished rows are removed when they make up this fraction of the batch. Removing them earlier would cost more, because
# it copies all remaining rows.
COMPACT_FRACTION = 0.25


class ReplyRows(NamedTuple):
    """The ids and decoding states of a batch of replies, one reply per row."""

    ids: Ids  # padded ids, [rows, max_length]
    positions: Ids  # number of ids generated so far
    last: Ids  # last id, initially BOS
    states: Ids  # states of the automaton
    uniform: Floats  # random numbers for sampling, [rows, max_length]

    def select(self, rows: Any) -> "ReplyRows":
        """Select rows with any kind of NumPy index."""
        return ReplyRows(*(x[rows] for x in self))


@dataclasses.dataclass(frozen=True, eq=False)
class TokenSelector:
    """Chooses the next token of each reply, according to decoding settings that need no search."""

    decoding: DecodingSettings
    automaton: BoundedAutomaton

    @property
    def generic_steps(self) -> int:
        """The number of initial tokens that --anti-lm affects. They need a distribution for an empty question, too."""
        return self.decoding.anti_lm_tokens if self.decoding.anti_lm else 0

    def select(self, logits: Floats, rows: ReplyRows, generic: Floats | None) -> tuple[Ids, Ids]:
        """Choose the next token of each reply.

        Args:
            logits: Logits of the next token, with shape [rows, vocabulary].
            rows: The replies so far.
            generic: Logits for an empty question, used by --anti-lm, with shape [rows, vocabulary]. They are 0 in rows
                that do not need them. None if no row needs them.

        Returns:
            The token ids and the next states of the automaton, both with shape [rows].
        """
        log_probs = self.automaton.allowed_logits(logits, rows.states, rows.positions)
        if self.decoding.repetition_penalty != 1:  # No other processor needs normalised log-probabilities.
            log_probs = NumpyFunctions.log_softmax(log_probs)
        log_probs = apply_processors(self.decoding, log_probs, Prefix(rows.positions[:, None], rows.ids), generic)
        uniform = np.take_along_axis(rows.uniform, rows.positions[:, None], axis=1)
        ids: Ids = select_ids(self.decoding, log_probs, uniform)
        return ids, self.automaton.states_after(rows.states, ids)


@dataclasses.dataclass(eq=False)
class PendingReply:
    """A reply that is being generated. New text is sent to the client as soon as it can no longer change.

    Attributes:
        request: The request that the reply belongs to.
        number: The index of the reply among all replies to the question.
        source: The ids of the question.
        selector: The selector that chooses the tokens of the reply.
        uniform: Random numbers for sampling, with shape [max_length].
        text: The text generated so far.
        limit: The maximum number of tokens.
        tokens: The log-probabilities of the tokens so far, if the question requests them.
        shown: The number of tokens whose log-probabilities have already been sent.
    """

    request: Request
    number: int
    source: Sequence[int]
    selector: TokenSelector
    uniform: Floats
    text: ReplyText
    limit: int
    tokens: list[TokenLogProb] = dataclasses.field(default_factory=list)
    shown: int = 0

    def add(self, token: int, logits: Floats) -> bool:
        """Append a token to the reply and send any new text.

        Args:
            token: The id of the token.
            logits: The logits the token was chosen from, with shape [vocabulary].

        Returns:
            Whether the reply is finished.
        """
        question = self.request.question
        text = self.text
        if token != EOS:
            text.ids.append(token)
            if question.top_log_probs is not None:
                self.tokens.append(token_log_prob(text.vocabulary, token, logits, question.top_log_probs))
        is_finished = token == EOS or len(text.ids) == self.limit
        if question.streams or text.stops or is_finished:
            text.read(is_whole=token == EOS)
        if is_finished or text.is_stopped:
            reason: FinishReason = "stop" if token == EOS or text.is_stopped else "length"
            # The reply excludes the tokens of the stop text.
            number = text.ids_before_stop() if text.is_stopped else len(text.ids)
            tokens = self._new_tokens(number)
            last = Piece(self.number, text.rest(), tokens, reason, read=self.request.read)
            self.request.finish_reply(last, len(text.ids))
            return True
        if question.streams and (piece := text.piece()):
            self.request.send(Piece(self.number, piece, self._new_tokens(len(text.ids))))
        return False

    def _new_tokens(self, number: int) -> tuple[TokenLogProb, ...]:
        """Return the log-probabilities of the first `number` tokens that have not been sent yet."""
        start = self.shown
        self.shown = number
        return tuple(self.tokens[start:number])


def token_log_prob(vocabulary: Vocabulary, token: int, logits: Floats, top: int) -> TokenLogProb:
    """Return the log-probability of a token and the most probable tokens at its position.

    Args:
        vocabulary: The vocabulary.
        token: The id of the token.
        logits: Logits at the token's position, with shape [vocabulary].
        top: The number of most probable tokens to return.
    """
    log_probs = NumpyFunctions.log_softmax(logits[None])[0]
    best = largest_indices(log_probs, top).tolist() if top else []
    alternatives = tuple((token_text(vocabulary, i), float(log_probs[i])) for i in best)
    return TokenLogProb(token_text(vocabulary, token), float(log_probs[token]), alternatives)


def token_text(vocabulary: Vocabulary, token: int) -> str:
    """Return the text of a token. Bytes that are not valid UTF-8 are decoded with `surrogateescape`."""
    return vocabulary.tokens_of([token], "surrogateescape")[0].replace(SPACE, " ")


class RowBatch:
    """A batch of replies, which can be added and removed between any two tokens (continuous batching).

    The model's state has one row per reply. With --anti-lm, "generic" rows follow. They contain the same replies as
    answers to an empty question.

    Args:
        model: The model.
        max_length: The maximum length of a reply, in tokens.
    """

    def __init__(self, model: Model, max_length: int) -> None:
        self._model = model
        self._max_length = max_length
        self.clear()

    def clear(self) -> None:
        """Remove all replies."""
        self._replies: list[PendingReply] = []
        self._rows = self._new_rows([])
        self._generic = np.zeros(0, np.int64)  # reply index of each generic row
        self._finished = np.zeros(0, np.bool_)
        self._state: Any = None

    @property
    def unfinished(self) -> int:
        """The number of unfinished replies."""
        return len(self._replies) - int(self._finished.sum())

    @property
    def requests(self) -> list[Request]:
        """The distinct requests with unfinished replies."""
        return list(dict.fromkeys(self._replies[row].request for row in np.flatnonzero(~self._finished)))

    def change(self, new: Sequence[Sequence[PendingReply]]) -> None:
        """Add the replies to each new question, and remove finished replies.

        Without new questions, finished replies are removed only if they make up a large part of the batch.
        """
        for row, reply in enumerate(self._replies):
            self._finished[row] |= reply.request.is_over
        unfinished = np.flatnonzero(~self._finished)
        generic = self._unfinished_generic()
        reply_count = len(self._replies)
        width = len(self._replies) + len(self._generic)
        if not new and len(unfinished) + len(generic) > (1 - COMPACT_FRACTION) * width:
            return
        added = [reply for replies in new for reply in replies]
        if not len(unfinished) + len(added):
            self.clear()
            return
        # The rows of the next state come from the current state, followed by the states of new questions.
        numbers = [unfinished, *(np.full(len(replies), width + i) for i, replies in enumerate(new))]
        new_generic = [len(unfinished) + i for i, reply in enumerate(added) if reply.selector.generic_steps]
        numbers += [reply_count + generic, np.full(len(new_generic), width + len(new))]
        states = [] if self._state is None else [self._state]
        rows = np.concatenate(numbers)
        if new:
            sources = [replies[0].source for replies in new] + [EMPTY_QUESTION] * bool(new_generic)
            states.append(self._model.encode(sources))
        if self._state is None and np.array_equal(rows, np.arange(len(sources))):
            (self._state,) = states  # The rows are already in order, so no copy is needed.
        else:
            self._state = self._model.take(states, rows)
        old_generic = np.searchsorted(unfinished, self._generic[generic])
        self._generic = np.concatenate([old_generic, np.array(new_generic, np.int64)])
        self._replies = [self._replies[row] for row in unfinished] + added
        joined: Any = zip(self._rows.select(unfinished), self._new_rows(added), strict=True)
        self._rows = ReplyRows(*map(np.concatenate, joined))
        self._finished = np.zeros(len(self._replies), np.bool_)

    def advance(self) -> None:
        """Generate one token of each reply. Raises UserError if the model returns NaN."""
        rows = self._rows
        number = len(self._replies)
        logits, self._state = self._model.step(self._state, np.concatenate([rows.last, rows.last[self._generic]]))
        if np.isnan(logits.max()):
            raise UserError(NOT_FINITE)
        groups = defaultdict(list)
        for row, reply in enumerate(self._replies):
            groups[reply.selector].append(row)
        generic = None
        needed = self._unfinished_generic()
        if len(needed):
            generic = np.zeros((number, logits.shape[1]), np.float32)
            generic[self._generic[needed]] = logits[number + needed]
        ids = np.full(number, EOS, np.int64)
        states = np.zeros(number, np.int64)
        with np.errstate(all="ignore"):  # Forbidden tokens cause log(0) and inf - inf.
            for selector, group in groups.items():
                # A slice avoids copying the rows if all replies share a selector.
                indices: Any = slice(None) if len(group) == number else np.array(group)
                group_generic = None if generic is None else generic[indices]
                group_logits = logits[:number][indices]
                ids[indices], states[indices] = selector.select(group_logits, rows.select(indices), group_generic)
        rows.ids[np.arange(number), rows.positions] = ids
        for row in np.flatnonzero(~self._finished).tolist():
            reply = self._replies[row]
            self._finished[row] = reply.request.is_over or reply.add(int(ids[row]), logits[row])
        self._rows = rows._replace(positions=rows.positions + ~self._finished, last=ids, states=states)

    def _unfinished_generic(self) -> npt.NDArray[np.intp]:
        """Return the indices of the generic rows that are still needed."""
        tokens = np.array([self._replies[row].selector.generic_steps for row in self._generic], np.int64)
        return np.flatnonzero(~self._finished[self._generic] & (self._rows.positions[self._generic] < tokens))

    def _new_rows(self, replies: Sequence[PendingReply]) -> ReplyRows:
        number = len(replies)
        return ReplyRows(
            ids=np.full((number, self._max_length), PAD, np.int64),
            positions=np.zeros(number, np.int64),
            last=np.full(number, BOS, np.int64),
            states=np.array([reply.selector.automaton.start for reply in replies], np.int64),
            uniform=np.array([reply.uniform for reply in replies], np.float32).reshape(number, self._max_length),
        )
