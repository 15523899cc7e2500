"""Gradients are exchanged in the order of the backward pass, each group as soon as its stage has computed it."""

import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import _run_inline_graph_optimization

from chatbot.corpus.batching.batches import Batches
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import embedding_index
from chatbot.training.devices import Tower
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.variable_update import summation
from chatbot.training.variable_update.replicated import copies
from chatbot.training.variable_update.summation import exchange_groups
from chatbot.training.variable_update.synchronous import Synchronous

DEEP = replace(SETTINGS, bidirectional=True, num_layers=2, keep_prob=0.5)


def named_exchange(parts: list[list[tf.Tensor]]) -> list[list[tf.Tensor]]:
    """Sums whose operations have the names exchange, exchange_1, and so on, in the order of the calls."""
    with tf.name_scope("exchange"):
        sums = [tf.add_n(terms) for terms in zip(*parts, strict=True)]
        return [[tf.identity(x) for x in sums] for _ in parts]


def ancestors_of_exchanges(towers: list[Tower]) -> list[set[str]]:
    """The operations that each exchange of a step waits for, after TensorFlow has inlined the towers' functions."""
    model = built_model(DEEP.model, VOCABULARY, seed=1)
    update = Synchronous(model, copies(model, DEEP, towers), seed=1, exchange=named_exchange)
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
    monkeypatch.setattr(summation, "exchange_groups", lambda *_, **__: [list(range(25))])
    (everything,) = ancestors_of_exchanges(cpus[:2])
    assert len(everything) > 500


@pytest.mark.parametrize(
    ("sampled", "tied", "scheduled"), [(None, True, 0.0), (7, True, 0.0), (None, False, 0.0), (None, False, 0.5)]
)
def test_groups_have_every_tensor_once_and_are_small(
    sampled: int | None, tied: bool, scheduled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indices into [projection, *others, rows, tokens, report]."""
    changes = {"sampled_softmax": sampled, "tied_embeddings": tied, "scheduled_sampling": scheduled}
    model = built_model(replace(DEEP, **changes).model, VOCABULARY, seed=1)
    monkeypatch.setattr(summation, "GROUP_BYTES", 5000)
    groups = exchange_groups(model)
    first = (sampled is None and tied) or scheduled > 0  # whether the embedding has a dense gradient beside its rows
    count = len(model.trainable_variables) + 2 + first
    assert sorted(index for group in groups for index in group) == list(range(count))
    assert groups[-1] == [count - 3]  # the rows
    sizes = [4 * variable.value.shape.num_elements() for variable in model.trainable_variables]
    del sizes[embedding_index(model)]
    for group in groups[1:-1]:
        assert len(group) == 1 or sum(sizes[i - first] for i in group) <= 5000
    assert len(groups) > 6
