"""Computes the likelihood of held-out replies under a model."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.corpus.batches import pad_batch
from chatbot.corpus.pair_ids import EncodedPairs
from chatbot.decoding.ngrams import target_histories
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, pack_array, unsized_specs

# Maximum number of tokens in a batch, including padding and counting both questions and replies.
POSITIONS = 4096

Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """The total negative log-likelihood of replies, and their size in tokens and characters."""

    nats: float  # negative log-likelihood, including EOS tokens
    tokens: int  # number of tokens, including EOS tokens
    characters: int  # number of characters, excluding spaces

    @property
    def nats_per_token(self) -> float:
        """Nats per token, which are comparable only between models with the same vocabulary."""
        return self.nats / self.tokens

    @property
    def nats_per_character(self) -> float:
        """Nats per character, which are comparable between models with different vocabularies."""
        return self.nats / self.characters

    @property
    def perplexity(self) -> float:
        """The perplexity per token."""
        return math.exp(min(self.nats_per_token, 700))  # exp(710) overflows


class Scorer:
    """Computes the likelihood of replies under a model. The same traced graph serves all lengths and devices."""

    def __init__(self, model: Seq2Seq, copies: DeviceCopies | None = None) -> None:
        """Create a scorer.

        Args:
            model: The model.
            copies: Copies of the model on several devices, to score batches in parallel. By default, only the device
                of the model is used.
        """
        self._model, self._copies = model, copies or DeviceCopies(model)
        self.positions = POSITIONS  # maximum number of tokens in a batch, including padding
        with model.placed():
            sequences = unsized_specs(model.sequences(np.ones([1, 1])))
        packed = [tf.TensorSpec([None], kind) for kind in (tf.int64, tf.float32)]
        self._order = 2 if model.ngrams is None else model.ngrams.order
        histories = tf.TensorSpec([None, self._order - 1], tf.int64)
        total = tf.TensorSpec([], tf.float64)
        self._add = self._copies.graph(self._add_score, [total, sequences, sequences, *packed, histories])

    def __call__(self, shards: Iterable[EncodedPairs]) -> Likelihood:
        """Return the likelihood of all replies. No reply is truncated."""
        sums: list[tf.Tensor] = []  # one scalar for each shard and device
        tokens = characters = 0
        for pairs in shards:
            sums += self._sums_of(pairs)
            tokens += int(pairs.targets.lengths.sum()) + len(pairs)
            characters += int(pairs.characters.sum())
        with self._model.placed():
            nats = float(tf.add_n(sums)) if sums else 0.0
        return Likelihood(nats, tokens, characters)

    def _sums_of(self, pairs: EncodedPairs) -> list[tf.Tensor]:
        """Return the negative log-likelihood of a shard in nats, as one partial sum per device."""

        def sum_batches(weights: list[tf.Tensor], batches: Iterator[Indices]) -> tf.Tensor:
            total = tf.constant(0.0, tf.float64)
            for rows in batches:
                total = self._add(weights, total, *self._inputs(pairs, rows))
            return total

        return self._copies.run(sum_batches, self._batches(pairs))

    def _batches(self, pairs: EncodedPairs) -> list[Indices]:
        """Split the pairs into batches, and return the row indices of each batch."""
        sources = pairs.sources.lengths
        targets = pairs.targets.lengths + 1
        longest = np.maximum(sources, targets)
        order = np.lexsort((sources, targets, longest))  # groups rows of similar lengths to reduce padding
        batches = list[Indices]()
        done = 0
        while done < len(order):
            # Rows are sorted by length. The shortest row of a batch gives an upper bound of the batch size, and the
            # longest row below this bound gives the final size.
            rows = order[done : done + max(1, self.positions // (2 * int(longest[order[done]])))]
            rows = rows[: max(1, self.positions // (2 * int(longest[rows[-1]])))]
            batches.append(rows)
            done += len(rows)
        return batches

    def _inputs(self, pairs: EncodedPairs, rows: Indices) -> tuple[Any, ...]:
        """Return the arguments of `_score` for a batch of rows."""
        source_length, target_length = (int(side.lengths[rows].max()) for side in (pairs.sources, pairs.targets))
        batch = pad_batch(pairs, rows, source_length, target_length + 1)
        source, target_in = (self._model.sequences(ids) for ids in (batch.source, batch.target_in))
        targets, weights = (pack_array(x, target_in.packing, 0) for x in (batch.target_out, batch.weights))
        histories = target_histories(batch.target_in, self._order).reshape(-1, self._order - 1)[
            target_in.packing.to_packed
        ]
        return source, target_in, targets.astype(np.int64), weights, histories

    def _add_score(self, total: tf.Tensor, *inputs: Any) -> tf.Tensor:
        """Add the result of `_score` to a float64 scalar."""
        return total + tf.cast(self._score(*inputs), total.dtype)

    def _score(
        self, source: Sequences, target_in: Sequences, targets: tf.Tensor, weights: tf.Tensor, histories: tf.Tensor
    ) -> tf.Tensor:
        """Compute the total negative log-likelihood of a batch in nats.

        Args:
            source: The questions.
            target_in: The replies as decoder input, starting with BOS.
            targets: Target token ids, packed like `target_in`, with shape [tokens] and dtype int64.
            weights: 0 at padding and 1 elsewhere, with shape [tokens] and dtype float32.
            histories: The ids before each target, for n-grams. Shape [tokens, order - 1], dtype int64.

        Returns:
            A float32 scalar.
        """
        decoded = self._model.decoded(source, target_in)
        tokens = tf.shape(decoded.attended)[0]
        chunk = max(1, self._model.loss_size.logits // self._model.bias.shape[0])

        def add(start: tf.Tensor, nats: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            part = slice(start, start + chunk)
            log_probabilities = self._model.log_probabilities(decoded.part(part), targets[part])
            if self._model.ngrams is not None:
                ngram_probabilities = self._model.ngrams.probabilities_of(histories[part], targets[part, None])[:, 0]
                log_probabilities = self._model.ngrams.mixed(log_probabilities, ngram_probabilities)
            return start + chunk, nats - tf.reduce_sum(log_probabilities * weights[part])

        initial = tf.constant(0), tf.constant(0.0)
        return tf.while_loop(lambda start, _: start < tokens, add, initial, parallel_iterations=1)[1]
