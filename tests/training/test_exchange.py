"""The state of machine 0 reaches every replica of every machine, one tensor at a time, in its own type."""

import numpy as np
import pytest
import tensorflow as tf

from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.training.allreduce import broadcast
from chatbot.training.devices.towers import Tower
from chatbot.training.groups import groups_of
from chatbot.training.machines.team import Team
from chatbot.training.selftest import SETTINGS, VOCABULARY
from chatbot.training.staged import Staged
from chatbot.training.step import Synchronous
from chatbot.training.update import copies


def summed(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    """An exchange between the replicas of this process."""
    return [[tf.add_n(terms) for terms in zip(*parts, strict=True)]] * len(parts)


@pytest.mark.parametrize("staged", [False, True])
def test_state_is_shared_tensor_by_tensor_in_its_own_type(cpus: list[Tower], staged: bool) -> None:
    settings = replace(SETTINGS, staged_variables=staged, optimizer="adam")
    exchanged: list[tuple[int, list[str], int]] = []  # tensors of a replica, their types, bytes of all replicas

    def recorded(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        tensors = [tensor for part in parts for tensor in part]
        size = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
        exchanged.append((len(parts[0]), sorted({tensor.dtype.name for tensor in tensors}), size))
        return summed(parts)

    model = built_model(settings.model, VOCABULARY, seed=1)
    replicas = copies(model, settings, groups_of(model, settings.learning, 4000), cpus)
    update = (Staged if staged else Synchronous)(model, settings.learning, replicas, recorded, Team(0, 2))
    rng = np.random.default_rng(1)
    state = tf.nest.map_structure(
        lambda value: np.asarray(value + 3 * rng.random(value.shape), value.dtype), update.gather_state()
    )
    start = [weight.numpy() for weight in model.trainable_variables]
    start[0].flat[0] = -0.0
    model.trainable_variables[0].assign(start[0])
    update.scatter_state(state)

    for replica, _ in replicas:
        weights = replica.of_variables(replica.weights)
        for value, expected in zip(weights, start, strict=True):
            assert value.numpy().tobytes() == expected.tobytes()
        for value, expected in zip(replica.gather_state().optimizer, state.optimizer, strict=False):
            assert value.tobytes() == expected.tobytes()
    largest = max(weight.nbytes for weight in start)
    assert max(size for *_, size in exchanged) == len(cpus) * largest
    assert {tensors for tensors, *_ in exchanged} == {1}
    assert [kinds for _, kinds, _ in exchanged].count(["float64"]) == 1  # the number of updates
    assert {kinds[0] for _, kinds, _ in exchanged} == {"float32", "float64"}


def test_only_the_source_gives_its_values() -> None:
    own = [np.asarray(7, np.int64), np.ones([2, 3], np.float32)]
    for source, expected in ((True, own), (False, [np.asarray(-0.0), -np.zeros([2, 3], np.float32)])):
        received = broadcast(summed, own, ["/CPU:0", "/CPU:1"], source)
        for value, wanted in zip(received, expected, strict=True):
            np.testing.assert_array_equal(value.numpy(), wanted)
