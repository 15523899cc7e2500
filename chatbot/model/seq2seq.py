"""The sequence-to-sequence model: embedding -> encoder -> attention decoder -> logits."""

import functools
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
from chatbot.model.copying import GENERATE, Copies, copy_log_probabilities, copying_log_softmax, mix_copies
from chatbot.model.decoder import Decoded, Decoder, DecoderState, SharedDistributions
from chatbot.model.loss import LossSize, projection_loss
from chatbot.model.operations import is_gpu, matmul
from chatbot.model.recurrent import Encoder
from chatbot.model.sequences import Sequences, make_sequences, padded_ids, rows_of_tokens
from chatbot.model.transformer import TransformerDecoder, TransformerEncoder

# Tokens that a pretrained model must not generate, and the logit bias that prevents them.
UNGENERATED_IDS = (BOS, ASK)
UNGENERATED_BIAS = -1e9


class Seq2Seq(keras.Model):
    """A sequence-to-sequence model, recurrent or a Transformer.

    The recurrent model has attention (Bahdanau et al., 2015; Luong et al., 2015). Questions and replies use the same
    embedding. With `settings.tied_embeddings`, it is also the output projection (Press and Wolf, 2017). All weights are
    initially zeros. `build_model` or a checkpoint sets them later.

    Args:
        settings: The architecture and its sizes.
        vocabulary_size: The number of tokens.
        precision: The precision of products; see `chatbot.model.operations`.
        loss_size: The sizes that determine the chunks of the loss.
        spellings: The result of `spelling_table` for a model that copies, or None to copy whole tokens only.
        ngrams: The n-grams that decoding and validation mix in. They are required unless `settings.ngrams` is 0.
        label_smoothing: The label smoothing of the loss, from 0 to 1.
        part_devices: The devices of the encoder's, the decoder's and the projection's weights. The last one must be the
            caller's device. By default, all weights are on the caller's device.
        on_gpu: Whether to choose implementations that are fast on a GPU. None decides by the device of the weights.
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
        # On a CPU, all layers except GRUs skip padding.
        has_packed_layers = settings.cell == "lstm" or self.is_transformer
        self._is_packed = has_packed_layers and not settings.plain_layers and not self.on_gpu
        encoder_device, decoder_device, _ = part_devices or 3 * [self.device]
        if self.is_transformer:
            encoder: Any = TransformerEncoder
            decoder: Any = TransformerDecoder
        else:
            encoder = functools.partial(Encoder, on_gpu=self.on_gpu)
            decoder = functools.partial(Decoder, on_gpu=self.on_gpu)
        with tf.device(encoder_device):
            self.encoder = encoder(settings, precision)
        with tf.device(decoder_device):
            self.decoder = decoder(settings, precision)
        has_bias = settings.form is None or settings.form.biases  # If False, `_fixed_bias` is used.
        self.bias = self.add_weight(shape=(vocabulary_size,), initializer="zeros", trainable=has_bias, name="bias")
        is_generated = ~np.isin(np.arange(vocabulary_size), UNGENERATED_IDS)
        self._fixed_bias = np.where(is_generated, np.float32(0), np.float32(UNGENERATED_BIAS))
        # Label smoothing excludes the tokens that must not be generated, because their logits would dominate the mean.
        is_smoothed = is_generated | (settings.form is None)
        self._smoothing = label_smoothing / is_smoothed.sum() * is_smoothed if label_smoothing else None
        if not self.tied:
            shape = (vocabulary_size, settings.embedding_size)
            self._projection = self.add_weight(shape=shape, initializer="zeros", name="projection")
        self._transposed_projection: tf.Tensor | None = None
        self.built = True

    @property
    def projection(self) -> keras.Variable:
        """The output projection, [vocabulary, embedding]."""
        return self.embedding.embeddings if self.tied else self._projection

    @property
    def device(self) -> str:
        """The device of all weights that `part_devices` does not place on another device."""
        return str(self.embedding.embeddings.value.device)

    def for_gpu(self) -> "Seq2Seq":
        """Return a model with the same architecture that uses the implementations for GPUs. Its weights are zeros."""
        ngrams = None if self.ngrams is None else self.ngrams.ngrams
        options = self.precision, self.loss_size, self._spellings, ngrams, self.label_smoothing
        with self.placed():
            return Seq2Seq(self._settings, self.bias.shape[0], *options, on_gpu=True)

    def placed(self) -> AbstractContextManager[None]:
        """Return a context that runs operations and traces functions on the device of the weights."""
        return tf.device(self.device)

    def embed(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the embedding of each id, [..., embedding]."""
        return tf.gather(tf.convert_to_tensor(self.embedding.embeddings), ids)

    def sequences(self, ids: npt.NDArray[Any]) -> Sequences:
        """Convert a batch of ids to the layout that the model needs.

        Args:
            ids: The token ids, padded on the right, [rows, time].
        """
        return make_sequences(ids, self._is_packed)

    def encode(self, source: Sequences, key: tf.Tensor | None = None) -> DecoderState:
        """Encode questions, and return the decoder's state before the first token.

        Args:
            source: The questions.
            key: The random key of the dropout masks, [1] uint64, or None for no dropout.
        """
        state = self._start(self.embed(source.ids), source, key)
        if self._settings.copy:
            state["question"] = padded_ids(source)
        if self.ngrams is not None:
            state["history"] = self.ngrams.begins(source.mask)
        return state

    def _start(self, embedded: tf.Tensor, source: Sequences, key: tf.Tensor | None) -> DecoderState:
        """Return the decoder's initial state without the entries for copying and n-grams."""
        memory, states = self.encoder(embedded, source, key)
        return self.decoder.start(memory, source.mask, states)

    def call(self, source: Sequences, target_in: Sequences, key: tf.Tensor | None = None) -> tf.Tensor:
        """Return the logits at each token of target_in, without n-grams. The arguments are those of `decoded`.

        Returns:
            The packed logits, [tokens, vocabulary] float32, with fillers at the end.
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
        """Return the decoder's outputs at each token of target_in.

        Args:
            source: The questions.
            target_in: The replies, preceded by a begin symbol.
            key: The random key of the dropout masks, [1] uint64, or None for no dropout.
            rows: The index of the question of each reply, [rows] int64. By default, reply i belongs to question i.
            embedded: The embedded questions and replies, or None to compute them.
        """
        embedded_source, embedded_target = embedded or (self.embed(source.ids), self.embed(target_in.ids))
        start = self._start(embedded_source, source, key)
        question = padded_ids(source)
        if rows is not None:
            start, question = tf.nest.map_structure(lambda x: tf.gather(x, rows), (start, question))
        attended, copies = self.decoder(embedded_target, target_in, start, key)
        return self.with_question(attended, copies, question, target_in)

    def with_question(
        self, attended: tf.Tensor, copies: Copies | tuple[()], question: tf.Tensor, target_in: Sequences
    ) -> Decoded:
        """Combine the decoder's outputs with the question of each token, which a model that copies needs.

        Args:
            attended: The outputs of `Decoder.call`.
            copies: The copying probabilities returned by `Decoder.call`.
            question: The padded ids of the question of each reply.
            target_in: The replies, preceded by a begin symbol.
        """
        if not copies:
            return Decoded(attended)
        return Decoded(attended, copies, tf.gather(question, rows_of_tokens(target_in.packing)))

    def _logits(self, decoded: Decoded) -> tf.Tensor:
        """Return the logits of the next token, or log-probabilities if the model copies, [positions, vocabulary]."""
        logits = self.project(decoded.attended)
        if not decoded.copies:
            return logits
        return copying_log_softmax(logits, decoded.copies, decoded.question, tf.constant(self._spellings), self.on_gpu)

    def attention_weights(self, source: Sequences, target_in: Sequences) -> tf.Tensor:
        """Return the attention weights of each target position, [rows, target, source].

        The model must have attention.
        """
        start = self._start(self.embed(source.ids), source, None)
        return self.decoder.attention_weights(self.embed(target_in.ids), target_in, start)

    def project(self, attended: tf.Tensor) -> tf.Tensor:
        """Project the decoder's outputs [..., embedding] to logits [..., vocabulary]."""
        if self._transposed_projection is not None:
            return matmul(attended, self._transposed_projection, self.precision) + self._biases()
        return matmul(attended, self.projection, self.precision, transpose_b=True) + self._biases()

    def _biases(self) -> tf.Tensor:
        """Return the biases of the logits, which are constants if the model does not learn biases."""
        return tf.convert_to_tensor(self.bias) if self.bias.trainable else tf.constant(self._fixed_bias)

    def freeze(self) -> None:
        """Prepare the model for inference on a CPU. Call this method before graphs are traced.

        Afterwards, the weights must not change, because the model keeps a transposed copy of the projection. The copy
        makes products of up to 64 rows about twice as fast. The n-grams become tensors that all graphs share.
        """
        if self.on_gpu:
            return
        with self.placed():
            self._transposed_projection = tf.transpose(tf.convert_to_tensor(self.projection))
            if self.ngrams is not None:
                self.ngrams = NgramMixture(self.ngrams.ngrams.converted(tf.constant), self.ngrams.weight)

    def summed_loss(self, decoded: Decoded, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """Return the sum of the weighted cross-entropy in nats, scalar float32.

        Args:
            decoded: The decoder's outputs.
            targets: The target ids, [tokens] int64.
            weights: The weight of each token's loss, [tokens] float32.
        """
        attended, copies, question = decoded
        projection = tf.convert_to_tensor(self.projection)
        bias = self._biases()
        parts: tuple[tf.Tensor, ...] = ()
        if copies:
            copied = copy_log_probabilities(copies, question, targets, tf.constant(self._spellings))
            parts = copies.log_actions[:, GENERATE], copied
        options = self.precision, self.loss_size, parts, self._smoothing, self.on_gpu
        return projection_loss(attended, projection, bias, targets, weights, *options)

    def log_probabilities(
        self, decoded: Decoded, targets: tf.Tensor, alike: SharedDistributions | None = None
    ) -> tf.Tensor:
        """Return the log-probability of each target in nats, without n-grams, [tokens] float32.

        Args:
            decoded: The decoder's outputs.
            targets: The target ids, [tokens] int64.
            alike: The tokens with equal next-token distributions, or None if each token has its own.
        """
        attended = decoded.attended if alike is None else tf.gather(decoded.attended, alike.first)
        logits = tf.cast(self.project(attended), tf.float32)
        sums = tf.reduce_logsumexp(logits, -1)  # TensorFlow's cross-entropy would also compute a gradient.
        if alike is None:
            generated = tf.gather(logits, targets, batch_dims=1) - sums
        else:
            generated = tf.gather_nd(logits, tf.stack([alike.numbers, targets], 1)) - tf.gather(sums, alike.numbers)
        if not decoded.copies:
            return generated
        copied = copy_log_probabilities(decoded.copies, decoded.question, targets, tf.constant(self._spellings))
        return mix_copies(decoded.copies, generated, copied)

    def step(self, state: DecoderState, ids: tf.Tensor) -> tuple[tf.Tensor, DecoderState]:
        """Decode one token of each hypothesis.

        Args:
            state: The state before these ids.
            ids: The last id of each hypothesis, [hypotheses]. The hypotheses of a question are adjacent.

        Returns:
            The logits of the next token, [hypotheses, vocabulary], and the state after these ids.
        """
        logits, state = self._neural_step(state, ids)
        if self.ngrams is None:
            return logits, state
        history = self.ngrams.next_history(state["history"], ids)
        log_probabilities = tf.nn.log_softmax(tf.cast(logits, tf.float32))
        if self.on_gpu:  # Looking up all tokens avoids waiting for the number of n-grams of each context.
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
