"""Which variable update and which all-reduce flags and devices lead to."""

from typing import Any

import pytest

from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.model.new_model import built_model
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.selftest import SETTINGS, VOCABULARY
from chatbot.training.update import chosen_update, exchange_on_one_machine, open_update

ONE_GPU, GPUS, CPUS = (
    [Tower(device, device, "", None) for device in devices]
    for devices in (["/GPU:0"], ["/GPU:0", "/GPU:1"], ["/CPU:0", "/CPU:1"])
)
# The parts of a split GPU. They have never run on a GPU; TensorFlow's NCCL refuses them.
PARTS = [Tower(f"gpu_0_{i}", f"/GPU:{i}", "", None, virtual=True) for i in range(2)]


@pytest.mark.parametrize(
    ("given", "towers", "chosen"),
    [
        ({}, CPUS, ("parameter_server", "auto")),
        ({}, ONE_GPU, ("parameter_server", "auto")),
        ({}, GPUS, ("replicated", "nccl")),
        ({}, PARTS, ("replicated", "one_device")),
        ({}, [*GPUS, *CPUS], ("replicated", "one_device")),
        ({"variable_update": "replicated"}, CPUS, ("replicated", "one_device")),
        ({"all_reduce": "hierarchical"}, GPUS, ("replicated", "hierarchical")),
        ({"all_reduce": "hierarchical"}, PARTS, ("replicated", "hierarchical")),
        ({"variable_update": "independent"}, GPUS, ("independent", "auto")),
        ({"local_parameter_device": "cpu"}, GPUS, ("parameter_server", "auto")),
        ({"model_parallel": True, "all_reduce": "nccl"}, GPUS, ("parameter_server", "auto")),
        ({"worker_hosts": "a:2222", "task_index": 0}, GPUS, ("replicated", "nccl")),
    ],
)
def test_variable_update_and_all_reduce_are_chosen_from_flags_and_devices(
    given: dict[str, Any], towers: list[Tower], chosen: tuple[str, str]
) -> None:
    parallel = chosen_update(replace(SETTINGS, **given), towers).parallel
    assert (parallel.variable_update, parallel.all_reduce) == chosen


def test_unsupported_devices_are_errors() -> None:
    model = built_model(SETTINGS.model, VOCABULARY, SETTINGS.learning.seed)
    with pytest.raises(UserError, match="--all-reduce nccl: it needs NVIDIA GPUs"):
        open_update(model, replace(SETTINGS, all_reduce="nccl"), CPUS)
    with pytest.raises(UserError, match="--all-reduce nccl: it needs a GPU for each tower"):
        exchange_on_one_machine(replace(SETTINGS, all_reduce="nccl"), PARTS)
    with pytest.raises(UserError, match="--local-parameter-device gpu: the towers run on the CPU"):
        open_update(model, replace(SETTINGS, local_parameter_device="gpu"), CPUS)
    with pytest.raises(UserError, match="--model-parallel: 1 device cannot be grouped"):
        spread(CPUS[:1])
