"""Held-out likelihood of whole replies."""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from chatbot.corpus.batching.batches import pad_batch
from chatbot.corpus.encoding.encoded import Encoded
from chatbot.corpus.encoding.vocabulary import PAD
from chatbot.model.loss import sequence_loss
from chatbot.model.packing import pack, packing
from chatbot.model.seq2seq import Seq2Seq

# Padded positions, questions and replies alike, scored at once.
POSITIONS = 4096
# Target positions projected at once: logits take positions x vocabulary x 4 bytes, however long a reply is.
PROJECTED = 1024


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """Sums over the scored replies."""

    nats: float  # negative log-likelihood, end symbols included
    tokens: int  # end symbols included
    characters: int  # of the replies, spaces left out

    def __add__(self, other: "Likelihood") -> "Likelihood":
        """Of these replies and of the other ones."""
        return Likelihood(self.nats + other.nats, self.tokens + other.tokens, self.characters + other.characters)

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens

    @property
    def nats_per_character(self) -> float:
        """Comparable between models whatever their tokens."""
        return self.nats / self.characters

    @property
    def perplexity(self) -> float:
        """Per token."""
        return math.exp(min(self.nats_per_token, 700))


class Scorer:
    """Scores replies under a model, traced once for all lengths."""

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        self._nats = tf.function(
            self._score,
            input_signature=[
                *(tf.TensorSpec([None, None], tf.int32) for _ in range(3)),
                tf.TensorSpec([None, None], tf.float32),
            ],
        )

    def __call__(self, shards: Iterable[Encoded]) -> Likelihood:
        """The likelihood of every reply, whole: nothing is truncated to --max-length."""
        return sum(map(self._of_shard, shards), Likelihood(0.0, 0, 0))

    def _of_shard(self, pairs: Encoded) -> Likelihood:
        sources, targets = pairs.sources.lengths, pairs.targets.lengths + 1
        longest = np.maximum(sources, targets)
        order = np.lexsort((sources, targets, longest))  # similar lengths together, so little is padded
        nats, done = 0.0, 0
        with tqdm(total=len(pairs), desc="Scoring", unit=" pairs", leave=False, delay=2, disable=None) as bar:
            while done < len(order):
                few = order[done : done + max(1, POSITIONS // (2 * int(longest[order[done]])))]
                # The last of them may be much longer than the first.
                rows = few[: max(1, POSITIONS // (2 * int(longest[few[-1]])))]
                batch = pad_batch(pairs, rows, int(sources[rows].max()), int(targets[rows].max()))
                nats += float(self._nats(*batch))
                done += len(rows)
                bar.update(len(rows))
        return Likelihood(nats, int(targets.sum()), int(pairs.characters.sum()))

    def _score(self, source: tf.Tensor, target_in: tf.Tensor, target_out: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Summed nats of the real target positions, scalar float32."""
        attended = self._model.attended(source, target_in)  # [tokens, embedding]
        where = packing(target_in != PAD)
        targets, weights = pack(target_out, where), pack(weights, where)
        nats = tf.constant(0.0)
        for start in tf.range(0, tf.shape(attended)[0], PROJECTED):
            here = slice(start, start + PROJECTED)
            nats += sequence_loss(self._model.project(attended[here]), targets[here], weights[here])[0]
        return nats
