"""The likelihood of held-out replies under a model."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.batches import pad_batch
from chatbot.corpus.pair_ids import EncodedPairs
from chatbot.decoding.ngrams import histories_of
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, packed_array, specs_of

# The maximum number of padded positions in a batch, questions and replies together.
POSITIONS = 4096

Rows = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """Sums over the scored replies."""

    nats: float  # negative log-likelihood, end symbols included
    tokens: int  # end symbols included
    characters: int  # without spaces

    @property
    def nats_per_token(self) -> float:
        """Nats per token, comparable only between models with the same vocabulary."""
        return self.nats / self.tokens

    @property
    def nats_per_character(self) -> float:
        """Nats per character, comparable between models with different vocabularies."""
        return self.nats / self.characters

    @property
    def perplexity(self) -> float:
        """The perplexity per token."""
        return math.exp(min(self.nats_per_token, 700))  # exp(710) overflows


class Scorer:
    """Computes the likelihood of replies under a model. The computation is traced once for all lengths and devices.

    copies: the devices that share the pairs; None for the model's own. Sums stay on them until all are computed.
    positions: the maximum number of padded positions in a batch, questions and replies together.
    """

    def __init__(self, model: Seq2Seq, copies: DeviceCopies | None = None) -> None:
        self._model, self._copies = model, copies or DeviceCopies(model)
        self.positions = POSITIONS
        with model.placed():
            sequences = specs_of(model.sequences(np.ones([1, 1])))
        packed = [tf.TensorSpec([None], kind) for kind in (tf.int64, tf.float32)]
        self._order = 2 if model.ngrams is None else model.ngrams.order
        histories = tf.TensorSpec([None, self._order - 1], tf.int64)
        total = tf.TensorSpec([], tf.float64)
        self._add = self._copies.graph(self._added, [total, sequences, sequences, *packed, histories])

    def __call__(self, shards: Iterable[EncodedPairs]) -> Likelihood:
        """Return the likelihood of all replies, in full length."""
        sums: list[tf.Tensor] = []  # of the shards, one for each device
        tokens = characters = 0
        for pairs in shards:
            sums += self._sums_of(pairs)
            tokens += int(pairs.targets.lengths.sum()) + len(pairs)
            characters += int(pairs.characters.sum())
        with self._model.placed():
            nats = float(tf.add_n(sums)) if sums else 0.0
        return Likelihood(nats, tokens, characters)

    def _sums_of(self, pairs: EncodedPairs) -> list[tf.Tensor]:
        """Return the sums of a shard on each device that has a part of it, in nats."""

        def summed(weights: list[tf.Tensor], batches: Iterator[Rows]) -> tf.Tensor:
            total = tf.constant(0.0, tf.float64)
            for rows in batches:
                total = self._add(weights, total, *self._inputs(pairs, rows))
            return total

        return self._copies.run(summed, self._batches(pairs))

    def _batches(self, pairs: EncodedPairs) -> list[Rows]:
        """Return the rows of each batch."""
        sources = pairs.sources.lengths
        targets = pairs.targets.lengths + 1
        longest = np.maximum(sources, targets)
        order = np.lexsort((sources, targets, longest))  # similar lengths share a batch, which keeps padding low
        batches = list[Rows]()
        done = 0
        while done < len(order):
            # First bounded by the length of the first row, then by that of the last and longest.
            rows = order[done : done + max(1, self.positions // (2 * int(longest[order[done]])))]
            rows = rows[: max(1, self.positions // (2 * int(longest[rows[-1]])))]
            batches.append(rows)
            done += len(rows)
        return batches

    def _inputs(self, pairs: EncodedPairs, rows: Rows) -> tuple[Any, ...]:
        """Return the arguments of `_score` for some rows."""
        source_length, target_length = (int(side.lengths[rows].max()) for side in (pairs.sources, pairs.targets))
        batch = pad_batch(pairs, rows, source_length, target_length + 1)
        source, target_in = (self._model.sequences(ids) for ids in (batch.source, batch.target_in))
        targets, weights = (packed_array(x, target_in.packing, 0) for x in (batch.target_out, batch.weights))
        histories = histories_of(batch.target_in, self._order).reshape(-1, self._order - 1)[target_in.packing.to_packed]
        return source, target_in, targets.astype(np.int64), weights, histories

    def _added(self, total: tf.Tensor, *inputs: Any) -> tf.Tensor:
        """Return a sum and that of `_score`, scalar float64."""
        return total + tf.cast(self._score(*inputs), total.dtype)

    def _score(
        self, source: Sequences, target_in: Sequences, targets: tf.Tensor, weights: tf.Tensor, histories: tf.Tensor
    ) -> tf.Tensor:
        """Return the summed negative log-likelihood of the real target positions in nats, scalar float32.

        targets, weights: [tokens], packed as target_in is; weights are 0 at fillers.
        histories: [tokens, order - 1] int64, the ids before each target, for a model with n-grams.
        """
        decoded = self._model.decoded(source, target_in)
        tokens = tf.shape(decoded.attended)[0]
        chunk = max(1, self._model.loss_size.logits // self._model.bias.shape[0])

        def add(start: tf.Tensor, nats: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            part = slice(start, start + chunk)
            log_probabilities = self._model.log_probabilities(decoded.part(part), targets[part])
            if self._model.ngrams is not None:
                by_ngrams = self._model.ngrams.probabilities_of(histories[part], targets[part, None])[:, 0]
                log_probabilities = self._model.ngrams.mixed(log_probabilities, by_ngrams)
            return start + chunk, nats - tf.reduce_sum(log_probabilities * weights[part])

        nothing = tf.constant(0), tf.constant(0.0)
        return tf.while_loop(lambda start, _: start < tokens, add, nothing, parallel_iterations=1)[1]
