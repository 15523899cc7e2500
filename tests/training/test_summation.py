"""Gradients are exchanged in the order of the backward pass, each group as soon as its stage has computed it."""

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import _run_inline_graph_optimization

from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.training.devices.towers import Tower, open_towers
from chatbot.training.memory import loss_size
from chatbot.training.new_model import build_model
from chatbot.training.replica import (
    DECODER,
    ENCODER,
    GROUP_BYTES,
    PROJECTION,
    group_variables,
    min_group_bytes,
    variable_bytes,
)
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.step import Synchronous
from chatbot.training.update import make_replicas, open_update


def test_towers_on_gpus_do_not_wait_for_each_other(cpus: list[Tower]) -> None:
    """cuDNN's operations have a state, so TensorFlow calls the towers in a row; each of them holds up no other.

    A call waits for the control outputs of the one before. A loop or a branch over cuDNN's operations would be one.
    """
    settings = replace(SETTINGS, keep_prob=0.5)
    size = loss_size(settings, cpus)
    model = build_model(settings.model, VOCABULARY, 1, "float16", loss_size=size, on_gpu=True)
    update = open_update(model, settings, cpus[:2])
    prepared = update.prepare(next(Batches([random_pairs(20, 1)], 20, 1).from_step(0, 2)), 0)
    step = update.step_graph.concrete(update.preparation.device_shares(prepared)[0], tf.constant(0.1))
    graph = step.graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    (tower,) = (function for name, function in functions.items() if "tower_gradients" in name)
    kinds = {node.op for function in functions.values() for node in function.node_def}
    assert kinds >= {"CudnnRNNV3", "CudnnRNNBackpropV3"}
    assert not kinds & {"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"}
    assert not tower.control_ret


DEEP = replace(SETTINGS, bidirectional=True, num_layers=2, keep_prob=0.5)


def named_exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    """Sums whose operations have the names exchange, exchange_1, and so on, in the order of the calls."""
    with tf.name_scope("exchange"):
        sums = [tf.add_n(terms) for terms in zip(*parts, strict=True)]
        return [[tf.identity(x) for x in sums] for _ in parts]


def ancestors_of_exchanges(towers: list[Tower]) -> list[set[str]]:
    """The operations that each exchange of a step waits for, after TensorFlow has inlined the towers' functions."""
    model = build_model(DEEP.model, VOCABULARY, seed=1)
    groups = group_variables(model, DEEP.learning, GROUP_BYTES)
    update = Synchronous(model, DEEP.learning, make_replicas(model, DEEP, groups, towers), named_exchange)
    prepared = update.prepare(next(Batches([random_pairs(20, 1)], 20, 1).from_step(0, len(towers))), 0)
    step = update.step_graph.concrete(update.preparation.device_shares(prepared)[0], tf.constant(0.1))
    nodes = {node.name: node for node in _run_inline_graph_optimization(step, False, False).node}
    assert not any("tower_gradients" in node.attr["f"].func.name for node in nodes.values() if "f" in node.attr)
    found: list[set[str]] = []
    while exchange := [name for name in nodes if name.startswith(f"exchange{f'_{len(found)}' if found else ''}/")]:
        waited_for: set[str] = set()
        queue = exchange
        while queue:
            inputs = {name.lstrip("^").split(":")[0] for name in nodes[queue.pop()].input}
            queue += inputs - waited_for
            waited_for |= inputs
        found.append(waited_for)
    return found


def test_no_exchange_waits_for_later_stages_of_the_backward_pass(cpus: list[Tower]) -> None:
    """The projection's does not wait for the gradients of decoder and encoder, nor the decoder's for the encoder's."""
    counts, projection, bias, decoder, encoder, rows = ancestors_of_exchanges(cpus[:2])
    backward_of_encoder = encoder - decoder
    backward_of_decoder = decoder & encoder - projection
    assert len(backward_of_encoder) > 40
    assert len(backward_of_decoder) > 40
    assert not backward_of_encoder & projection
    assert len(counts - projection) < 60
    assert len((projection | bias) - decoder) < 60  # beside the gradients, the losses and counts
    assert backward_of_encoder & rows  # the looked-up rows come last


