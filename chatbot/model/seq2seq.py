"""The whole model: embedding -> encoder -> attention decoder -> logits."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.model import TRANSFORMER, ModelSettings
from chatbot.corpus.vocabulary import ASK, BOS
from chatbot.decoding.ngram_mixture import NgramMixture
from chatbot.decoding.ngrams import Ngrams
from chatbot.model.copying import GENERATE, Copies, log_copied, mixture, with_copies
from chatbot.model.decoder import Alike, Decoded, Decoder, DecoderState
from chatbot.model.loss import LossSize, projection_loss
from chatbot.model.operations import is_gpu, matmul
from chatbot.model.recurrent import Encoder
from chatbot.model.sequences import Sequences, padded_ids, rows_of_tokens, sequences_of

# Tokens that a pretrained model does not have for itself, and the bias by which they are never said.
UNSPOKEN = (BOS, ASK)
SILENCE = -1e9


class Seq2Seq(keras.Model):
    """An attention seq2seq model (Bahdanau et al., 2015; Luong et al., 2015), recurrent or a Transformer.

    Questions and replies share one embedding, which is also the output projection (Press and Wolf, 2017) if
    settings.tied_embeddings. The weights are zeros until `built_model` draws them or a checkpoint is read.

    precision: see `chatbot.model.operations`. loss_size: the limits of the loss. spellings: from `spelling_table`, for
    a model that copies; None: tokens are copied whole. ngrams: those that decoding and validation mix in, if
    settings.ngrams. label_smoothing: of `summed_loss`. part_devices: of the weights of encoder, decoder and
    projection, the last of which is also the caller's; empty: all are on the caller's. on_gpu: whether the layers and
    the loss compute as is fast on a GPU, not on a CPU; None: by the device of the weights.
    """

    def __init__(
        self,
        settings: ModelSettings,
        vocabulary_size: int,
        precision: str = "float32",
        loss_size: LossSize = LossSize(),  # noqa: B008  # immutable
        spellings: npt.NDArray[np.int64] | None = None,
        ngrams: Ngrams | None = None,
        label_smoothing: float = 0.0,
        part_devices: Sequence[str] = (),
        on_gpu: bool | None = None,
    ) -> None:
        super().__init__()
        self.precision = precision
        self._settings = settings
        self.tied = settings.tied_embeddings
        self.loss_size = loss_size
        self.label_smoothing = label_smoothing
        self._spellings = np.arange(vocabulary_size)[:, None] if spellings is None else spellings
        assert (0 if ngrams is None else ngrams.order) == settings.ngrams, "not the n-grams of the settings"
        self.ngrams = None if ngrams is None else NgramMixture(ngrams, settings.ngram_weight)
        self.embedding = keras.layers.Embedding(vocabulary_size, settings.embedding_size, "zeros")
        self.embedding.build()
        self.is_transformer = settings.architecture == TRANSFORMER
        self.on_gpu = is_gpu(self.device) if on_gpu is None else on_gpu
        # All layers but GRUs compute real tokens only on a CPU (`chatbot.model.fast_recurrent`).
        has_packed_layers = settings.cell == "lstm" or self.is_transformer
        self._is_packed = has_packed_layers and not settings.plain_layers and not self.on_gpu
        encoder_device, decoder_device, _ = part_devices or 3 * [self.device]
        with tf.device(encoder_device):
            self.encoder: Any = new_encoder(settings, precision, self.on_gpu)
        with tf.device(decoder_device):
            self.decoder: Any = new_decoder(settings, precision, self.on_gpu)
        has_bias = settings.form is None or settings.form.biases  # else `_silence`
        self.bias = self.add_weight(shape=(vocabulary_size,), initializer="zeros", trainable=has_bias, name="bias")
        self._silence = np.where(np.isin(np.arange(vocabulary_size), UNSPOKEN), np.float32(SILENCE), np.float32(0))
        # Label smoothing leaves out what a pretrained model never says, whose logits would be nearly all of the mean.
        is_said = (self._silence == 0) | (settings.form is None)
        self._smoothing = label_smoothing / is_said.sum() * is_said if label_smoothing else None
        if not self.tied:
            shape = (vocabulary_size, settings.embedding_size)
            self._projection = self.add_weight(shape=shape, initializer="zeros", name="projection")
        self._columns: tf.Tensor | None = None
        self.built = True

    @property
    def projection(self) -> keras.Variable:
        """The output projection, [vocabulary, embedding]."""
        return self.embedding.embeddings if self.tied else self._projection

    @property
    def device(self) -> str:
        """The device of the weights, but for those on `part_devices`."""
        return str(self.embedding.embeddings.value.device)

    def for_gpu(self) -> "Seq2Seq":
        """Return a model like this one, and on its device, that computes as on a GPU, with weights of zeros."""
        ngrams = None if self.ngrams is None else self.ngrams.ngrams
        options = self.precision, self.loss_size, self._spellings, ngrams, self.label_smoothing
        with self.placed():
            return Seq2Seq(self._settings, self.bias.shape[0], *options, on_gpu=True)

    def placed(self) -> AbstractContextManager[None]:
        """Compute on the device of the weights in this block: calls, and functions that are traced by a call."""
        return tf.device(self.device)

    def embed(self, ids: tf.Tensor) -> tf.Tensor:
        """ids [...] -> [..., embedding]."""
        return tf.gather(tf.convert_to_tensor(self.embedding.embeddings), ids)

    def sequences(self, ids: npt.NDArray[Any]) -> Sequences:
        """Return a batch as the model takes it, with indices from the host.

        ids: [rows, time], padded on the right.
        """
        return sequences_of(ids, self._is_packed)

    def encode(self, source: Sequences, key: tf.Tensor | None = None) -> DecoderState:
        """Return the decoder's state before the first token.

        key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        state = self._started(self.embed(source.ids), source, key)
        if self._settings.copy:
            state["question"] = padded_ids(source)
        if self.ngrams is not None:
            state["history"] = self.ngrams.begins(source.mask)
        return state

    def _started(self, embedded: tf.Tensor, source: Sequences, key: tf.Tensor | None) -> DecoderState:
        """Return the decoder's state without that of copying and n-grams. embedded: the ids of source."""
        memory, states = self.encoder(embedded, source, key)
        return self.decoder.start(memory, source.mask, states)

    def call(self, source: Sequences, target_in: Sequences, key: tf.Tensor | None = None) -> tf.Tensor:
        """Return logits [tokens, vocabulary] float32, without n-grams.

        Only the real tokens of target_in have logits, in the order of its packing, with fillers at the end.

        key: [1] uint64 draws the dropout masks; None: no dropout.
        """
        return self._logits(self.decoded(source, target_in, key))

    def decoded(
        self,
        source: Sequences,
        target_in: Sequences,
        key: tf.Tensor | None = None,
        rows: tf.Tensor | None = None,
        embedded: tuple[tf.Tensor, tf.Tensor] | None = None,
    ) -> Decoded:
        """Return the decoder's outputs for the real tokens of target_in. The arguments are those of `call`.

        rows: the row of source of each row of target_in, [rows] int64; None: they are the same. embedded: the ids of
        both sides, embedded; None: they are looked up.
        """
        embedded_source, embedded_target = embedded or (self.embed(source.ids), self.embed(target_in.ids))
        start = self._started(embedded_source, source, key)
        question = padded_ids(source)
        if rows is not None:
            start, question = tf.nest.map_structure(lambda x: tf.gather(x, rows), (start, question))
        attended, copies = self.decoder(embedded_target, target_in, start, key)
        return self.with_question(attended, copies, question, target_in)

    def with_question(
        self, attended: tf.Tensor, copies: Copies | tuple[()], question: tf.Tensor, target_in: Sequences
    ) -> Decoded:
        """Return the decoder's outputs with the question of each token.

        attended, copies: from `Decoder.call`. question: `padded_ids` of each row of target_in.
        """
        if not copies:
            return Decoded(attended)
        return Decoded(attended, copies, tf.gather(question, rows_of_tokens(target_in.packing)))

    def _logits(self, decoded: Decoded) -> tf.Tensor:
        """Return the logits of the next token, with copies its log-probabilities: [positions, vocabulary]."""
        logits = self.project(decoded.attended)
        if not decoded.copies:
            return logits
        return with_copies(logits, decoded.copies, decoded.question, tf.constant(self._spellings), self.on_gpu)

    def attention_weights(self, source: Sequences, target_in: Sequences) -> tf.Tensor:
        """Return the weights of the question's tokens at each target position, [rows, target, source].

        The model must have attention.
        """
        start = self._started(self.embed(source.ids), source, None)
        return self.decoder.attention_weights(self.embed(target_in.ids), target_in, start)

    def project(self, attended: tf.Tensor) -> tf.Tensor:
        """attended [..., embedding] -> logits [..., vocabulary]."""
        if self._columns is not None:
            return matmul(attended, self._columns, self.precision) + self._biases()
        return matmul(attended, self.projection, self.precision, transpose_b=True) + self._biases()

    def _biases(self) -> tf.Tensor:
        """Return the biases of the logits; those of a model that learns none are constants, on any device."""
        return tf.convert_to_tensor(self.bias) if self.bias.trainable else tf.constant(self._silence)

    def freeze(self) -> None:
        """Prepare for replies on a CPU: the weights do not change any more. Graphs must not be traced yet.

        A product with up to 64 rows takes about half of the time by a transposed copy of the projection. All graphs
        share the n-grams, which on several GPUs would be copied for each call.
        """
        if self.on_gpu:
            return
        with self.placed():
            self._columns = tf.transpose(tf.convert_to_tensor(self.projection))
            if self.ngrams is not None:
                self.ngrams = NgramMixture(self.ngrams.ngrams.converted(tf.constant), self.ngrams.weight)

    def summed_loss(self, decoded: Decoded, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Return the weighted cross-entropy in nats, summed: scalar float32.

        targets [tokens] int64, weights [tokens] float32.
        """
        attended, copies, question = decoded
        projection = tf.convert_to_tensor(self.projection)
        bias = self._biases()
        parts: tuple[tf.Tensor, ...] = ()
        if copies:
            copied = log_copied(copies, question, targets, tf.constant(self._spellings))
            parts = copies.log_actions[:, GENERATE], copied
        options = self.precision, self.loss_size, parts, self._smoothing, self.on_gpu
        return projection_loss(attended, projection, bias, targets, weights, *options)

    def log_probabilities(self, decoded: Decoded, targets: tf.Tensor, alike: Alike | None = None) -> tf.Tensor:
        """Return the log-probability of each target in nats, without n-grams, [tokens] float32.

        alike: which tokens have the same distribution; None: each has its own.
        """
        attended = decoded.attended if alike is None else tf.gather(decoded.attended, alike.first)
        logits = tf.cast(self.project(attended), tf.float32)
        sums = tf.reduce_logsumexp(logits, -1)  # the cross-entropy of TensorFlow would compute the gradient, too
        if alike is None:
            generated = tf.gather(logits, targets, batch_dims=1) - sums
        else:
            generated = tf.gather_nd(logits, tf.stack([alike.numbers, targets], 1)) - tf.gather(sums, alike.numbers)
        if not decoded.copies:
            return generated
        copied = log_copied(decoded.copies, decoded.question, targets, tf.constant(self._spellings))
        return mixture(decoded.copies, generated, copied)

    def step(self, state: DecoderState, ids: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
        """Decode one token: ids [hypotheses], integers -> logits [hypotheses, vocabulary], the state after these ids.

        The hypotheses of a row are one after another; with one a row, they are the rows.
        """
        logits, state = self._neural_step(state, ids)
        if self.ngrams is None:
            return logits, state
        history = self.ngrams.next_history(state["history"], ids)
        log_probabilities = tf.nn.log_softmax(tf.cast(logits, tf.float32))
        if self.on_gpu:  # the host would wait for the number of n-grams of each context
            by_ngrams = self.ngrams.probabilities_of(history, np.arange(self.bias.shape[0])[None])
        else:
            by_ngrams = self.ngrams.probabilities(history)
        return self.ngrams.mixed(log_probabilities, by_ngrams), {**state, "history": history}

    def _neural_step(self, state: DecoderState, ids: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
        attended, copies, new_state = self.decoder.step(self.embed(ids), state)
        if not copies:
            return self.project(attended), new_state
        rows, source = tf.unstack(tf.shape(state["question"]))
        hypotheses = tf.shape(ids)[0]
        question = tf.tile(state["question"][:, None], [1, hypotheses // rows, 1])  # [rows, beams, source]
        return self._logits(Decoded(attended, copies, tf.reshape(question, [hypotheses, source]))), new_state


def embedding_index(model: Seq2Seq) -> int:
    """Return the index of the embedding among the model's trainable variables."""
    return next(i for i, variable in enumerate(model.trainable_variables) if variable is model.embedding.embeddings)


def new_encoder(settings: ModelSettings, precision: str, on_gpu: bool) -> Any:
    """Return the encoder of --architecture."""
    if settings.architecture == TRANSFORMER:
        from chatbot.model.transformer import TransformerEncoder

        return TransformerEncoder(settings, precision)
    return Encoder(settings, precision, on_gpu)


def new_decoder(settings: ModelSettings, precision: str, on_gpu: bool) -> Any:
    """Return the decoder of --architecture."""
    if settings.architecture == TRANSFORMER:
        from chatbot.model.transformer import TransformerDecoder

        return TransformerDecoder(settings, precision)
    return Decoder(settings, precision, on_gpu)
