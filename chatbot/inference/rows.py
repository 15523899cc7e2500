"""Replies that are generated together, token by token, each of which may begin and end at another time.

A reply that is compared with no others comes from this loop wherever somebody waits: terminal, server or export.
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
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.interface import EMPTY_QUESTION, NOT_FINITE, Model
from chatbot.decoding.processors import Prefix, processed
from chatbot.decoding.reply_text import ReplyText
from chatbot.decoding.sampling import picked
from chatbot.errors import UserError
from chatbot.inference.request import FinishReason, Piece, Request, TokenLogProb

# Rows that are not needed any more are left out when they are a quarter of all: the others are copied then.
LEAVING_SHARE = 0.25

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Unfinished replies, before the next id. The first dimension is the row."""

    ids: Ids  # [rows, max_length], padded
    positions: Ids  # the number of ids
    last: Ids  # the last id, or the begin symbol
    states: Ids  # of the automaton
    uniform: Floats  # [rows, max_length], for sampling

    def of(self, rows: Any) -> "Rows":
        """Return some of the rows. rows: any index of an array."""
        return Rows(*(x[rows] for x in self))


@dataclasses.dataclass(frozen=True, eq=False)
class TokenChoice:
    """Chooses the next ids of rows by decoding settings of one reply."""

    decoding: DecodingSettings
    automaton: BoundedAutomaton

    @property
    def generic_tokens(self) -> int:
        """The number of ids for which the distribution without the question is needed."""
        return self.decoding.anti_lm_tokens if self.decoding.anti_lm else 0

    def choose(self, logits: Floats, rows: Rows, generic: Floats | None) -> tuple[Ids, Ids]:
        """Return the next ids, and the states of the automaton after them: [rows] both.

        logits: [rows, vocabulary]. generic: those without the question, for --anti-lm, in that shape; 0 for rows that
        do not need them. None: no row does.
        """
        log_probs = self.automaton.allowed_logits(logits, rows.states, rows.positions)
        if self.decoding.repetition_penalty != 1:  # nothing else needs them to be normalised
            log_probs = NumpyFunctions.log_softmax(log_probs)
        log_probs = processed(self.decoding, log_probs, Prefix(rows.positions[:, None], rows.ids), generic)
        uniform = np.take_along_axis(rows.uniform, rows.positions[:, None], axis=1)
        ids: Ids = picked(self.decoding, log_probs, uniform)
        return ids, self.automaton.states_after(rows.states, ids)


@dataclasses.dataclass(eq=False)
class UnfinishedReply:
    """A reply that is being generated. It gives its pieces to who asked.

    number: 0 to question.replies - 1. source: the ids of the question. uniform: [max_length], for sampling. limit: the
    largest number of tokens.
    """

    request: Request
    number: int
    source: Sequence[int]
    choice: TokenChoice
    uniform: Floats
    text: ReplyText
    limit: int
    tokens: list[TokenLogProb] = dataclasses.field(default_factory=list)
    shown: int = 0  # ids whose tokens a piece has

    def add(self, token: int, logits: Floats) -> bool:
        """Add an id, and return whether the reply has ended. logits: [vocabulary], of which it was chosen."""
        question = self.request.question
        text = self.text
        if token != EOS:
            text.ids.append(token)
            if question.top_log_probs is not None:
                self.tokens.append(token_log_prob(text.vocabulary, token, logits, question.top_log_probs))
        has_ended = token == EOS or len(text.ids) == self.limit
        if question.streams or text.stops or has_ended:
            text.read(is_whole=token == EOS)
        if has_ended or text.is_stopped:
            reason: FinishReason = "stop" if token == EOS or text.is_stopped else "length"
            # Tokens of the stop text are not in the reply.
            number = text.ids_before_stop() if text.is_stopped else len(text.ids)
            self.request.give_reply(Piece(self.number, text.rest(), self._new_tokens(number), reason), len(text.ids))
            return True
        if question.streams and (piece := text.piece()):
            self.request.give(Piece(self.number, piece, self._new_tokens(len(text.ids))))
        return False

    def _new_tokens(self, number: int) -> tuple[TokenLogProb, ...]:
        """Return the tokens among the first `number` ids that no piece has yet."""
        start = self.shown
        self.shown = number
        return tuple(self.tokens[start:number])


def token_log_prob(vocabulary: Vocabulary, token: int, logits: Floats, top: int) -> TokenLogProb:
    """Return the log-probability of an id, and the `top` most probable ones. logits: [vocabulary]."""
    log_probs = NumpyFunctions.log_softmax(logits[None])[0]
    best = np.flatnonzero(log_probs >= np.partition(log_probs, -top)[-top]) if top else np.zeros(0, np.int64)
    best = best[np.argsort(-log_probs[best], kind="stable")][:top]  # not of the whole vocabulary, which takes longer
    alternatives = tuple((token_text(vocabulary, i), float(log_probs[i])) for i in best.tolist())
    return TokenLogProb(token_text(vocabulary, token), float(log_probs[token]), alternatives)


