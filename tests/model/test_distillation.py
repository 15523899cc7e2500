"""The loss of distillation and its gradients against one in NumPy, by numbers slightly apart, and against one tape."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.model.copying import NO_COPIES, Copies, spelling_table
from chatbot.model.distillation import distillation_loss
from chatbot.model.fast.projection import LossSize, part_of

TOKENS, UNITS, VOCABULARY, SOURCE = 11, 3, 7, 4
SHARE = 0.3
SPELLINGS = [[0], [1], [2], [3], [4], [5, 6], [3, 3, 4]]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


class Case:
    """Random inputs of the loss in float64."""

    def __init__(self, copy: bool) -> None:
        rng = np.random.default_rng(3)
        self.attended = rng.normal(size=(TOKENS, UNITS))
        self.embeddings = rng.normal(size=(VOCABULARY, UNITS))
        self.bias = rng.normal(size=VOCABULARY)
        self.targets = rng.integers(0, VOCABULARY, TOKENS)
        self.weights = rng.uniform(0, 2, TOKENS) * (np.arange(TOKENS) < TOKENS - 2)  # two fillers
        self.taught = softmax(rng.normal(size=(TOKENS, VOCABULARY)) * 3)
        self.question = rng.integers(0, VOCABULARY, (TOKENS, SOURCE))
        actions = np.log(softmax(rng.normal(size=(TOKENS, 3))))
        self.copies = Copies(actions, softmax(rng.normal(size=(TOKENS, SOURCE)))) if copy else NO_COPIES

    def slow_loss(self) -> float:
        """One token and one id at a time."""
        loss = 0.0
        for t in range(TOKENS):
            probabilities = softmax(self.embeddings @ self.attended[t] + self.bias)
            if self.copies:
                generate, token, character = np.exp(self.copies.log_actions[t])
                probabilities = generate * probabilities
                for asked, weight in zip(self.question[t], self.copies.weights[t], strict=True):
                    probabilities[asked] += token * weight
                    for spelled in SPELLINGS[asked]:
                        probabilities[spelled] += character * weight / len(SPELLINGS[asked])
            of_taught = sum(self.taught[t, i] * np.log(probabilities[i]) for i in range(VOCABULARY))
            of_target = np.log(probabilities[self.targets[t]])
            loss -= self.weights[t] * ((1 - SHARE) * of_target + SHARE * of_taught)
        return loss

    @property
    def inputs(self) -> list[np.ndarray]:
        """What has a gradient."""
        return [self.attended, self.embeddings, self.bias, *self.copies]

    def loss_and_gradients(self, size: LossSize) -> tuple[float, list[np.ndarray]]:
        """By the function that is tested, in float32."""
        taught = tf.constant(self.taught, tf.float32)
        inputs = [tf.constant(x, tf.float32) for x in self.inputs]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            attended, embeddings, bias, *copies = inputs
            loss = distillation_loss(
                attended,
                embeddings,
                bias,
                tf.constant(self.targets),
                tf.constant(self.weights, tf.float32),
                lambda part: part_of(taught, part),
                SHARE,
                size=size,
                copies=Copies(*copies) if copies else NO_COPIES,
                question=tf.constant(self.question),
                spellings=tf.constant(spelling_table(SPELLINGS)),
            )
            doubled = 2.0 * loss
        return float(loss), [gradient.numpy() / 2 for gradient in tape.gradient(doubled, inputs)]


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("size", [LossSize(), LossSize(3 * VOCABULARY), LossSize(10**6, TOKENS)])
def test_loss_and_gradients_equal_slow_ones(copy: bool, size: LossSize) -> None:
    """In one chunk, in four, and without a loop."""
    case = Case(copy)
    loss, gradients = case.loss_and_gradients(size)
    assert loss == pytest.approx(case.slow_loss(), rel=1e-5)
    rng = np.random.default_rng(5)
    for values, gradient in zip(case.inputs, gradients, strict=True):
        assert gradient.shape == values.shape
        for _ in range(4):
            place = tuple(rng.integers(values.shape))
            before, step = values[place], 1e-5
            values[place] = before + step
            above = case.slow_loss()
            values[place] = before - step
            slope = (above - case.slow_loss()) / (2 * step)
            values[place] = before
            assert gradient[place] == pytest.approx(slope, rel=1e-3, abs=1e-4)
