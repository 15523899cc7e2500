"""The whole model: embedding -> encoder -> attention decoder -> logits."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.vocabulary import ASK, BOS, EOS, PAD
from chatbot.model.decoder import Decoder, DecoderState
from chatbot.model.encoder import Encoder
from chatbot.model.fast.projection import LossSize, projection_loss
from chatbot.model.loss import sequence_loss
from chatbot.model.matmul import matmul
from chatbot.model.recurrent import is_packed
from chatbot.model.sampled import sampled_loss
from chatbot.model.sequences import Sequences, sequences_of


class Seq2Seq(keras.Model):
    """An attention seq2seq model (Bahdanau et al., 2015; Luong et al., 2015).

    Questions and replies share one vocabulary and one embedding, which is also the output projection (Press and Wolf,
    2017). The weights are zeros until `built_model` draws them or a checkpoint is read.

    precision: "float32", "bfloat16" or "float16", the type that the factors of matrix products are rounded to;
    weights, states and sums are float32. loss_size: the limits of the loss.
    """

    def __init__(
        self,
        settings: ModelSettings,
        vocabulary_size: int,
        precision: str = "float32",
        loss_size: LossSize = LossSize(),  # noqa: B008  # immutable
    ) -> None:
        super().__init__()
        self.precision, self._settings, self._fast_loss = precision, settings, "loss" in settings.fast
        self.sampled = settings.sampled_softmax
        self.loss_size = loss_size
        self.embedding = keras.layers.Embedding(vocabulary_size, settings.embedding_size, "zeros")
        self.embedding.build()
        self.encoder = Encoder(settings, precision)
        self.decoder = Decoder(settings, precision)
        self.bias = self.add_weight(shape=(vocabulary_size,), initializer="zeros", name="bias")
        self.built = True

    def embed(self, ids: tf.Tensor) -> tf.Tensor:
        """ids [...] -> [..., embedding]."""
        return tf.gather(tf.convert_to_tensor(self.embedding.embeddings), ids)

    def sequences(self, ids: npt.NDArray[Any]) -> Sequences:
        """Return a batch as the model takes it, computed on the host. ids: [rows, time], padded on the right."""
        return sequences_of(ids, is_packed(self._settings))

    def encode(self, source: Sequences, key: tf.Tensor | None = None) -> DecoderState:
        """Return the decoder's state before the first token.

        key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        memory, states = self.encoder(self.embed(source.ids), source, key)
        return self.decoder.start(memory, source.mask, states)

    def call(self, source: Sequences, target_in: Sequences, key: tf.Tensor | None = None) -> tf.Tensor:
        """Return logits [tokens, vocabulary] float32.

        Only the real tokens of target_in have logits, in the order of its packing, with fillers at the end.

        key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        return self.project(self.attended(source, target_in, key))

    def attended(self, source: Sequences, target_in: Sequences, key: tf.Tensor | None = None) -> tf.Tensor:
        """Return the decoder's outputs before `project`, [tokens, embedding]; the arguments are those of `call`."""
        return self.decoder(self.embed(target_in.ids), target_in, self.encode(source, key), key)

    def project(self, attended: tf.Tensor) -> tf.Tensor:
        """attended [..., embedding] -> logits [..., vocabulary]."""
        return matmul(attended, self.embedding.embeddings, self.precision, transpose_b=True) + self.bias

    def summed_loss(self, attended: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Return the weighted cross-entropy in nats, summed: scalar float32.

        attended [tokens, embedding], targets [tokens] int64, weights [tokens] float32.
        """
        if self._fast_loss:
            embeddings, bias = map(tf.convert_to_tensor, (self.embedding.embeddings, self.bias))
            return projection_loss(attended, embeddings, bias, targets, weights, self.precision, self.loss_size)
        return sequence_loss(self.project(attended), targets, weights)

    def sampled_loss(
        self,
        attended: tf.Tensor,
        target_embeddings: tf.Tensor,
        sample_embeddings: tf.Tensor,
        targets: tf.Tensor,
        samples: tf.Tensor,
        weights: tf.Tensor,
    ) -> tf.Tensor:
        """Return the cross-entropy of a sampled softmax; the arguments are those of the function of that name."""
        bias = tf.convert_to_tensor(self.bias)
        embeddings = target_embeddings, sample_embeddings
        return sampled_loss(attended, *embeddings, bias, targets, samples, weights, self.precision)

    def step(self, state: DecoderState, ids: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
        """Decode one token: ids [hypotheses] int32 -> logits [hypotheses, vocabulary], the state after these ids.

        The hypotheses of a row are one after another; with one a row, they are the rows.
        """
        attended, state = self.decoder.step(self.embed(ids), state)
        return self.project(attended), state


def built_model(
    settings: ModelSettings,
    vocabulary_size: int,
    seed: int,
    precision: str = "float32",
    loss_size: LossSize = LossSize(),  # noqa: B008  # immutable
) -> Seq2Seq:
    """Return a new model, whose weights are a function of the seed."""
    model = Seq2Seq(settings, vocabulary_size, precision, loss_size)
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


def embedding_index(model: Seq2Seq) -> int:
    """Return the index of the embedding among the model's trainable variables."""
    return next(i for i, variable in enumerate(model.trainable_variables) if variable is model.embedding.embeddings)


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
