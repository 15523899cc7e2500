"""Sums at indices are equal in both forms, of which one is used on a GPU whose operations must be deterministic."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatbot.model import operations
from chatbot.model.operations import computed_on, scatter_add


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    depth=st.integers(1, 3),
    number=st.lists(st.integers(0, 4), min_size=1, max_size=2),
    seed=st.integers(0, 99),
)
def test_deterministic_sums_equal_those_of_tensorflow(
    shape: list[int], depth: int, number: list[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated indices, several dimensions of them, and none; the first dimension is unknown to the graph."""
    depth, rng = min(depth, len(shape)), np.random.default_rng(seed)
    tensor = rng.normal(size=shape)
    indices = np.stack([rng.integers(0, size, number) for size in shape[:depth]], -1)
    updates = rng.normal(size=[*number, *shape[depth:]])
    monkeypatch.setattr(operations, "is_op_determinism_enabled", lambda: True)

    @tf.function(autograph=False)
    def on_gpu(tensor: tf.Tensor) -> tf.Tensor:
        with computed_on("/GPU:0"):
            return scatter_add(tensor, tf.constant(indices), tf.constant(updates))

    step = on_gpu.get_concrete_function(tf.TensorSpec([None, *shape[1:]], tf.float64))
    assert "TensorScatterAdd" not in {op.type for op in step.graph.get_operations()}
    np.testing.assert_allclose(step(tf.constant(tensor)), scatter_add(tensor, indices, updates), atol=1e-9)
