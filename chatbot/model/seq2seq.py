"""The whole model: embedding -> encoder -> attention decoder -> logits."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.encoded import Encoded
from chatbot.corpus.vocabulary import ASK, BOS, EOS, PAD, UNK
from chatbot.model.decoder import Decoder, DecoderState
from chatbot.model.encoder import Encoder


class Seq2Seq(keras.Model):
    """An attention seq2seq model. Questions and replies share one vocabulary and one embedding, which is also
    the output projection (Press and Wolf, 2017)."""

    def __init__(self, settings: Settings, vocabulary_size: int) -> None:
        super().__init__()
        s = settings
        self.embedding = keras.layers.Embedding(vocabulary_size, s.embedding_size)
        self.encoder = Encoder(s.cell, s.rnn_size, s.num_layers, s.keep_prob, s.bidirectional)
        self.decoder = Decoder(s.cell, s.rnn_size, s.num_layers, s.keep_prob, s.attention, s.embedding_size)
        self.bias = self.add_weight(shape=(vocabulary_size,), initializer="zeros", name="bias")

    def encode(self, source: tf.Tensor, seed: tf.Tensor | None = None) -> DecoderState:
        """source [rows, source] int32 -> the decoder's state before the first token."""
        mask = tf.not_equal(source, PAD)
        memory, states = self.encoder(self.embedding(source), mask, seed)
        return self.decoder.start(memory, mask, states)

    def call(
        self,
        source: tf.Tensor,
        target_in: tf.Tensor,
        real: tf.Tensor,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Logits at the real target positions only: padding costs no projection.

        source [rows, source], target_in [rows, target] int32, real [tokens, 2] (row, position) pairs,
        seed [2] int32 draws the dropout masks (None: no dropout) -> [tokens, vocabulary] float32.
        """
        return self.project(tf.gather_nd(self.attended(source, target_in, seed), real))

    def attended(self, source: tf.Tensor, target_in: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """What `project` turns into logits.

        source [rows, source], target_in [rows, target] int32 -> [rows, target, embedding].
        """
        return self.decoder(self.embedding(target_in), self.encode(source, seed), seed)

    def project(self, attended: tf.Tensor) -> tf.Tensor:
        """attended [..., embedding] -> logits [..., vocabulary]."""
        return tf.matmul(attended, self.embedding.embeddings, transpose_b=True) + self.bias

    def step(self, state: DecoderState, ids: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
        """One token of a reply: ids [rows] int32 -> logits [rows, vocabulary], the state after it."""
        attended, state = self.decoder.step(self.embedding(ids), state)
        return self.project(attended), state


def built_model(settings: Settings, vocabulary_size: int) -> Seq2Seq:
    """A model whose weights exist and are a function of settings.seed."""
    model = Seq2Seq(settings, vocabulary_size)
    begin = tf.fill([1, 1], BOS)
    model(begin, begin, tf.zeros([1, 2], tf.int32))
    for number, weight in enumerate(model.trainable_variables):
        seed = settings.seed + 1000 * number
        initializers = {
            "embeddings": keras.initializers.RandomNormal(stddev=0.05, seed=seed),
            "kernel": keras.initializers.GlorotUniform(seed=seed),
            "recurrent_kernel": keras.initializers.Orthogonal(seed=seed),
        }
        if weight.name != "bias":  # stays as Keras made it: zeros, and ones for an LSTM's forget gate
            weight.assign(initializers[weight.name](weight.shape))
    return model


def start_from_frequencies(model: Seq2Seq, shards: Sequence[Encoded]) -> None:
    """Let the untrained model guess each token as often as replies have it: the first epoch need not learn that.

    A character never seen gets the share that Good and Turing give to the unseen: that of the
    tokens seen once.
    """
    counts = np.zeros(model.bias.shape[0])
    for pairs in shards:
        counts += np.bincount(pairs.targets.joined(), minlength=len(counts))
        counts[EOS] += len(pairs)
    counts[UNK] = np.count_nonzero(counts == 1)
    smoothed = counts + 0.1
    smoothed[[PAD, BOS, ASK]] = 1e-6
    model.bias.assign(np.log(smoothed / smoothed.sum()))