@pytest.mark.parametrize(
    "changes", [{}, {"freeze": "encoder"}, {"weight_decay": 0.1}, {"tied_embeddings": False}], ids=str
)
@pytest.mark.parametrize("size", [0, 2000, 1 << 30])
def test_groups_have_every_variable_once_in_the_order_of_the_backward_pass(changes: dict[str, Any], size: int) -> None:
    settings = replace(DEEP, **changes)
    model = build_model(settings.model, VOCABULARY, seed=1)
    groups, variables = group_variables(model, settings.learning, size), model.trainable_variables
    assert sorted(i for group in groups for i in group.indices) == [*range(len(variables))]
    assert [variables[i] for i in groups[-1].indices] == [model.embedding.embeddings]
    stages = [group.stage for group in groups[:-1]]
    assert [stage for stage, _ in itertools.groupby(stages)] == [PROJECTION, DECODER, ENCODER]
    of_encoder = {id(variable) for variable in model.encoder.trainable_variables}
    for group in groups:
        members = [variables[i] for i in group.indices]
        assert {id(variable) in of_encoder for variable in members} == {group.stage == ENCODER}
        assert {len(variable.shape) > 1 for variable in members} == {
            group.decayed
        } or not settings.learning.weight_decay
        assert group.trained == (group.stage != ENCODER or "freeze" not in changes)
        *others, _ = map(variable_bytes, members)
        assert sum(others) < max(1, size)
    if not size:
        assert {len(group.indices) for group in groups} == {1}


def test_a_single_gpu_updates_all_variables_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group of all stages has the matrices of cuDNN's layers as their transposes, and nothing else."""
    model = build_model(DEEP.model, VOCABULARY, seed=1, on_gpu=True)
    (tower,) = open_towers([], 1)
    monkeypatch.setattr("chatbot.training.update.min_group_bytes", lambda *_: 1)  # for GPUs that exchange gradients
    update = open_update(model, DEEP, [dataclasses.replace(tower, device="/GPU:0")])
    group, embedding = update.replicas[0].groups
    variables = [model.trainable_variables[i] for i in group.indices]
    assert [variable.path.endswith("kernel") and "lstm" in variable.path for variable in variables] == [
        *group.transposed
    ]
    joined = group.join(variables)
    assert joined.shape == [sum(variable.value.shape.num_elements() for variable in variables)]
    for variable, part in zip(variables, group.split(joined), strict=True):
        np.testing.assert_array_equal(part, variable)
    first = next(i for i, transposed in enumerate(group.transposed) if transposed)
    start = sum(variable.value.shape.num_elements() for variable in variables[:first])
    stored = joined[start : start + variables[first].value.shape.num_elements()]
    np.testing.assert_array_equal(stored, np.transpose(variables[first]).ravel())
    assert (len(embedding.indices), embedding.is_vector) == (1, False)


def test_frozen_parts_cover_the_model() -> None:
    model = build_model(SETTINGS.model, VOCABULARY, seed=1)
    counts = {"embedding": 1, "encoder": 3, "decoder": 4, "attention": 1, "projection": 1}
    for part, count in counts.items():
        groups = group_variables(model, replace(SETTINGS, freeze=part).learning, 0)
        assert sum(not group.trained for group in groups) == count, part


@pytest.mark.parametrize("megabytes", [1, 4, 64, 400, 3000])
def test_group_size_on_gpus_minimises_the_cost(megabytes: int) -> None:
    """One group costs as much as an exchange of GROUP_BYTES, and the last one is exchanged after the backward pass."""
    total = megabytes << 20
    model: Any = SimpleNamespace(trainable_variables=[tf.TensorSpec([total // 8]), tf.TensorSpec([total // 8])])

    def cost(size: float) -> float:
        return max(1, total / size) * GROUP_BYTES + min(size, total)

    chosen = min_group_bytes(model, on_gpus=True, is_exchanged=True)
    assert all(cost(chosen) <= 1.001 * cost(chosen * factor) for factor in (0.25, 0.5, 0.9, 1.1, 2, 4))
    assert chosen >= min_group_bytes(model, on_gpus=False, is_exchanged=True)
