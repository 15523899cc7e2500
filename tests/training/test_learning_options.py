"""The options of the update, against NumPy in float64, in every variable update."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.gradients import gradient_function
from chatbot.training.groups import groups_of
from chatbot.training.optimizer import BETA_1, BETA_2, EPSILON
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs, train_model
from chatbot.training.step import Graph
from chatbot.training.update import open_update
from tests.training.dense_gradients import dense_gradients, single_groups

STEPS = 4
PAIRS = random_pairs(67, 3)
# The moving average has its own decay from the third update on, and that of its warm start before.
OPTIONS = replace(
    SETTINGS,
    freeze="encoder,attention",
    weight_decay=0.5,
    average=0.3,
    max_gradient_norm=0.05,
)
UPDATES: dict[str, dict[str, Any]] = {
    "parameter_server": {},
    "replicated": {"variable_update": "replicated"},
    "model parallel": {"model_parallel": True},
    "staged": {"staged_variables": True, "local_parameter_device": "cpu"},
}


def are_trained(model: Seq2Seq) -> list[bool]:
    """Whether each weight is trained."""
    assert model.decoder.attention is not None
    frozen = [*model.encoder.trainable_variables, *model.decoder.attention.trainable_variables]
    return [id(variable) not in map(id, frozen) for variable in model.trainable_variables]


@functools.cache
def slow_weights(settings: Settings) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The average and the weights after training in float64; gradients are those of one device, in float32."""
    learning, model = settings.learning, built_model(settings.model, VOCABULARY, settings.learning.seed)
    gradients_of = gradient_function(model, single_groups(model), "/CPU:0")
    function = Graph(lambda values, share: gradients_of(values, share))  # traced once for all sizes
    weights = [v.numpy().astype(np.float64) for v in model.trainable_variables]
    means, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    averages, pending, number = weights, [], 0
    trained = are_trained(model)
    batches = Batches([PAIRS], learning.batch_size, learning.seed).from_step(0, 1)
    for _ in range(STEPS):
        values = [tf.constant(w, tf.float32) for w in weights]
        sums, gradients = dense_gradients(model, next(batches).shares[0], values, function=function)
        pending.append([g.numpy().astype(np.float64) / float(sums.weight) for g in gradients])
        if settings.parallel.staged_variables and len(pending) == 1:
            continue
        gradients, number = [t * g for t, g in zip(trained, pending.pop(0), strict=True)], number + 1
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        gradients = [g * min(1, learning.max_gradient_norm / norm) for g in gradients]
        means = [BETA_1 * m + (1 - BETA_1) * g for m, g in zip(means, gradients, strict=True)]
        squares = [BETA_2 * s + (1 - BETA_2) * g**2 for s, g in zip(squares, gradients, strict=True)]
        rate = learning.learning_rate * np.sqrt(1 - BETA_2**number) / (1 - BETA_1**number)
        kept = [1 - learning.learning_rate * learning.weight_decay * (w.ndim > 1) for w in weights]
        steps = [rate * m / (np.sqrt(s) + EPSILON) for m, s in zip(means, squares, strict=True)]
        weights = [k * w - step if t else w for t, k, w, step in zip(trained, kept, weights, steps, strict=True)]
        decay = min(learning.average, (1 + number) / (10 + number))
        averages = [decay * a + (1 - decay) * w for a, w in zip(averages, weights, strict=True)]
    return averages, weights


@pytest.mark.parametrize("name", UPDATES)
def test_update_equals_the_formulas(cpus: list[Tower], name: str) -> None:
    settings = replace(OPTIONS, **UPDATES[name])
    towers = spread(cpus) if settings.parallel.model_parallel else cpus[:2]
    averages, _, update = train_model(settings, towers, PAIRS, STEPS)
    staged = settings.parallel.staged_variables
    expected_averages, expected_weights = slow_weights(replace(OPTIONS, staged_variables=staged))
    for replica in update.replicas:
        assert_close([weight.numpy() for weight in replica.of_variables(replica.weights)], expected_weights)
    assert_close(averages, expected_averages)
    start = built_model(settings.model, VOCABULARY, settings.learning.seed).trainable_variables
    trained = update.replicas[0].of_variables(update.replicas[0].weights)
    for final in (averages, [weight.numpy() for weight in trained]):
        changed = [not np.array_equal(value, old.numpy()) for value, old in zip(final, start, strict=True)]
        assert changed == are_trained(update._model)

    state = update.gather_state()
    slots = len(state.optimizer) - 1 - (1 + len(averages) if staged else 0)
    assert slots == 2 * sum(changed)  # frozen weights have none
    resumed = open_update(update._model, settings, towers)
    resumed.scatter_state(state)
    for replica in resumed.replicas:
        assert_close([weight.numpy() for weight in replica.of_variables(replica.weights)], expected_weights)
    for value, expected in zip(*map(tf.nest.flatten, (resumed.gather_state(), state)), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert_close([variable.numpy() for variable in resumed._model.trainable_variables], expected_averages)
    assert max(np.abs(a - w).max() for a, w in zip(expected_averages, expected_weights, strict=True)) > 1e-2


def assert_close(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Compare the values of all weights."""
    for value, expected_value in zip(actual, expected, strict=True):
        np.testing.assert_allclose(value, expected_value, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze": "encoder,tail"}, "--freeze tail: no such part; the parts of the model are embedding, encoder, "),
        ({"freeze": "attention", "attention": "none"}, "--freeze attention: no such part; .* encoder, decoder, proj"),
        ({"freeze": "embedding,encoder,decoder,attention,projection"}, "nothing is left to train; leave out a part"),
        ({"freeze": ""}, "--freeze '': expected printable text"),
    ],
)
def test_parts_that_cannot_be_frozen_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        replace(SETTINGS, **changes)


@pytest.mark.parametrize(
    ("part", "count"), [("embedding", 1), ("encoder", 3), ("decoder", 4), ("attention", 1), ("projection", 1)]
)
def test_parts_are_all_of_the_model(part: str, count: int) -> None:
    model = built_model(SETTINGS.model, VOCABULARY, seed=1)
    groups = groups_of(model, replace(SETTINGS, freeze=part).learning, 0)
    assert sum(not group.trained for group in groups) == count
