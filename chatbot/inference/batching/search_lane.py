"""Answers questions by a search that compares several hypotheses, of several questions at once."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from chatbot.corpus.encoding.vocabulary import BOS
from chatbot.inference.batching.asked import Asked
from chatbot.inference.batching.question import FinishReason, Piece, TokenLogProb
from chatbot.inference.batching.reply import token_log_prob
from chatbot.inference.batching.row_lane import give_empty_question_replies
from chatbot.inference.batching.waiting import Waiting
from chatbot.inference.ranking import Reply
from chatbot.inference.row_model import RowModel
from chatbot.inference.text_responder import TextResponder

# The share of a batch's time to wait for as many questions as it had: clients ask again when they have their replies,
# and to begin with the first of them would leave the others for the batch after it.
PATIENCE = 0.1


class SearchLane:
    """Answers questions by the search of the responder; the arguments are those of `RowLane`."""

    def __init__(
        self, responder: TextResponder, waiting: Waiting, lane: int, row_model: Callable[[], RowModel]
    ) -> None:
        self._responder, self._waiting, self._lane = responder, waiting, lane
        self._row_model = row_model
        self._max_length = responder.settings.model.max_length
        self.active = 0  # the number of questions that are being answered

    def run(self, threads: int = 1) -> None:
        """Answer questions until `waiting` is closed and none is left. threads: those that take from the same lane."""
        number, patience = 1, 0.0
        most = max(1, self._responder.replier.batch // threads)
        while (taken := self._waiting.take(self._lane, most, True, number, patience)) is not None:
            began = time.monotonic()
            self.active = number = len(taken)
            self._answer(taken)
            self.active = 0
            patience = PATIENCE * (time.monotonic() - began)

    def _answer(self, asked: Sequence[Asked]) -> None:
        try:
            questions = [self._responder.source(one.question.text, one.question.history) for one in asked]
            tickets = [one.ticket for one, question in zip(asked, questions, strict=True) if question]
            found = iter(self._responder.replier.candidates([question for question in questions if question], tickets))
            for one, question in zip(asked, questions, strict=True):
                if one.is_over:
                    _ = next(found) if question else None
                elif question:
                    self._give(one, question[: self._max_length], next(found))
                else:
                    give_empty_question_replies(one)
        except Exception as error:
            if len(asked) == 1:
                asked[0].give(error)
            else:  # one of them may be the reason
                for one in asked:
                    if not one.is_over:
                        self._answer([one])

    def _give(self, asked: Asked, source: Sequence[int], found: Sequence[Reply]) -> None:
        """Give the best replies, as many as the question wants. Their tokens are those of their texts."""
        question, responder = asked.question, self._responder
        best = found[: question.replies]
        asked.question_tokens, asked.reply_tokens, asked.unfinished = len(source), 0, len(best)
        for number, (text, _) in enumerate(best):
            ids = responder.ids(text)
            is_cut = question.max_tokens is not None and len(ids) > question.max_tokens
            if is_cut:
                ids = ids[: question.max_tokens]
                text = responder.vocabulary.text(ids)
            tokens = self._tokens(asked, source, ids)
            reason: FinishReason = "length" if is_cut or len(ids) >= self._max_length else "stop"
            asked.give_reply(Piece(number, text, tokens, reason), len(ids))

    def _tokens(self, asked: Asked, source: Sequence[int], ids: Sequence[int]) -> tuple[TokenLogProb, ...]:
        """Return the log-probabilities of a reply that was found, if they are needed."""
        if (top := asked.question.top_log_probs) is None:
            return ()
        model, tokens = self._row_model(), []
        state = model.encode([source])
        for last, token in zip((BOS, *ids), ids, strict=False):
            if asked.is_over:
                break
            logits, state = model.step(state, np.array([last]))
            tokens.append(token_log_prob(self._responder.vocabulary, token, logits[0], top))
        return tuple(tokens)
