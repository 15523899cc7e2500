"""The log-probability of questions given replies, by a model that learned both directions."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.batches import pad
from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import ASK, EOS
from chatbot.inference.questions import Ticket
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, packed_array, specs_of

# The maximum number of padded positions of questions in one call, which bounds the memory of their logits.
POSITIONS = 1024


class ReverseScorer:
    """Scores pairs of a question and a reply, in batches that are traced once for all lengths.

    The model generates a question from an answer after the symbol ASK, as in training.
    """

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        with model.placed():
            sequences = specs_of(model.sequences(np.ones([1, 1])))
        self._log_probs = tf.function(
            self.score, input_signature=[sequences, sequences, tf.TensorSpec([None], tf.int64)], autograph=False
        )

    @property
    def traces(self) -> int:
        """The number of times that the computation was traced."""
        return self._log_probs.experimental_get_tracing_count()

    def __call__(
        self, replies: Sequence[Sequence[int]], questions: Sequence[Sequence[int]], tickets: Sequence[Ticket] = ()
    ) -> npt.NDArray[np.float32]:
        """Return log P(question | reply) of each pair in nats, the end symbol included: [pairs].

        replies, questions: ids without begin and end symbols, at least one each. tickets: one for each pair, or none; a
        pair has 0 if its ticket was cancelled before its batch.
        """
        scores = np.zeros(len(replies), np.float32)
        order = np.argsort([len(question) for question in questions], kind="stable")
        while True:  # the longest questions first, so that a batch is bounded by its first row
            if tickets:
                order = order[[not tickets[i].cancelled.is_set() for i in order]]
            if not len(order):
                return scores
            number = max(1, POSITIONS // (len(questions[order[-1]]) + 1))
            order, rows = order[:-number], order[-number:]
            scores[rows] = self._batch([replies[i] for i in rows], [questions[i] for i in rows])

    def _batch(self, replies: Sequence[Sequence[int]], questions: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        target_in, target_out = _padded([[ASK, *q] for q in questions]), _padded([[*q, EOS] for q in questions])
        with self._model.placed():
            source, target = self._model.sequences(_padded(replies)), self._model.sequences(target_in)
            targets = packed_array(target_out, target.packing, 0).astype(np.int64)
            result: npt.NDArray[np.float32] = self._log_probs(source, target, targets).numpy()
        return result

    def score(self, source: Sequences, target_in: Sequences, targets: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of each row of targets, [rows]. targets: [tokens] int64, packed as target_in.

        N-grams are left out: they do not depend on the reply.
        """
        log_probs = self._model.log_probabilities(self._model.decoded(source, target_in), targets)  # [tokens]
        of_positions = tf.gather(log_probs, target_in.packing.to_padded)  # [rows, time], any values at padding
        return tf.reduce_sum(tf.where(target_in.mask, of_positions, 0.0), axis=-1)


def _padded(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Return rows of ids as an array, with PAD on the right."""
    ragged = Ragged.from_rows(rows)
    return pad(ragged, np.arange(len(ragged)), int(ragged.lengths.max()))
