"""Which variable update and which all-reduce flags and devices lead to."""

from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.training.allreduce import Exchange, no_exchange
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.selftest import SETTINGS, VOCABULARY, selftest
from chatbot.training.update import chosen_update, open_update


@pytest.mark.parametrize(
    ("given", "devices", "chosen"),
    [
        ({}, ["/CPU:0", "/CPU:1"], ("parameter_server", "auto")),
        ({}, ["/GPU:0"], ("parameter_server", "auto")),
        ({}, ["/GPU:0", "/GPU:1"], ("replicated", "nccl")),
        ({"variable_update": "replicated"}, ["/CPU:0", "/CPU:1"], ("replicated", "one_device")),
        ({"all_reduce": "hierarchical"}, ["/GPU:0", "/GPU:1"], ("replicated", "hierarchical")),
        ({"variable_update": "independent"}, ["/GPU:0", "/GPU:1"], ("independent", "auto")),
        ({"local_parameter_device": "cpu"}, ["/GPU:0", "/GPU:1"], ("parameter_server", "auto")),
        ({"model_parallel": True, "all_reduce": "nccl"}, ["/GPU:0", "/GPU:1"], ("parameter_server", "auto")),
        ({"worker_hosts": "a:2222", "task_index": 0}, ["/GPU:0", "/GPU:1"], ("replicated", "nccl")),
    ],
)
def test_variable_update_and_all_reduce_are_chosen_from_flags_and_devices(
    given: dict[str, Any], devices: list[str], chosen: tuple[str, str]
) -> None:
    towers = [Tower(device, device, "", None) for device in devices]
    parallel = chosen_update(replace(SETTINGS, **given), towers).parallel
    assert (parallel.variable_update, parallel.all_reduce) == chosen


# The parts of a split GPU. They have never run on a GPU; TensorFlow's NCCL refuses them.
PARTS = [Tower(f"gpu_0_{i}", f"/GPU:{i}", "", None, virtual=True) for i in range(2)]


@pytest.mark.parametrize("all_reduce", ["auto", "hierarchical"])
def test_parts_of_a_gpu_are_not_summed_by_nccl(all_reduce: str) -> None:
    parallel = chosen_update(replace(SETTINGS, all_reduce=all_reduce), PARTS).parallel
    assert parallel.variable_update == "replicated"
    assert parallel.all_reduce == ("one_device" if all_reduce == "auto" else all_reduce)


@pytest.fixture
def soft_placement() -> Iterator[None]:
    """Lets a model of a device that this machine does not have be made on the CPU."""
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)
    yield
    tf.config.set_soft_device_placement(before)


@pytest.mark.usefixtures("soft_placement")
def test_selftest_refuses_nccl_between_parts_of_a_gpu() -> None:
    with pytest.raises(UserError, match="--all-reduce nccl: it needs a GPU for each tower"):
        selftest(replace(SETTINGS, all_reduce="nccl"), PARTS)


def test_replicated_gets_the_chosen_all_reduce(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    received = []

    def recorded(settings: Settings, towers: list[Tower]) -> Exchange:
        received.append(settings.parallel.all_reduce)
        return no_exchange

    monkeypatch.setattr("chatbot.training.update.exchange_on_one_machine", recorded)
    model = built_model(SETTINGS.model, VOCABULARY, SETTINGS.learning.seed)
    open_update(model, replace(SETTINGS, variable_update="replicated"), cpus)
    assert received == ["one_device"]


def test_unsupported_devices_are_errors(cpus: list[Tower]) -> None:
    model = built_model(SETTINGS.model, VOCABULARY, SETTINGS.learning.seed)
    with pytest.raises(UserError, match="--all-reduce nccl: it needs NVIDIA GPUs"):
        open_update(model, replace(SETTINGS, all_reduce="nccl"), cpus)
    with pytest.raises(UserError, match="--local-parameter-device gpu: the towers run on the CPU"):
        open_update(model, replace(SETTINGS, local_parameter_device="gpu"), cpus)
    with pytest.raises(UserError, match="--model-parallel: 1 device cannot be grouped"):
        spread(cpus[:1])
