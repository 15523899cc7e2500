"""The likelihood of held-out replies under a model."""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from chatbot.corpus.batching.batches import pad_batch
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.vocabulary import PAD
from chatbot.model.loss import sequence_loss
from chatbot.model.packing import pack, packing_of
from chatbot.model.seq2seq import Seq2Seq

# The maximum number of padded positions in a batch, questions and replies together.
POSITIONS = 4096
# Target positions projected at once. Their logits take PROJECTED x vocabulary x 4 bytes for replies of any length.
PROJECTED = 1024


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
        self._nats = tf.function(
            self._score,
            input_signature=[
                *(tf.TensorSpec([None, None], tf.int32) for _ in range(3)),
                tf.TensorSpec([None, None], tf.float32),
            ],
        )

    def __call__(self, shards: Iterable[EncodedPairs]) -> Likelihood:
        """Return the likelihood of all replies, in full length."""
        return sum(map(self._of_shard, shards), Likelihood(0.0, 0, 0))

    def _of_shard(self, pairs: EncodedPairs) -> Likelihood:
        sources, targets = pairs.sources.lengths, pairs.targets.lengths + 1
        longest = np.maximum(sources, targets)
        order = np.lexsort((sources, targets, longest))  # similar lengths share a batch, which keeps padding low
        nats, done = 0.0, 0
        with tqdm(total=len(pairs), desc="Scoring", unit=" pairs", leave=False, delay=2, disable=None) as bar:
            while done < len(order):
                # First bounded by the length of the first row, then by that of the last and longest.
                rows = order[done : done + max(1, POSITIONS // (2 * int(longest[order[done]])))]
                rows = rows[: max(1, POSITIONS // (2 * int(longest[rows[-1]])))]
                batch = pad_batch(pairs, rows, int(sources[rows].max()), int(targets[rows].max()))
                nats += float(self._nats(*batch))
                done += len(rows)
                bar.update(len(rows))
        return Likelihood(nats, int(targets.sum()), int(pairs.characters.sum()))

    def _score(self, source: tf.Tensor, target_in: tf.Tensor, target_out: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Return the summed negative log-likelihood of the real target positions in nats, scalar float32."""
        attended = self._model.attended(source, target_in)  # [tokens, embedding]
        packing = packing_of(target_in != PAD)
        targets, weights = pack(target_out, packing), pack(weights, packing)  # [tokens]
        nats = tf.constant(0.0)
        for start in tf.range(0, tf.shape(attended)[0], PROJECTED):
            part = slice(start, start + PROJECTED)
            nats += sequence_loss(self._model.project(attended[part]), targets[part], weights[part])
        return nats
