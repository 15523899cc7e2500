"""Replies of a model to questions, given as ids."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.decoding import DecodingSettings
from chatbot.config.model import ModelSettings
from chatbot.corpus.batches import pad
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.sampling import uniform_numbers
from chatbot.inference.questions import Ticket
from chatbot.inference.ranking import Ranking, Reply, check_decoding, for_attempt, reply_automaton
from chatbot.inference.reply_search import ReplySearch
from chatbot.inference.reverse_scorer import ReverseScorer
from chatbot.inference.tensor_rows import TensorRows
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.saved import Trained
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, specs_of

# The maximum number of questions in a batch, and of their hypotheses, which bound the memory of a search.
BATCH, HYPOTHESES = 64, 640


class Replier:
    """Answers questions by the search of the decoding settings, by default greedy search.

    The search is traced once for questions of any number and length. `Responder` answers questions in text form, and
    `replier_of` makes the replier of a trained model.

    settings: the model's settings. Questions are truncated, and replies end, after settings.max_length tokens.
    copies: the devices that share the batches of `candidates`; None for the model's own. rows: returns the model for
    `row_model`, which repliers may share; None: this one makes its own.
    Raises UserError for decoding settings that the model or the vocabulary does not admit.
    """

    def __init__(
        self,
        model: Seq2Seq,
        vocabulary: Vocabulary,
        settings: ModelSettings,
        decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
        copies: DeviceCopies | None = None,
        rows: Callable[[], TensorRows] | None = None,
    ) -> None:
        check_decoding(decoding, vocabulary, settings)
        self.decoding = decoding
        self._vocabulary = vocabulary
        self._model, self._max_length = model, settings.max_length
        self._copies = copies or DeviceCopies(model)
        self._rows = rows or functools.cache(lambda: TensorRows(model))
        automaton = reply_automaton(decoding, vocabulary, settings.max_length)
        self._ranking = Ranking(decoding, vocabulary)
        self._search = ReplySearch(model, automaton, decoding)
        with model.placed():
            specs = [specs_of(model.sequences(np.ones([1, 1])))]
        if decoding.samples:
            specs.append(tf.TensorSpec([None, decoding.hypotheses, settings.max_length], tf.float32))

        def decode(abandoned: tf.Tensor, source: Sequences, *uniform: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self._search(source, uniform[0] if uniform else None, abandoned)

        self._decode = self._copies.graph(decode, [tf.TensorSpec([], tf.resource), *specs])
        self._reverse = ReverseScorer(model) if decoding.rerank else None

    @property
    def traces(self) -> int:
        """The number of times that the search was traced."""
        return self._decode.traces

    @property
    def batch(self) -> int:
        """The maximum number of questions that are searched at once."""
        return max(1, min(BATCH, HYPOTHESES // self.decoding.hypotheses))

    def replies(self, questions: Sequence[Sequence[int]]) -> list[str]:
        """Return the best reply to each question, for any number of questions.

        questions: the ids of each question, at least one, without begin and end symbols.
        """
        return [replies[0].text for replies in self.candidates(questions)]

    def candidates(self, questions: Sequence[Sequence[int]], tickets: Sequence[Ticket] = ()) -> list[list[Reply]]:
        """Return the distinct replies that the search found for each question, the best first.

        questions: as for `replies`. tickets: one for each. When a ticket is cancelled, the search for replies to its
        question ends within a few tokens, and those that are returned are of no use; there may be none.
        """
        questions = [question[: self._max_length] for question in questions]
        size = self.batch

        def found(weights: list[tf.Tensor], starts: Iterator[int]) -> list[tuple[int, Any]]:
            return [(i, self._found(questions[i : i + size], tickets[i : i + size], weights)) for i in starts]

        of_devices = self._copies.run(found, range(0, len(questions), size))
        batches = [batch for _, batch in sorted(itertools.chain(*of_devices), key=lambda numbered: numbered[0])]
        ids, scores = ([row for batch in batches for row in batch[side]] for side in (0, 1))
        return self._ranking.replies(questions, ids, scores, self._reverse, tickets)

    def row_model(self) -> TensorRows:
        """Return the model that generates token by token, whose graphs are traced, the same one each time."""
        return self._rows()

    def _found(
        self, questions: Sequence[Sequence[int]], tickets: Sequence[Ticket] = (), weights: Sequence[tf.Tensor] = ()
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return ids [questions, hypotheses, max_length], padded, and scores [questions, hypotheses].

        weights: of `DeviceCopies.run`.
        """
        with tf.device("CPU"):  # its values are read by the host, which runs the loops of the search
            abandoned = tf.Variable(np.zeros(len(questions), np.bool_), trainable=False)
        with contextlib.ExitStack() as stack:
            for number, ticket in enumerate(tickets):
                mark = functools.partial(abandoned.scatter_nd_update, [[number]], [True])
                stack.enter_context(ticket.calling(mark))
            ids, scores = self._decode(weights, abandoned.handle, *self._arguments(questions))
            return ids.numpy(), scores.numpy()

    def _arguments(self, questions: Sequence[Sequence[int]]) -> list[Sequences | npt.NDArray[np.float32]]:
        """Return the arguments of the search."""
        rows = Ragged.from_rows(questions)
        assert rows.lengths.all(), "an empty question"
        source = self._model.sequences(pad(rows, np.arange(len(rows)), int(rows.lengths.max())))
        if not self.decoding.samples:
            return [source]
        return [source, uniform_numbers(self.decoding.seed, questions, self.decoding.hypotheses, self._max_length)]


def replier_of(trained: Trained, decoding: DecodingSettings, rows: Callable[[], TensorRows] | None = None) -> Replier:
    """Return the replier of a trained model. Banned words are cleaned as the training pairs were.

    rows: as for `Replier`. Raises UserError for decoding settings that the model does not admit.
    """
    decoding = for_attempt(decoding, trained.settings)
    return Replier(trained.model, trained.vocabulary, trained.settings.model, decoding, rows=rows)
