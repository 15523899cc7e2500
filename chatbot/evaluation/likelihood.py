"""The likelihood of held-out replies under a model."""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from chatbot.corpus.batching.batches import Batch, pad_batch
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ngrams import histories_of
from chatbot.model.packing import packed_array
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, specs_of
from chatbot.quiet import no_bars

# The maximum number of padded positions in a batch, questions and replies together.
POSITIONS = 4096


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """Sums over the scored replies."""

    nats: float  # negative log-likelihood, end symbols included
    tokens: int  # end symbols included
    characters: int  # without spaces

    def __add__(self, other: "Likelihood") -> "Likelihood":
        """Return the sums over both sets of replies."""
        return Likelihood(self.nats + other.nats, self.tokens + other.tokens, self.characters + other.characters)

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
    """Computes the likelihood of replies under a model. The computation is traced once for all lengths."""

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        sequences = specs_of(model.sequences(np.ones([1, 1])))
        packed = [tf.TensorSpec([None], kind) for kind in (tf.int64, tf.float32)]
        self._order = 2 if model.ngrams is None else model.ngrams.order
        histories = tf.TensorSpec([None, self._order - 1], tf.int64)
        self._nats = tf.function(self._score, input_signature=[sequences, sequences, *packed, histories])

    def __call__(self, shards: Iterable[EncodedPairs]) -> Likelihood:
        """Return the likelihood of all replies, in full length."""
        return sum(map(self._of_shard, shards), Likelihood(0.0, 0, 0))

    def _of_shard(self, pairs: EncodedPairs) -> Likelihood:
        sources, targets = pairs.sources.lengths, pairs.targets.lengths + 1
        longest = np.maximum(sources, targets)
        order = np.lexsort((sources, targets, longest))  # similar lengths share a batch, which keeps padding low
        nats, done = 0.0, 0
        with tqdm(total=len(pairs), desc="Scoring", unit=" pairs", leave=False, delay=2, disable=no_bars()) as bar:
            while done < len(order):
                # First bounded by the length of the first row, then by that of the last and longest.
                rows = order[done : done + max(1, POSITIONS // (2 * int(longest[order[done]])))]
                rows = rows[: max(1, POSITIONS // (2 * int(longest[rows[-1]])))]
                batch = pad_batch(pairs, rows, int(sources[rows].max()), int(targets[rows].max()))
                nats += self._nats_of(batch)
                done += len(rows)
                bar.update(len(rows))
        return Likelihood(nats, int(targets.sum()), int(pairs.characters.sum()))

    def _nats_of(self, batch: Batch) -> float:
        source, target_in = (self._model.sequences(ids) for ids in (batch.source, batch.target_in))
        targets, weights = (packed_array(x, target_in.packing, 0) for x in (batch.target_out, batch.weights))
        histories = histories_of(batch.target_in, self._order).reshape(-1, self._order - 1)[target_in.packing.to_packed]
        return float(self._nats(source, target_in, targets.astype(np.int64), weights, histories))

    def _score(
        self, source: Sequences, target_in: Sequences, targets: tf.Tensor, weights: tf.Tensor, histories: tf.Tensor
    ) -> tf.Tensor:
        """Return the summed negative log-likelihood of the real target positions in nats, scalar float32.

        targets, weights: [tokens], packed as target_in is; weights are 0 at fillers.
        histories: [tokens, order - 1] int64, the ids before each target, for a model with n-grams.
        """
        decoded = self._model.decoded(source, target_in)
        projected = max(1, self._model.loss_size.logits // self._model.bias.shape[0])  # tokens at a time
        nats = tf.constant(0.0)
        for start in tf.range(0, tf.shape(decoded.attended)[0], projected):
            part = slice(start, start + projected)
            log_probabilities = self._model.log_probabilities(decoded.part(part), targets[part])
            if self._model.ngrams is not None:
                by_ngrams = self._model.ngrams.probabilities(histories[part])
                of_targets = tf.gather(by_ngrams, targets[part], batch_dims=1)
                log_probabilities = self._model.ngrams.mixed(log_probabilities, of_targets)
            nats -= tf.reduce_sum(log_probabilities * weights[part])
        return nats
