"""What a share consists of: its samples do not depend on how the step is divided, and a GPU reads all of its arrays."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.model import ModelSettings
from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.model.seq2seq import Seq2Seq
from chatbot.model.sequences import specs_of
from chatbot.training.gradients import dense, gradient_function
from chatbot.training.groups import groups_of
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.share import Preparation, Prepared
from chatbot.training.step import Graph
from tests.model.small_transformer import TRANSFORMER
from tests.training.dense_gradients import shares_of, single_groups

SEED, STEP, PAIRS = 3, 5, 13


@functools.cache
def sampled_model() -> tuple[Seq2Seq, Graph]:
    """A model with a sampled softmax, and its gradient function, which is traced once."""
    settings = ModelSettings(rnn_size=8, embedding_size=4, keep_prob=1.0, sampled_softmax=6)
    model = built_model(settings, VOCABULARY, seed=1)
    gradients = gradient_function(model, single_groups(model), "/CPU:0")
    return model, Graph(lambda weights, share: gradients(weights, share))


def prepared_on(machine: int, machines: int, towers: int, pieces: int, step: int = STEP, seed: int = SEED) -> Prepared:
    """The shares of one machine; each machine has as many towers."""
    batch = next(Batches([random_pairs(PAIRS, 1)], PAIRS, SEED).from_step(0, towers, machine, machines))
    return Preparation(sampled_model()[0], seed, ["/CPU:0"] * towers, machine)(batch, step, pieces)


def sums_of(machines: list[Prepared]) -> list[np.ndarray]:
    """The loss and the gradients of a step, summed as all machines and towers do, per target token."""
    model, gradients = sampled_model()
    values = [tf.convert_to_tensor(model.trainable_variables[group.indices[0]]) for group in single_groups(model)]
    totals: list[np.ndarray] = []
    for prepared in machines:
        for share in shares_of(prepared):
            sums = gradients(values, share)
            terms = [x.numpy().astype(np.float64) for x in (sums.weight, sums.loss, *sums.groups, sums.rows)]
            totals = [a + b for a, b in zip(totals, terms, strict=True)] if totals else terms
    tokens, *others, rows = totals
    of_embedding = dense([], tf.constant(rows, tf.float32), share.used, model.embedding.embeddings.shape)
    return [value / tokens for value in (*others, of_embedding.numpy())]


@pytest.mark.parametrize(
    ("towers", "pieces"),
    [([4], [1]), ([1], [3]), ([2], [99]), ([2, 2], [1, 1]), ([2, 2], [1, 4]), ([1, 1, 1], [5, 1, 2])],
    ids=["towers", "accumulated", "pairs", "machines", "one machine out of memory", "three machines"],
)
def test_gradients_of_a_sampled_softmax_do_not_depend_on_the_division(towers: list[int], pieces: list[int]) -> None:
    """towers, pieces: of each machine. The rows of the embedding are added by their place, so `used` must agree."""
    whole = prepared_on(0, 1, 1, 1)
    machines = [
        prepared_on(i, len(towers), *of_machine) for i, of_machine in enumerate(zip(towers, pieces, strict=True))
    ]
    for prepared in machines:
        for share in shares_of(prepared):
            np.testing.assert_array_equal(share.used, shares_of(whole)[0].used)
            np.testing.assert_array_equal(share.samples, shares_of(whole)[0].samples)
    for actual, expected in zip(sums_of(machines), sums_of([whole]), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_samples_follow_from_seed_and_step() -> None:
    samples = [
        shares_of(prepared_on(0, 1, 1, 1, step, seed))[0].samples.tolist()
        for step, seed in ((5, 3), (5, 3), (6, 3), (5, 4))
    ]
    assert samples[0] == samples[1]
    assert samples[0] not in samples[2:]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"copy": True, "cell": "gru"},
        {"sampled_softmax": 5},
        TRANSFORMER,
    ],
    ids=str,
)
def test_a_gpu_reads_every_array_of_a_share(changes: dict[str, Any]) -> None:
    """In the graph of the gradients: what no result depends on would be copied for nothing."""
    settings = replace(SETTINGS, **{"bidirectional": True, "num_layers": 2, "keep_prob": 0.5, **changes})
    model = built_model(settings.model, VOCABULARY, seed=1)
    prepare = Preparation(model, 1, ["/GPU:0"], home="/CPU:0")
    batch = next(Batches([random_pairs(PAIRS, 1)], PAIRS, SEED).from_step(0, 1))
    ((buffer,),) = prepare.copied(prepare(batch, 0))
    groups = groups_of(model, settings.learning, 1 << 30)
    weights = [tf.TensorSpec(group.joined([tf.zeros(shape) for shape in group.shapes]).shape) for group in groups]
    function: Any = gradient_function(model, groups, "/GPU:0")
    graph = function.get_concrete_function(weights, specs_of(prepare.tensors(buffer))).graph
    read: set[tf.Operation] = set()
    queue = [tensor.op for tensor in graph.outputs]
    while queue:
        operation = queue.pop()
        queue += {tensor.op for tensor in operation.inputs} - read
        read |= {tensor.op for tensor in operation.inputs}
    assert [tensor.name for tensor in graph.inputs if tensor.op not in read] == []
