"""Gradients are exchanged in the order of the backward pass, each group as soon as its stage has computed it."""

import itertools
import math

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.python.framework.convert_to_constants import _run_inline_graph_optimization

from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import embedding_index
from chatbot.training import allreduce
from chatbot.training.allreduce import GROUP_BYTES, exchange_groups, group_bytes, grouped
from chatbot.training.devices.towers import Tower
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.step import Synchronous
from chatbot.training.update import copies

DEEP = replace(SETTINGS, bidirectional=True, num_layers=2, keep_prob=0.5)


def named_exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    """Sums whose operations have the names exchange, exchange_1, and so on, in the order of the calls."""
    with tf.name_scope("exchange"):
        sums = [tf.add_n(terms) for terms in zip(*parts, strict=True)]
        return [[tf.identity(x) for x in sums] for _ in parts]


def ancestors_of_exchanges(towers: list[Tower]) -> list[set[str]]:
    """The operations that each exchange of a step waits for, after TensorFlow has inlined the towers' functions."""
    model = built_model(DEEP.model, VOCABULARY, seed=1)
    update = Synchronous(model, DEEP.learning, copies(model, DEEP, towers), named_exchange)
    prepared = update.prepare(next(Batches([random_pairs(20, 1)], 20, 1).from_step(0, len(towers))), 0)
    step = update.step_graph.concrete(prepared.shares[0], prepared.used, tf.constant(0.1))
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
    projection, decoder, encoder, rows = ancestors_of_exchanges(cpus[:2])
    backward_of_encoder = encoder - decoder
    backward_of_decoder = decoder & encoder - projection
    assert len(backward_of_encoder) > 40
    assert len(backward_of_decoder) > 40
    assert not backward_of_encoder & projection
    assert len(projection - decoder) < 60  # beside the gradients, the losses and counts
    assert backward_of_encoder & rows  # the looked-up rows come last


def test_a_single_exchange_would_wait_for_everything(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would fail."""
    monkeypatch.setattr(allreduce, "exchange_groups", lambda *_, **__: [list(range(25))])
    (everything,) = ancestors_of_exchanges(cpus[:2])
    assert len(everything) > 500


@pytest.mark.parametrize(("sampled", "tied"), [(None, True), (7, True), (None, False)])
def test_groups_have_every_tensor_once_and_follow_the_backward_pass(
    sampled: int | None, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indices into the fields of Terms."""
    model = built_model(replace(DEEP, sampled_softmax=sampled, tied_embeddings=tied).model, VOCABULARY, seed=1)
    monkeypatch.setattr(allreduce, "GROUP_BYTES", 2000)
    by_device = [exchange_groups(model, on_gpus) for on_gpus in (False, True)]
    first = sampled is None and tied  # whether the embedding has a dense gradient beside its rows
    count = len(model.trainable_variables) + 2 + first
    others = [v for i, v in enumerate(model.trainable_variables) if i != embedding_index(model)]
    index = {id(variable): first + i for i, variable in enumerate(others)}
    stages = [[index[id(v)] for v in reversed(layer.trainable_variables)] for layer in (model.decoder, model.encoder)]
    for groups in by_device:
        order = [index for group in groups for index in group]
        assert sorted(order) == list(range(count))
        assert groups[-1] == [count - 3]  # the rows
        assert order[len(groups[0]) : -1] == [index for stage in stages for index in stage]
        assert not any({*group} & {*stages[0]} and {*group} & {*stages[1]} for group in groups)
    assert by_device[0][0] == by_device[1][0]
    assert len(by_device[1]) < len(by_device[0])


@given(st.lists(st.integers(1, 100 << 20), min_size=1, max_size=40))
def test_groups_are_of_about_their_size(sizes: list[int]) -> None:
    bound = group_bytes(sum(sizes), on_gpus=True)
    groups = grouped(range(len(sizes)), dict(enumerate(sizes)), bound)
    assert [index for group in groups for index in group] == list(range(len(sizes)))
    for group, following in itertools.zip_longest(groups, groups[1:]):
        *others, last = (sizes[index] for index in group)
        assert sum(others) < bound
        assert following is None or sum(others) + last >= bound
    assert len(groups) <= 1 + math.sqrt(sum(sizes) / GROUP_BYTES)
    assert group_bytes(sum(sizes), on_gpus=False) == GROUP_BYTES


@pytest.mark.parametrize("megabytes", [1, 4, 64, 400, 3000])
def test_size_of_groups_on_gpus_costs_least(megabytes: int) -> None:
    """One group costs as much as an exchange of GROUP_BYTES, and the last one is exchanged after the backward pass."""
    total = megabytes << 20

    def cost(size: float) -> float:
        return max(1, total / size) * GROUP_BYTES + min(size, total)

    chosen = group_bytes(total, on_gpus=True)
    assert all(cost(chosen) <= 1.001 * cost(chosen * factor) for factor in (0.25, 0.5, 0.9, 1.1, 2, 4))
    assert chosen >= group_bytes(total, on_gpus=False)
