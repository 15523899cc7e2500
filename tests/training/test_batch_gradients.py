"""The gradients of a batch without an update."""

import numpy as np

from chatbot.corpus.batching.batches import Batches
from chatbot.flags import replace
from chatbot.training.devices import Tower
from chatbot.training.selftest import CASES, random_pairs, train_model
from chatbot.training.variable_update.batch_gradients import mean_gradients


def test_gradients_are_those_of_the_next_update(cpus: list[Tower]) -> None:
    """SGD with the learning rate 1 and without clipping subtracts the mean gradient of all towers."""
    settings, pairs = replace(CASES["SGD"], variable_update="replicated"), random_pairs(67, 3)
    _, _, update = train_model(settings, cpus[:2], pairs, steps=0)
    model = update._model

    def weights() -> list[np.ndarray]:
        update.gather_state()
        return [variable.numpy() for variable in model.trainable_variables]

    prepared = update.prepare(next(Batches([pairs], 16, 3).from_step(0, 2)), 0)
    before = weights()
    gradients = mean_gradients(update, model, prepared)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights(), strict=True))
    update(prepared, 1.0)
    for old, gradient, new in zip(before, gradients, weights(), strict=True):
        np.testing.assert_allclose(old - gradient, new, atol=1e-6)