def token_text(vocabulary: Vocabulary, token: int) -> str:
    """Return the text of an id. A byte that is no character is a surrogate, as `surrogateescape` has it."""
    return vocabulary.tokens_of([token], "surrogateescape")[0].replace(SPACE, " ")


class RowBatch:
    """Replies that are generated together. max_length: of a reply, in tokens.

    The model's state has a row for each reply, and then one for each reply that needs the distribution without the
    question, for `anti_lm`.
    """

    def __init__(self, model: Model, max_length: int) -> None:
        self._model = model
        self._max_length = max_length
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
    def requests(self) -> list[Request]:
        """The questions with unfinished replies."""
        return list(dict.fromkeys(self._replies[row].request for row in np.flatnonzero(~self._has_ended)))

    def change(self, new: Sequence[Sequence[UnfinishedReply]]) -> None:
        """Add replies. If some are added, or many rows are not needed any more, leave these out.

        new: the replies to each question.
        """
        for row, reply in enumerate(self._replies):
            self._has_ended[row] |= reply.request.is_over
        unfinished = np.flatnonzero(~self._has_ended)
        generic = self._unfinished_generic()
        old = len(self._replies)
        width = len(self._replies) + len(self._generic)
        if not new and len(unfinished) + len(generic) > (1 - LEAVING_SHARE) * width:
            return
        arrived = [reply for of_question in new for reply in of_question]
        if not len(unfinished) + len(arrived):
            self.clear()
            return
        # The rows of the next state, as numbers of rows of the present one and of the questions behind it.
        numbers = [unfinished, *(np.full(len(of_question), width + i) for i, of_question in enumerate(new))]
        needing = [len(unfinished) + i for i, reply in enumerate(arrived) if reply.choice.generic_tokens]
        numbers += [old + generic, np.full(len(needing), width + len(new))]
        states = [] if self._state is None else [self._state]
        rows = np.concatenate(numbers)
        if new:
            sources = [of_question[0].source for of_question in new] + [EMPTY_QUESTION] * bool(needing)
            states.append(self._model.encode(sources))
        if self._state is None and np.array_equal(rows, np.arange(len(sources))):
            (self._state,) = states  # such as that of a single question
        else:
            self._state = self._model.take(states, rows)
        numbers_of_generic = np.searchsorted(unfinished, self._generic[generic])
        self._generic = np.concatenate([numbers_of_generic, np.array(needing, np.int64)])
        self._replies = [self._replies[row] for row in unfinished] + arrived
        joined: Any = zip(self._rows.of(unfinished), self._new_rows(arrived), strict=True)
        self._rows = Rows(*map(np.concatenate, joined))
        self._has_ended = np.zeros(len(self._replies), np.bool_)

    def advance(self) -> None:
        """Add an id to each reply. Raises UserError if the weights are not finite."""
        rows = self._rows
        number = len(self._replies)
        logits, self._state = self._model.step(self._state, np.concatenate([rows.last, rows.last[self._generic]]))
        if np.isnan(logits.max()):
            raise UserError(NOT_FINITE)
        groups = defaultdict(list)
        for row, reply in enumerate(self._replies):
            groups[reply.choice].append(row)
        generic = None
        needed = self._unfinished_generic()
        if len(needed):
            generic = np.zeros((number, logits.shape[1]), np.float32)
            generic[self._generic[needed]] = logits[number + needed]
        ids = np.full(number, EOS, np.int64)
        states = np.zeros(number, np.int64)
        with np.errstate(all="ignore"):  # logarithms of 0 and differences of infinities are meant
            for choice, of_group in groups.items():
                # A view of all rows is not copied.
                places: Any = slice(None) if len(of_group) == number else np.array(of_group)
                of_generic = None if generic is None else generic[places]
                ids[places], states[places] = choice.choose(logits[:number][places], rows.of(places), of_generic)
        rows.ids[np.arange(number), rows.positions] = ids
        for row in np.flatnonzero(~self._has_ended).tolist():
            reply = self._replies[row]
            self._has_ended[row] = reply.request.is_over or reply.add(int(ids[row]), logits[row])
        self._rows = rows._replace(positions=rows.positions + ~self._has_ended, last=ids, states=states)

    def _unfinished_generic(self) -> npt.NDArray[np.intp]:
        """Return which rows without the question are still needed, as numbers from 0."""
        tokens = np.array([self._replies[row].choice.generic_tokens for row in self._generic], np.int64)
        return np.flatnonzero(~self._has_ended[self._generic] & (self._rows.positions[self._generic] < tokens))

    def _new_rows(self, replies: Sequence[UnfinishedReply]) -> Rows:
        number = len(replies)
        return Rows(
            ids=np.full((number, self._max_length), PAD, np.int64),
            positions=np.zeros(number, np.int64),
            last=np.full(number, BOS, np.int64),
            states=np.array([reply.choice.automaton.start for reply in replies], np.int64),
            uniform=np.array([reply.uniform for reply in replies], np.float32).reshape(number, self._max_length),
        )
