"""The slow twin of every variable update: a whole training step in NumPy, in float64, on one device.

Only the gradients of a batch are TensorFlow's, in float32, by one tape over the model as it is called.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batch, split
from chatbot.corpus.vocabulary import PAD
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import Sequences, pack_array, unsized_specs
from chatbot.training.optimizer import BETA_1, BETA_2, EPSILON, MOMENTUM, NUM_SLOTS

MAX_SQUARE = float(np.finfo(np.float32).max)


def tape_gradients(model: Seq2Seq, batch: Batch, key: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss sum of a batch, and its gradients. key: of the dropout masks."""
    return gradients_of(model, *arrays_of(model, batch), key)


def arrays_of(model: Seq2Seq, batch: Batch) -> tuple[Sequences, Sequences, np.ndarray, np.ndarray]:
    """The source and the target of a batch, and the packed ids and weights that are predicted."""
    source, target_in = model.sequences(batch.source), model.sequences(batch.target_in)
    targets = pack_array(batch.target_out, target_in.packing, PAD).astype(np.int64)
    return source, target_in, targets, pack_array(batch.weights, target_in.packing, 0.0)


def gradients_of(
    model: Seq2Seq, source: Sequences, target_in: Sequences, targets: Any, weights: Any, key: Any
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss sum and the gradients, from `arrays_of` a batch or from tensors."""
    with tf.GradientTape() as tape:
        decoded = model.decoded(source, target_in, key)
        loss = -tf.reduce_sum(model.log_probabilities(decoded, targets) * weights)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]


class Sums(NamedTuple):
    """The sums over the batch of a step."""

    losses: list[float]  # of each tower
    tokens: list[float]
    pairs: int
    gradients: list[np.ndarray]


class Outcome(NamedTuple):
    """What became of a step. Losses and tokens are those of its batch, also if an earlier one is applied."""

    losses: list[float]
    tokens: list[float]
    pairs: int
    norm: float  # of the gradient that is applied, before clipping
    finite_loss: bool
    finite: bool


class SlowTraining:
    """Trains a model of its own. towers: those of the run that it is compared with, by which masks are drawn.

    counts_skipped: Adam's correction of its start counts steps, not updates that were applied.
    """

    def __init__(self, model: Seq2Seq, settings: Settings, towers: Sequence[int], counts_skipped: bool = False) -> None:
        self._model, self._settings, self._towers = model, settings, towers
        self._gradients = tf.function(functools.partial(gradients_of, model), autograph=False)
        self._counts_skipped = counts_skipped
        self.weights = [variable.numpy().astype(np.float64) for variable in model.trainable_variables]
        self.averages = self.weights
        slots = NUM_SLOTS[settings.learning.optimizer]
        self.slots = [[np.zeros_like(w) for w in self.weights] for _ in range(slots)]  # [kind][weight]
        self.updates = 0
        self._pending: Sums | None = None
        parts: dict[str, Any] = {"encoder": model.encoder, "attention": getattr(model.decoder, "attention", None)}
        frozen = [v for name in settings.learning.frozen for v in parts[name].trainable_variables]
        self.trained = [not any(v is other for other in frozen) for v in model.trainable_variables]

    def step(self, number: int, shares: Sequence[Batch], rate: float) -> Outcome:
        """Train on the shares of a batch, of all towers."""
        due = now = self._sums(number, [shares[i] for i in self._towers])
        if self._settings.parallel.staged_variables:
            if self._pending is None:
                self._pending = now
                return Outcome(*now[:3], norm=0.0, finite_loss=True, finite=True)
            due, self._pending = self._pending, now
        mean = [gradient / sum(due.tokens) for gradient in due.gradients]
        squares = sum(float((g**2).sum()) for g, trained in zip(due.gradients, self.trained, strict=True) if trained)
        finite_loss = bool(np.isfinite(due.losses).all())
        finite = finite_loss and squares < MAX_SQUARE
        norm = np.sqrt(squares) / sum(due.tokens)
        if finite:
            self.updates += 1
            self._update(mean, norm, rate, number + 1 if self._counts_skipped else self.updates)
        return Outcome(*now[:3], norm, finite_loss, finite)

    def _sums(self, number: int, shares: Sequence[Batch]) -> Sums:
        learning, model = self._settings.learning, self._model
        for variable, weight in zip(model.trainable_variables, self.weights, strict=True):
            variable.assign(weight)
        losses, gradients = [], [np.zeros_like(weight) for weight in self.weights]
        for tower, share in zip(self._towers, shares, strict=True):
            losses.append(0.0)
            pieces = split(share, learning.accumulate)
            for piece, batch in enumerate(pieces):
                seed = np.random.SeedSequence([learning.seed, number, tower, piece])
                arrays = *arrays_of(model, batch), seed.generate_state(1, np.uint64)
                inputs = tf.nest.map_structure(tf.constant, arrays)
                # Traced at the first batch, for all sizes.
                loss, terms = self._gradients.get_concrete_function(*unsized_specs(arrays))(*inputs)
                losses[-1] += float(loss)
                gradients = [total + term.numpy() for total, term in zip(gradients, terms, strict=True)]
        tokens = [float(share.weights.sum()) for share in shares]
        return Sums(losses, tokens, sum(int((share.weights[:, 0] != 0).sum()) for share in shares), gradients)

    def _update(self, mean: Sequence[np.ndarray], norm: float, rate: float, number: int) -> None:
        learning = self._settings.learning
        updated = []
        for i, (weight, gradient, variable) in enumerate(
            zip(self.weights, mean, self._model.trainable_variables, strict=True)
        ):
            if not self.trained[i]:
                updated.append(weight)
                continue
            gradient = gradient * min(1, learning.max_gradient_norm / norm)
            if weight.ndim > 1 and variable.name != "bias":
                weight = weight * (1 - rate * learning.weight_decay)
            of_weight = [kind[i] for kind in self.slots]
            if learning.optimizer == "adam":
                of_weight[0] = BETA_1 * of_weight[0] + (1 - BETA_1) * gradient
                of_weight[1] = BETA_2 * of_weight[1] + (1 - BETA_2) * gradient**2
                corrected = rate * np.sqrt(1 - BETA_2**number) / (1 - BETA_1**number)
                change = -corrected * of_weight[0] / (np.sqrt(of_weight[1]) + EPSILON)
            elif learning.optimizer == "momentum":
                change = of_weight[0] = MOMENTUM * of_weight[0] - rate * gradient
            else:
                change = -rate * gradient
            for kind, value in zip(self.slots, of_weight, strict=True):
                kind[i] = value
            updated.append(weight + change)
        self.weights = updated
        decay = min(learning.average, (1 + number) / (10 + number))
        self.averages = [decay * a + (1 - decay) * w for a, w in zip(self.averages, updated, strict=True)]
