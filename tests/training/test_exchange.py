"""How updates are chosen; several machines: the state of machine 0 reaches all replicas, each sends its own once."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.training.allreduce import Exchange
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.machines.team import Team
from chatbot.training.new_model import build_model
from chatbot.training.replica import group_variables
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.staged import Staged
from chatbot.training.step import Synchronous
from chatbot.training.update import local_exchange, make_replicas, open_update, resolve_update

ONE_GPU, GPUS, CPUS = (
    [Tower(device, device, "", None) for device in devices]
    for devices in (["/GPU:0"], ["/GPU:0", "/GPU:1"], ["/CPU:0", "/CPU:1"])
)
# The parts of a split GPU. They have never run on a GPU; TensorFlow's NCCL refuses them.
PARTS = [Tower(f"gpu_0_{i}", f"/GPU:{i}", "", None, virtual=True) for i in range(2)]


@pytest.mark.parametrize(
    ("given", "towers", "chosen"),
    [
        ({}, CPUS, ("parameter_server", "auto")),
        ({}, ONE_GPU, ("parameter_server", "auto")),
        ({}, GPUS, ("replicated", "nccl")),
        ({}, PARTS, ("replicated", "one_device")),
        ({}, [*GPUS, *CPUS], ("replicated", "one_device")),
        ({"variable_update": "replicated"}, CPUS, ("replicated", "one_device")),
        ({"all_reduce": "hierarchical"}, GPUS, ("replicated", "hierarchical")),
        ({"all_reduce": "hierarchical"}, PARTS, ("replicated", "hierarchical")),
        ({"variable_update": "independent"}, GPUS, ("independent", "auto")),
        ({"local_parameter_device": "cpu"}, GPUS, ("parameter_server", "auto")),
        ({"model_parallel": True, "all_reduce": "nccl"}, GPUS, ("parameter_server", "auto")),
        ({"worker_hosts": "a:2222", "task_index": 0}, GPUS, ("replicated", "nccl")),
    ],
)
def test_variable_update_and_all_reduce_are_chosen_from_flags_and_devices(
    given: dict[str, Any], towers: list[Tower], chosen: tuple[str, str]
) -> None:
    parallel = resolve_update(replace(SETTINGS, **given), towers).parallel
    assert (parallel.variable_update, parallel.all_reduce) == chosen


def test_unsupported_devices_are_errors() -> None:
    model = build_model(SETTINGS.model, VOCABULARY, SETTINGS.learning.seed)
    with pytest.raises(UserError, match="--all-reduce nccl: NCCL requires GPUs"):
        open_update(model, replace(SETTINGS, all_reduce="nccl"), CPUS)
    with pytest.raises(UserError, match="--all-reduce nccl: NCCL requires a GPU for each tower"):
        local_exchange(replace(SETTINGS, all_reduce="nccl"), PARTS)
    with pytest.raises(UserError, match="--local-parameter-device gpu: the towers run on the CPU"):
        open_update(model, replace(SETTINGS, local_parameter_device="gpu"), CPUS)
    with pytest.raises(UserError, match="--model-parallel: 1 device cannot be grouped"):
        spread(CPUS[:1])


def summed(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    """An exchange between the replicas of this process."""
    return [[tf.add_n(terms) for terms in zip(*parts, strict=True)]] * len(parts)


def machine_of_two(
    towers: list[Tower], machine: int, exchange: Exchange = summed, staged: bool = False, precision: str = "float32"
) -> Any:
    """The step of one of two machines, with a replica for each tower."""
    settings: Settings = replace(SETTINGS, staged_variables=staged)
    model = build_model(settings.model, VOCABULARY, seed=1, precision=precision)
    replicas = make_replicas(model, settings, group_variables(model, settings.learning, 4000), towers)
    return (Staged if staged else Synchronous)(model, settings.learning, replicas, exchange, Team(machine, 2))


@pytest.mark.parametrize("staged", [False, True])
def test_state_is_shared_tensor_by_tensor_in_its_own_type(cpus: list[Tower], staged: bool) -> None:
    exchanged: list[tuple[int, list[str], int]] = []  # tensors of a replica, their types, bytes of all replicas

    def recorded(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        tensors = [tensor for part in parts for tensor in part]
        size = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
        exchanged.append((len(parts[0]), sorted({tensor.dtype.name for tensor in tensors}), size))
        return summed(parts)

    update = machine_of_two(cpus, 0, recorded, staged)
    rng = np.random.default_rng(1)
    state = tf.nest.map_structure(
        lambda value: np.asarray(value + 3 * rng.random(value.shape), value.dtype), update.gather_state()
    )
    start = [weight.numpy() for weight in update._model.trainable_variables]
    start[0].flat[0] = -0.0
    update._model.trainable_variables[0].assign(start[0])
    update.scatter_state(state)
    for replica in update.replicas:
        weights = replica.by_variable(replica.weights)
        for value, expected in zip(weights, start, strict=True):
            assert value.numpy().tobytes() == expected.tobytes()
        for value, expected in zip(replica.gather_state().optimizer, state.optimizer, strict=False):
            assert value.tobytes() == expected.tobytes()
    largest = max(weight.nbytes for weight in start)
    assert max(size for *_, size in exchanged) == len(cpus) * largest
    assert {tensors for tensors, *_ in exchanged} == {1}
    assert [kinds for _, kinds, _ in exchanged].count(["float64"]) == 1  # the number of updates
    assert {kinds[0] for _, kinds, _ in exchanged} == {"float32", "float64"}


def test_machines_start_from_the_weights_and_state_of_machine_0(cpus: list[Tower]) -> None:
    """The sum over both is what this machine sends plus 3: machine 1 sends zeros."""

    def add_3(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        return [[tensor + tf.cast(3, tensor.dtype) for tensor in part] for part in parts]

    for machine, expected in ((0, 10), (1, 3)):
        update = machine_of_two(cpus[:1], machine, add_3, precision="float16")
        state = tf.nest.map_structure(lambda value: np.full_like(value, 7), update.gather_state())
        for variable in update._model.trainable_variables:
            variable.assign(tf.fill(variable.shape, 7.0))
        update.scatter_state(state)
        received = [*tf.nest.flatten(update.gather_state()), *(v.numpy() for v in update._model.trainable_variables)]
        assert all((value == expected).all() for value in received)


def test_pending_gradients_are_on_one_tower_of_one_machine(cpus: list[Tower]) -> None:
    steps = [machine_of_two(cpus[:2], machine, staged=True) for machine in range(2)]
    gradients = [np.full(variable.shape, 5, np.float32) for variable in steps[0]._model.trainable_variables]
    pending = [
        sums for step in steps for sums in step._restore_pending([*gradients, np.float32(7), np.float32(1)]).sums
    ]
    assert [float(sums.weight) for sums in pending] == [7, 0, 0, 0]
    for values in ([sums.rows for sums in pending], [sums.groups[0] for sums in pending]):
        assert [np.unique(value.numpy()).tolist() for value in values] == [[5], [0], [0], [0]]
    assert not any(sums.projection[0].numpy().any() for sums in pending)


def test_machine_reports_its_own_towers_and_does_not_repeat_an_exchange(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine may have updated its weights in the step that ran out of memory here."""
    update = machine_of_two(cpus[:2], 1, staged=True)

    def exhausted(*_: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "injected")

    batch = next(Batches([random_pairs(9, 1)], 9, 1).from_step(0, 2))
    update(update.prepare(batch, 0), 0.1)
    (result,) = update.finished_steps()
    assert result.weight_sums.tolist() == [0, 0, *(share.weights.sum() for share in batch.shares)]
    monkeypatch.setattr(update, "step_graph", exhausted)
    with pytest.raises(UserError, match="out of memory while the weights were updated"):
        update(update.prepare(batch, 0), 0.1)
