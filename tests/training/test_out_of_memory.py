"""After running out of memory, a step computes shares in pieces with the same result, or ends with an error."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.corpus.batching.batches import Batches
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.seq2seq import Seq2Seq, built_model
from chatbot.training.devices import Parts, Tower
from chatbot.training.gradients import gradient_function
from chatbot.training.selftest import CASES, TOLERANCE, VOCABULARY, random_pairs, train_model
from chatbot.training.variable_update.parameter_server import parameter_server


@pytest.mark.parametrize(
    ("variable_update", "staged"), [("parameter_server", False), ("parameter_server", True), ("replicated", False)]
)
def test_out_of_memory_splits_shares_with_the_same_result(
    cpus: list[Tower],
    variable_update: str,
    staged: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The gradient function has memory for three pairs."""
    settings = replace(CASES["Adam"], variable_update=variable_update, staged_variables=staged)
    pairs = random_pairs(67, 3)
    expected_weights, expected, _ = train_model(settings, cpus[:2], pairs)
    monkeypatch.setattr("chatbot.training.variable_update.synchronous.gradient_function", with_memory_for(3))
    weights, results, update = train_model(settings, cpus[:2], pairs)
    for actual, expected_weight in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(actual, expected_weight, atol=TOLERANCE)
    assert [int(result.examples) for result in results] == [int(result.examples) for result in expected]
    assert update._pieces == 4
    assert capsys.readouterr().out.count("Out of memory") == 1
    monkeypatch.setattr("chatbot.training.variable_update.synchronous.gradient_function", with_memory_for(0))
    with pytest.raises(UserError, match="out of memory at step 0, with one pair at a time"):
        train_model(settings, cpus[:2], pairs)


def test_out_of_memory_is_reported_with_accumulation_too(
    cpus: list[Tower], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(CASES["SGD"], batch_size=8, accumulate=2)
    monkeypatch.setattr("chatbot.training.variable_update.synchronous.gradient_function", with_memory_for(2))
    train_model(settings, cpus[:1], random_pairs(67, 3), steps=3)
    assert capsys.readouterr().out.count("Out of memory") == 1


def with_memory_for(pairs: int) -> Callable[..., Any]:
    """A gradient_function that runs out of memory with more pairs than this in a share."""

    def limited_gradient_function(model: Seq2Seq, parts: Parts | None = None) -> Any:
        gradients = gradient_function(model, parts)

        def check_rows(rows: int) -> int:
            if rows > pairs:
                raise MemoryError("injected")  # becomes a ResourceExhaustedError
            return rows

        def checked(weights: Any, share: Any, seed: Any) -> Any:
            with tf.control_dependencies([tf.py_function(check_rows, [tf.shape(share[0])[0]], tf.int32)]):
                return gradients(weights, [tf.identity(x) for x in share], seed)

        return checked

    return limited_gradient_function


def test_out_of_memory_during_the_update_is_an_error(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights may be updated in part, since memory runs out after the update was counted."""
    settings = replace(CASES["Adam"], variable_update="parameter_server")
    update = parameter_server(built_model(settings.model, VOCABULARY, settings.learning.seed), settings, cpus[:1])
    update.scatter_state(update.gather_state())

    def exhausted(*_: object) -> None:
        update._replicas[0][0].updates.assign_add(1)
        raise tf.errors.ResourceExhaustedError(None, None, "injected")

    monkeypatch.setattr(update, "_run_step", exhausted)
    (share,) = next(Batches([random_pairs(9, 1)], 9, 1).shares_from(0, 1))
    with pytest.raises(UserError, match="out of memory while the weights were updated, at step 0"):
        update([tuple(map(tf.constant, share))], 0, 0.1)
