"""The whole model: embedding -> encoder -> attention decoder -> logits."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.vocabulary import ASK, BOS, EOS, PAD
from chatbot.model.decoder import Decoder, DecoderState
from chatbot.model.encoder import Encoder
from chatbot.model.fast.projection import projection_loss
from chatbot.model.loss import sequence_loss
from chatbot.model.matmul import matmul
from chatbot.model.sampled import sampled_loss


class Seq2Seq(keras.Model):
    """An attention seq2seq model (Bahdanau et al., 2015; Luong et al., 2015).

    Questions and replies share one vocabulary and one embedding, which is also the output projection (Press and Wolf,
    2017). The weights are zeros until `built_model` draws them or a checkpoint is read.

    precision: "float32", "bfloat16" or "float16", the type that the factors of matrix products are rounded to;
    weights, states and sums are float32.
    """

    def __init__(self, settings: ModelSettings, vocabulary_size: int, precision: str = "float32") -> None:
        super().__init__()
        self.precision, self._fast_loss = precision, "loss" in settings.fast
        self._sampled = settings.sampled_softmax
        self.embedding = keras.layers.Embedding(vocabulary_size, settings.embedding_size, "zeros")
        self.embedding.build()
        self.encoder = Encoder(settings, precision)
        self.decoder = Decoder(settings, precision)
        self.bias = self.add_weight(shape=(vocabulary_size,), initializer="zeros", name="bias")
        self.built = True

    def encode(self, source: tf.Tensor, seed: tf.Tensor | None = None) -> DecoderState:
        """source [rows, source] int32 -> the decoder's state before the first token.

        seed: [2] int32 draws the dropout masks; None: no dropout.
        """
        mask = tf.not_equal(source, PAD)
        memory, states = self.encoder(self.embedding(source), mask, seed)
        return self.decoder.start(memory, mask, states)

    def call(self, source: tf.Tensor, target_in: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """source [rows, source], target_in [rows, target] int32 -> logits [tokens, vocabulary] float32.

        Only the real tokens of target_in have logits, in the order of `packing_of`, with fillers at the end.

        seed: [2] int32 draws the dropout masks; None: no dropout.
        """
        return self.project(self.attended(source, target_in, seed))

    def attended(self, source: tf.Tensor, target_in: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Return the decoder's outputs before `project`, [tokens, embedding]; the arguments are those of `call`."""
        mask = tf.not_equal(target_in, PAD)
        return self.decoder(self.embedding(target_in), mask, self.encode(source, seed), seed)

    def project(self, attended: tf.Tensor) -> tf.Tensor:
        """attended [..., embedding] -> logits [..., vocabulary]."""
        return matmul(attended, self.embedding.embeddings, self.precision, transpose_b=True) + self.bias

    def summed_loss(
        self, attended: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Return the weighted cross-entropy in nats, summed: scalar float32.

        attended [tokens, embedding], targets [tokens] int32, weights [tokens] float32. seed: [2] int32 draws the
        tokens of a sampled softmax; None: the softmax is exact.
        """
        embeddings, bias = map(tf.convert_to_tensor, (self.embedding.embeddings, self.bias))
        if self._sampled is not None and seed is not None:
            return sampled_loss(attended, embeddings, bias, targets, weights, self._sampled, seed, self.precision)
        if self._fast_loss:
            return projection_loss(attended, embeddings, bias, targets, weights, self.precision)
        return sequence_loss(self.project(attended), targets, weights)

    def step(self, state: DecoderState, ids: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
        """Decode one token: ids [rows] int32 -> logits [rows, vocabulary], the state after these ids."""
        attended, state = self.decoder.step(self.embedding(ids), state)
        return self.project(attended), state


def built_model(settings: ModelSettings, vocabulary_size: int, seed: int, precision: str = "float32") -> Seq2Seq:
    """Return a new model, whose weights are a function of the seed."""
    model = Seq2Seq(settings, vocabulary_size, precision)
    for number, weight in enumerate(model.trainable_variables):
        weight_seed = seed + 1000 * number
        initializers = {
            "embeddings": keras.initializers.RandomNormal(stddev=0.05, seed=weight_seed),
            "kernel": keras.initializers.GlorotUniform(seed=weight_seed),
            "recurrent_kernel": keras.initializers.Orthogonal(seed=weight_seed),
        }
        if weight.name != "bias":  # Keras has set the biases: zeros, and ones for an LSTM's forget gate
            weight.assign(initializers[weight.name](weight.shape))
    return model


def start_from_frequencies(model: Seq2Seq, shards: Sequence[EncodedPairs]) -> None:
    """Set the bias so that the untrained model predicts each token with its frequency in the replies.

    Otherwise the first epoch would have to learn the frequencies. Tokens that never occur, such as most bytes, count as
    a tenth of an occurrence.
    """
    counts = np.zeros(model.bias.shape[0])  # [vocabulary]
    for pairs in shards:
        counts += np.bincount(pairs.targets.joined(), minlength=len(counts))
        counts[EOS] += len(pairs)
    smoothed = counts + 0.1
    smoothed[[PAD, BOS, ASK]] = 1e-6
    model.bias.assign(np.log(smoothed / smoothed.sum()))
