"""A reply that is being generated."""

from collections.abc import Sequence

import numpy as np

from chatbot.corpus.encoding.vocabulary import EOS, Vocabulary
from chatbot.corpus.text.tokenizer import SPACE
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.inference.batching.asked import Asked
from chatbot.inference.batching.question import FinishReason, Piece, TokenLogProb
from chatbot.inference.batching.rules import Floats, Rules
from chatbot.inference.pieces import ReplyText


class UnfinishedReply:
    """A reply that is being generated. It gives its pieces to who asked.

    number: 0 to question.replies - 1. stops: texts that end it. limit: the largest number of tokens.
    """

    def __init__(
        self, asked: Asked, number: int, rules: Rules, stops: Sequence[str], limit: int, vocabulary: Vocabulary
    ) -> None:
        self.asked, self.rules = asked, rules
        self._number, self._has_stops, self._limit, self._vocabulary = number, bool(stops), limit, vocabulary
        self._text = ReplyText(vocabulary, stops)
        self._piece = ""  # the next one
        self._ids: list[int] = []
        self._read = 0  # ids whose text was read
        self._tokens: list[TokenLogProb] = []  # of ids that no piece has yet
        self._given = 0  # ids whose tokens a piece has

    def add(self, token: int, logits: Floats) -> bool:
        """Add an id, and return whether the reply has ended. logits: [vocabulary], of which it was chosen."""
        question = self.asked.question
        has_ended = token == EOS
        if not has_ended:
            self._ids.append(token)
            if question.top_log_probs is not None:
                self._tokens.append(token_log_prob(self._vocabulary, token, logits, question.top_log_probs))
            has_ended = len(self._ids) == self._limit
        if question.streams or self._has_stops or has_ended:
            self._piece += self._text.add(self._ids[self._read :])
            self._read = len(self._ids)
        if has_ended or self._text.is_stopped:
            is_cut = token != EOS and not self._text.is_stopped
            self._end(self._piece + self._text.rest(), "length" if is_cut else "stop")
            return True
        if self._piece and question.streams:
            self.asked.give(Piece(self._number, self._piece, self._pending(len(self._ids))))
            self._piece = ""
        return False

    def _end(self, piece: str, reason: FinishReason) -> None:
        # Tokens of the stop text are not in the reply.
        number = self._text.ids_before_stop() if self._text.is_stopped else len(self._ids)
        self.asked.give_reply(Piece(self._number, piece, self._pending(number), reason), len(self._ids))

    def _pending(self, number: int) -> tuple[TokenLogProb, ...]:
        """Return the tokens among the first `number` ids that no piece has yet."""
        pending = tuple(self._tokens[self._given : number])
        self._given = max(self._given, number)
        return pending


def token_log_prob(vocabulary: Vocabulary, token: int, logits: Floats, top: int) -> TokenLogProb:
    """Return the log-probability of an id, and the `top` most probable ones. logits: [vocabulary]."""
    log_probs = NumpyFunctions.log_softmax(logits[None])[0]
    best = np.argsort(-log_probs, kind="stable")[:top].tolist() if top else []
    alternatives = tuple((token_text(vocabulary, i), float(log_probs[i])) for i in best)
    return TokenLogProb(token_text(vocabulary, token), float(log_probs[token]), alternatives)


def token_text(vocabulary: Vocabulary, token: int) -> str:
    """Return the text of an id. A byte that is no character is U+FFFD."""
    return vocabulary.tokens_of([token])[0].replace(SPACE, " ")
