"""Gradients that overflow as in float16, in place of a model's, and a plain computation of the loss scale's course."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from chatbot.corpus.batches import Batch
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.gradients import Sums
from chatbot.training.groups import Group
from chatbot.training.share import Share

FLOAT16_MAX = 65504.0


def scaled_gradients(model: Seq2Seq, groups: Sequence[Group], *_: Any) -> Any:
    """In place of `gradient_function`: every gradient is the scaled weight of the share's tokens, or infinite."""

    def gradients(weights: list[tf.Tensor], share: Share, loss_scale: tf.Tensor) -> Sums:
        weight = share.counts[0] * loss_scale
        value = tf.where(weight > FLOAT16_MAX, float("inf"), weight)
        embedding = weights[-1]
        rows = tf.zeros([tf.shape(share.used)[0], embedding.shape[1]])
        of_groups = [tf.fill(w.shape, value) for w, g in zip(weights[:-1], groups[:-1], strict=True) if g.trained]
        return Sums(share.counts[0], weight, [tf.fill(embedding.shape, value)], of_groups, rows)

    return gradients


class Outcome(NamedTuple):
    """What became of a step."""

    finite: bool  # the update was applied
    overflow: bool  # it was skipped, and the scale halved
    scale: float  # afterwards


class Course:
    """The course of a loss scale in plain Python."""

    def __init__(self, doubled_after: int, smallest: float, largest: float) -> None:
        self.scale, self.steps = 1.0, 0
        self._doubled_after, self._smallest, self._largest = doubled_after, smallest, largest

    def finite(self) -> Outcome:
        """After a step whose gradients are finite."""
        self.steps += 1
        if self.steps == self._doubled_after:
            self.scale, self.steps = min(2 * self.scale, self._largest), 0
        return Outcome(True, False, self.scale)

    def skipped(self, loss_finite: bool, scale: float | None = None) -> Outcome:
        """After a step that was not finite. scale: of its gradients, if it was not the last one."""
        used = self.scale if scale is None else scale
        overflow = loss_finite and used > self._smallest
        self.scale, self.steps = min(used / 2, self.scale) if overflow else self.scale, 0
        return Outcome(False, overflow, self.scale)

    def after(self, shares: Sequence[Batch], scale: float) -> Outcome:
        """After a step of these shares, computed with a scale by `scaled_gradients`."""
        weights = [float(share.weights.sum()) for share in shares]
        loss_finite = bool(np.isfinite(weights).all())
        if loss_finite and max(weights) * scale <= FLOAT16_MAX:
            return self.finite()
        return self.skipped(loss_finite, scale)
