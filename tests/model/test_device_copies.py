"""A computation on several devices: each has its items and its copy of the weights, and an error ends all."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.flags import compose
from chatbot.model.device_copies import DeviceCopies
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.devices.towers import Tower
from chatbot.training.new_model import build_model

SETTINGS = compose(Settings, rnn_size=4, embedding_size=3)


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    """An untrained model."""
    return build_model(SETTINGS.model, 11, 1)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("items", [0, 1, 3, 9])
def test_each_device_computes_its_items_from_its_weights(
    model: Seq2Seq, cpus: list[Tower], devices: int, items: int
) -> None:
    copies = DeviceCopies(model, [tower.device for tower in cpus[:devices]])
    graph = copies.graph(lambda x: x * tf.reduce_sum(model.bias), [tf.TensorSpec([])])

    def compute(weights: list[tf.Tensor], numbers: Iterator[float]) -> list[Any]:
        return [graph(weights, number) for number in numbers]

    for bias in (1.0, 2.0):
        model.bias.assign(tf.fill([11], bias))
        found = copies.run(compute, [float(i) for i in range(items)])
        assert len(found) == min(devices, items)
        for index, results in enumerate(found):
            assert [result.numpy() for result in results] == [11 * bias * i for i in range(index, items, len(found))]
            assert {result.device[-5:] for result in results} == {f"CPU:{index}"}
    assert graph.traces == bool(items)
    copies.keep_first()
    assert [len(results) for results in copies.run(compute, [1.0, 2.0])] == [2]


def failing(*_: Any, **__: Any) -> None:
    raise KeyError


@pytest.mark.parametrize("by_caller", [False, True])
def test_error_stops_all_devices(
    model: Seq2Seq, cpus: list[Tower], by_caller: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """by_caller: the error is raised in the caller, as by a signal that arrives while it waits."""
    if by_caller:
        monkeypatch.setattr("chatbot.model.device_copies.wait", failing)
    computed = 0

    def compute(_: list[tf.Tensor], numbers: Iterator[int]) -> None:
        nonlocal computed
        for number in numbers:
            if number == 2 and not by_caller:
                failing()
            computed += 1
            time.sleep(0.001)

    with pytest.raises(KeyError):
        DeviceCopies(model, [tower.device for tower in cpus[:2]]).run(compute, range(50_000))
    assert computed < 5000
