"""Every variable update passes on its settings, and dropout masks of their own for each step, tower and machine.

The gradient function is a stub whose loss is a number drawn from its seed, and whose gradients are ones.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.learning import LearningSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.recurrent import uniform
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.gradients import Sums
from chatbot.training.groups import groups_of
from chatbot.training.machines.team import Team
from chatbot.training.replica import Replica
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.share import Share
from chatbot.training.staged import Staged
from chatbot.training.step import Synchronous
from chatbot.training.update import open_update

# Of one machine, or with the second of two machines.
UPDATES = ["parameter_server", "replicated", "independent", "distributed_replicated"]


@pytest.fixture(autouse=True)
def _drawn_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the gradient function."""

    def stub(model: Seq2Seq, *tower: Any) -> Any:
        def gradients(weights: list[tf.Tensor], share: Share, _: None) -> Sums:
            drawn = 1 + uniform([], share.key, 1)
            *groups, embedding = weights
            rows = tf.zeros([tf.shape(share.used)[0], embedding.shape[1]])
            return Sums(drawn, share.counts[0], [tf.ones_like(embedding)], [*map(tf.ones_like, groups)], rows)

        return gradients

    monkeypatch.setattr("chatbot.training.gradients.gradient_function", stub)


def opened(settings: Settings, towers: list[Tower], machine: int = 0, machines: int = 1) -> Synchronous:
    """The training step of a new model. With several machines, the others contribute nothing to the sums."""
    model = built_model(settings.model, VOCABULARY, settings.learning.seed)
    team: Any = SimpleNamespace(
        alone=machines == 1,
        chief=machine == 0,
        replicas=1,
        exchange=lambda parts: parts,
        machine=machine,
        machines=machines,
    )
    return open_update(model, settings, towers, team)


def losses(settings: Settings, towers: list[Tower], machine: int = 0, machines: int = 1) -> np.ndarray:
    """[3, towers of all machines] the numbers that the towers of this machine draw in three steps."""
    update = opened(settings, towers, machine, machines)
    batches = Batches([random_pairs(40, 1)], 8, 1).from_step(0, len(towers), machine, machines)
    for number in range(3):
        update(update.prepare(next(batches), number), 0.1)
    return np.array([result.loss_sums for result in update.finished_steps()])


def test_masks_differ_between_steps_towers_machines_and_runs(cpus: list[Tower]) -> None:
    one_machine = losses(SETTINGS, cpus)
    assert len(set(one_machine.ravel().tolist())) == 3 * 4
    assert not set(losses(replace(SETTINGS, seed=4), cpus).ravel()) & set(one_machine.ravel())
    for machine in range(2):
        own = losses(SETTINGS, cpus[:2], machine, machines=2)
        np.testing.assert_array_equal(own[:, 2 * machine : 2 * machine + 2], one_machine[:, 2 * machine :][:, :2])
        assert not own[:, 2 - 2 * machine : 4 - 2 * machine].any()  # reported by the other machine


@pytest.mark.parametrize("name", UPDATES)
def test_every_variable_update_uses_all_settings(cpus: list[Tower], name: str) -> None:
    """Staged, in two pieces, by plain gradient descent, with a gradient that is clipped."""
    machines = 2 if name == "distributed_replicated" else 1
    settings = replace(
        SETTINGS,
        variable_update=name,
        staged_variables=True,
        accumulate=2,
        optimizer="sgd",
        max_gradient_norm=0.25,
    )
    update = opened(settings, cpus[:2], machine=machines - 1, machines=machines)
    before = [variable.numpy() for variable in update._model.trainable_variables]
    batches = Batches([random_pairs(16, 1)], 16, 1).from_step(0, 2)
    for number in range(2):
        update(update.prepare(next(batches), number), 1.0)
    update.gather_state()
    first, second = update.finished_steps()
    assert (first.loss_sums[-2:] > 2).all()  # two pieces, each of which draws a number from 1 to 2
    # The first staged step updates nothing. The second applies two pieces of ones from each tower of a replica's sum.
    towers = 1 if name == "independent" else 2
    tokens = first.weight_sums[-2:][:towers].sum()
    weights = sum(variable.size for variable in before)
    assert float(first.gradient_norm) == 0
    assert float(second.gradient_norm) == pytest.approx(2 * towers * np.sqrt(weights) / tokens, rel=1e-4)
    assert int(first.examples) == int(second.examples) == 16
    changes = [old - new.numpy() for old, new in zip(before, update._model.trainable_variables, strict=True)]
    assert np.sqrt(sum(float((change**2).sum()) for change in changes)) == pytest.approx(0.25, rel=1e-3)


def machine_of_two(cpus: list[Tower], machine: int, step: type[Synchronous] = Synchronous) -> Synchronous:
    """One of two machines, in float16. The sum over both is, for every tensor, what this machine sends plus 3."""
    model = built_model(SETTINGS.model, VOCABULARY, seed=1, precision="float16")
    settings = LearningSettings(optimizer="momentum", seed=1)

    def exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
        return [[tensor + tf.cast(3, tensor.dtype) for tensor in part] for part in parts]

    return step(
        model,
        settings,
        [(Replica(model, settings, groups_of(model, settings, 4000)), cpus[:2])],
        exchange,
        Team(machine, 2),
    )


def test_machines_start_from_the_weights_and_state_of_machine_0(cpus: list[Tower]) -> None:
    """Machine 1 sends zeros, so it receives 3 everywhere."""
    update = machine_of_two(cpus, machine=1)
    state = tf.nest.map_structure(lambda value: np.full_like(value, 7), update.gather_state())
    update.scatter_state(state)
    received = [*tf.nest.flatten(update.gather_state()), *(v.numpy() for v in update._model.trainable_variables)]
    assert all((value == 3).all() for value in received)
    first = machine_of_two(cpus, machine=0)
    first.scatter_state(state)
    assert all((value == 10).all() for value in tf.nest.flatten(first.gather_state()))


def test_pending_gradients_are_on_one_tower_of_one_machine(cpus: list[Tower]) -> None:
    steps = [machine_of_two(cpus, machine, Staged) for machine in range(2)]
    gradients = [np.full(variable.shape, 5, np.float32) for variable in steps[0]._model.trainable_variables]
    state = [*gradients, np.asarray(7, np.float32), np.asarray(1, np.float32)]
    parts: list[Any] = [step._pending_of(state) for step in steps if isinstance(step, Staged)]
    pending = [sums for part in parts for sums in part.sums]
    assert [float(sums.weight) for sums in pending] == [7, 0, 0, 0]
    for values in ([sums.rows for sums in pending], [sums.groups[0] for sums in pending]):
        assert [np.unique(value.numpy()).tolist() for value in values] == [[5], [0], [0], [0]]
    assert not any(sums.projection[0].numpy().any() for sums in pending)


def test_staged_step_of_several_machines_is_not_repeated(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine may have updated its weights in the step that ran out of memory here."""
    update = machine_of_two(cpus, machine=1, step=Staged)

    def exhausted(*_: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "injected")

    batch = next(Batches([random_pairs(9, 1)], 9, 1).from_step(0, 2))
    update(update.prepare(batch, 0), 0.1)
    monkeypatch.setattr(update, "step_graph", exhausted)
    with pytest.raises(UserError, match="out of memory while the weights were updated"):
        update(update.prepare(batch, 0), 0.1)
