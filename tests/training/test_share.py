"""What a share consists of: its rows do not depend on how the step is divided; a GPU gets all of it in a buffer."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from chatbot.corpus.batches import Batches
from chatbot.flags import replace
from chatbot.model.sequences import unsized_specs
from chatbot.training.gradients import gradient_function
from chatbot.training.new_model import build_model
from chatbot.training.replica import group_variables
from chatbot.training.selftest import SETTINGS, VOCABULARY, random_pairs
from chatbot.training.share import Preparation, Prepared, Share, pack_buffer, unpack_buffer
from chatbot.training.variable_update import Graph
from tests.model.small_transformer import TRANSFORMER
from tests.training.dense_gradients import shares_of

SEED, STEP, PAIRS = 3, 5, 13


def prepared_on(machine: int, machines: int, towers: int, pieces: int) -> Prepared:
    """The shares of one machine; each machine has as many towers."""
    batch = next(Batches([random_pairs(PAIRS, 1)], PAIRS, SEED).from_step(0, towers, machine, machines))
    model = build_model(SETTINGS.model, VOCABULARY, seed=1)
    return Preparation(model, SEED, ["/CPU:0"] * towers, machine)(batch, STEP, pieces)


def test_rows_of_a_step_do_not_depend_on_its_division() -> None:
    """Also where one machine is out of memory: rows of the embedding are added by their place in `used`."""
    (whole,) = shares_of(prepared_on(0, 1, 1, 1))
    for division in ((0, 1, 4, 1), (0, 1, 2, 99), (0, 2, 2, 1), (1, 2, 2, 4), (2, 3, 1, 2)):
        for share in shares_of(prepared_on(*division)):
            np.testing.assert_array_equal(share.lookup_ids, whole.lookup_ids)


def test_each_piece_of_a_tower_of_a_machine_has_masks_of_its_own() -> None:
    prepared = prepared_on(machine=1, machines=2, towers=2, pieces=3)
    keys = [[share.key for share in piece if isinstance(share, Share)] for piece in prepared.shares]
    expected = [
        [np.random.SeedSequence([SEED, STEP, 2 + tower, piece]).generate_state(1, np.uint64) for tower in range(2)]
        for piece in range(3)
    ]
    assert keys == expected


@pytest.mark.parametrize("changes", [{"copy": True, "cell": "gru", "bidirectional": True}, TRANSFORMER], ids=str)
def test_a_gpu_reads_every_array_of_a_share(changes: dict[str, Any]) -> None:
    """In the graph of the gradients: what no result depends on would be copied for nothing."""
    settings = replace(SETTINGS, keep_prob=0.5, **changes)
    model = build_model(settings.model, VOCABULARY, seed=1, on_gpu=True)
    prepare = Preparation(model, 1, ["/GPU:0"], home="/CPU:0")
    batch = next(Batches([random_pairs(PAIRS, 1)], PAIRS, SEED).from_step(0, 1))
    ((buffer,),) = prepare.device_shares(prepare(batch, 0))
    groups = group_variables(model, settings.learning, 1 << 30)
    weights = [tf.TensorSpec(group.join([tf.zeros(shape) for shape in group.shapes]).shape) for group in groups]
    function: Any = gradient_function(model, groups)
    graph = function.get_concrete_function(weights, unsized_specs(prepare.tensors(buffer))).graph
    read: set[tf.Operation] = set()
    queue = [tensor.op for tensor in graph.outputs]
    while queue:
        operation = queue.pop()
        queue += {tensor.op for tensor in operation.inputs} - read
        read |= {tensor.op for tensor in operation.inputs}
    assert [tensor.name for tensor in graph.inputs if tensor.op not in read] == []


TYPES = ("bool", "int32", "float32", "int64", "uint64")  # those of a share
ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda dtype: arrays(
        dtype,
        array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
        elements={"allow_subnormal": False} if dtype == "float32" else None,
    )
)


def assert_equal(actual: Any, expected: npt.NDArray[Any]) -> None:
    """Type, shape and values, NaN and the sign of zero included."""
    assert (actual.numpy().dtype, actual.numpy().shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(actual.numpy(), expected)
    if expected.dtype == np.float32:
        np.testing.assert_array_equal(np.signbit(actual.numpy()), np.signbit(expected))


@given(st.lists(ARRAYS, max_size=6), st.booleans())
def test_buffer_returns_the_packed_arrays(some: list[npt.NDArray[Any]], transposed: bool) -> None:
    """Empty arrays, scalars, arrays that are not contiguous, integers with the bits of a NaN."""
    structure = {"some": [array.T if transposed else array for array in some], "none": (), "last": np.float32(0.5)}
    found = unpack_buffer(tf.nest.map_structure(tf.convert_to_tensor, pack_buffer(structure)), unsized_specs(structure))
    tf.nest.map_structure(assert_equal, found, structure)


def test_one_graph_takes_all_sizes() -> None:
    def structure(rows: int, time: int) -> dict[str, npt.NDArray[Any]]:
        ids = np.arange(rows * time).reshape(rows, time)
        return {"ids": ids, "mask": ids % 3 == 0, "lengths": ids[:, 0].astype(np.int32)}

    specs = unsized_specs(structure(1, 1))
    graph = Graph(lambda buffer: unpack_buffer(buffer, specs))
    for rows, time in ((1, 1), (3, 5), (7, 2), (0, 4)):
        buffer = tf.nest.map_structure(tf.convert_to_tensor, pack_buffer(structure(rows, time)))
        tf.nest.map_structure(assert_equal, graph(buffer), structure(rows, time))
        assert buffer.content.shape == [3 * rows * time], "int32 is not in it: TensorFlow would copy it twice"
        assert [array.dtype for array in buffer.on_host] == [tf.int32]
    assert graph.traces == 1
