"""What TensorBoard's pages show: the gradients of a batch without an update, and heat maps."""

import numpy as np

from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.training.devices.towers import Tower
from chatbot.training.reporting.tensorboard_pages import BLUE, CELL, heat_map, mean_gradients
from chatbot.training.selftest import CASES, random_pairs, train_model


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


def test_heat_map_is_white_at_0_and_blue_at_1() -> None:
    image = heat_map(np.array([[0, 1], [0.5, 0]], np.float32))
    assert image.shape == (2 * CELL, 2 * CELL, 3)
    cells = image.reshape(2, CELL, 2, CELL, 3).swapaxes(1, 2).reshape(4, CELL * CELL, 3)
    assert [np.unique(cell, axis=0).tolist() for cell in cells] == [
        *([[255] * 3], [[*BLUE]], [[round((255 + part) / 2) for part in BLUE]], [[255] * 3])
    ]
