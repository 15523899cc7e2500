"""The graph of a step on GPUs; that on CPUs is looked at in test_variable_update.py."""

from contextvars import ContextVar

import pytest
import tensorflow as tf

from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.model import operations
from chatbot.model.new_model import built_model
from chatbot.training.devices.memory import loss_size
from chatbot.training.devices.towers import Tower
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.update import open_update


def graph_of_the_step(cpus: list[Tower], precision: str = "float32") -> tf.Graph:
    """The traced step of these towers."""
    settings = replace(SETTINGS, keep_prob=0.5)
    size = loss_size(settings, cpus)
    model = built_model(settings.model, VOCABULARY, settings.learning.seed, precision, size)
    update = open_update(model, settings, cpus)
    batch = next(Batches([random_pairs(20, 1)], 20, 1).from_step(0, len(cpus)))
    prepared = update.prepare(batch, 0)
    return update.step_graph.concrete(update.preparation.copied(prepared)[0], tf.constant(0.1)).graph


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_towers_on_gpus_do_not_wait_for_each_other(
    cpus: list[Tower], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN's operations have a state, so TensorFlow calls the towers in a row; each of them holds up no other.

    A call waits for the control outputs of the one before. A loop or a branch over cuDNN's operations would be one.
    """
    monkeypatch.setattr(operations, "_chosen", ContextVar("on_gpu", default=True))
    monkeypatch.setattr(operations, "is_gpu", lambda device: True)
    graph = graph_of_the_step(cpus[:2], precision).as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    (tower,) = (function for name, function in functions.items() if "tower_gradients" in name)
    kinds = {node.op for function in functions.values() for node in function.node_def}
    assert kinds >= {"CudnnRNNV3", "CudnnRNNBackpropV3"}
    assert not kinds & {"While", "StatelessWhile", "If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"}
    assert not tower.control_ret
