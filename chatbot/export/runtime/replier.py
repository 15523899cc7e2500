"""Replies of an export to questions, given as ids: the twin of `chatbot.inference.replier`."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD, Vocabulary
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.decoding.sampling import uniform_numbers
from chatbot.export.runtime.onnx_model import Floats, OnnxModel
from chatbot.export.runtime.search import search
from chatbot.inference.questions import Ticket
from chatbot.inference.ranking import Ranking, Reply, check_decoding, reply_automaton

# The maximum number of questions in a batch, and of their hypotheses, which bound the memory of a search.
BATCH, HYPOTHESES = 64, 640
# The maximum number of pairs of `--rerank` in a batch.
PAIRS = 64


class ExportedReplier:
    """Answers questions by the search of the decoding settings.

    settings: the model's settings. Raises UserError for decoding settings that the model does not admit.
    """

    def __init__(
        self, model: OnnxModel, vocabulary: Vocabulary, settings: ModelSettings, decoding: DecodingSettings
    ) -> None:
        check_decoding(decoding, vocabulary, settings)
        self.decoding = decoding
        self._model, self._vocabulary, self._max_length = model, vocabulary, settings.max_length
        self._automaton = reply_automaton(decoding, vocabulary, self._max_length)
        self._ranking = Ranking(decoding, vocabulary)

    @property
    def batch(self) -> int:
        """The maximum number of questions that are searched at once."""
        return max(1, min(BATCH, HYPOTHESES // self.decoding.hypotheses))

    def replies(self, questions: Sequence[Sequence[int]]) -> list[str]:
        """Return the best reply to each question. questions: the ids of each, at least one."""
        return [replies[0].text for replies in self.candidates(questions)]

    def candidates(self, questions: Sequence[Sequence[int]], tickets: Sequence[Ticket] = ()) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first; see `Replier`.

        The search of a batch ends when all of its tickets are cancelled.
        """
        questions = [question[: self._max_length] for question in questions]
        size = self.batch
        ids: list[npt.NDArray[np.int64]] = []
        scores: list[Floats] = []
        with np.errstate(all="ignore"):  # logarithms of 0 and differences of infinities are meant
            for start in range(0, len(questions), size):
                found = self._found(questions[start : start + size], tickets[start : start + size])
                ids += [*found[0]]
                scores += [*found[1]]
            reverse = self._reverse if self.decoding.rerank else None
            return self._ranking.replies(questions, ids, scores, reverse, tickets)

    def row_model(self) -> OnnxModel:
        """Return the model that generates token by token."""
        return self._model

    def attention(self, question: Sequence[int], reply: Sequence[int]) -> Floats:
        """Return the weights of a question's ids at each id of a reply and at its end, [reply + 1, question]."""
        state = self._model.encode([question])
        rows = []
        with np.errstate(all="ignore"):
            for last in (BOS, *reply):
                _, state = self._model.step(state, np.array([last]))
                assert state.attention is not None
                rows.append(state.attention[0, : len(question)])
        return np.stack(rows)

    def _found(
        self, questions: Sequence[Sequence[int]], tickets: Sequence[Ticket]
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return ids [questions, hypotheses, max_length], padded, and scores [questions, hypotheses]."""
        steps = self._search(questions)
        ids, scores = next(steps)
        while not (tickets and all(ticket.cancelled.is_set() for ticket in tickets)):
            following = next(steps, None)
            if following is None:
                break
            ids, scores = following
        return ids.reshape(len(questions), -1, self._max_length), scores.reshape(len(questions), -1)

    def _search(self, questions: Sequence[Sequence[int]]) -> Iterator[tuple[npt.NDArray[np.int64], Floats]]:
        """Return the steps of the search; the candidates of a question are adjacent rows."""
        decoding, state = self.decoding, self._model.encode(questions)
        uniform: Floats | None = None  # [rows, max_length]
        if decoding.samples:
            drawn = uniform_numbers(decoding.seed, questions, decoding.hypotheses, self._max_length)
            uniform = drawn.reshape(-1, self._max_length)
            rows = np.repeat(np.arange(len(questions)), decoding.hypotheses)
            state = state.of_questions(rows, rows)
        return search(self._model, state, self._automaton, decoding, uniform)

    def _reverse(
        self, replies: Sequence[Sequence[int]], questions: Sequence[Sequence[int]], tickets: Sequence[Ticket]
    ) -> Floats:
        """Return log P(question | reply) of each pair in nats, the end symbol included: [pairs]. Without n-grams.

        A batch is left out if all of its tickets are cancelled.
        """
        scores = np.zeros(len(replies), np.float32)
        for start in range(0, len(replies), PAIRS):
            batch = slice(start, start + PAIRS)
            if tickets and all(ticket.cancelled.is_set() for ticket in tickets[batch]):
                continue
            scores[batch] = self._reverse_batch(replies[batch], questions[batch])
        return scores

    def _reverse_batch(self, replies: Sequence[Sequence[int]], questions: Sequence[Sequence[int]]) -> Floats:
        length = max(map(len, questions)) + 1
        targets = np.full((len(questions), length), PAD, np.int64)
        for row, question in enumerate(questions):
            targets[row, : len(question) + 1] = [*question, EOS]
        state, last = self._model.encode(replies, ngrams=False), np.full(len(replies), ASK)
        scores = np.zeros(len(replies), np.float32)
        for target in targets.T:
            logits, state = self._model.step(state, last)
            scores += np.where(target == PAD, 0, NumpyFunctions.log_softmax(logits)[np.arange(len(target)), target])
            last = target
        return scores
