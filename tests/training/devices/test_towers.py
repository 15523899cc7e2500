"""The selection of GPUs, its error messages, and the towers on them."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from chatbot.errors import UserError
from chatbot.training.devices.gpus import Gpu
from chatbot.training.devices.towers import Tower, choose_gpus, open_towers, table
from chatbot.training.start import divide_gpus

FOUR = [Gpu(i, "NVIDIA Test", 24 << 30, f"GPU-{i}abc") for i in range(4)]


def numbers(requested: str | None, towers: int | None = None, detected: list[Gpu] = FOUR) -> list[int]:
    """The ids of the selected GPUs."""
    return [gpu.number for gpu in choose_gpus(requested, towers, detected)]


def test_requested_gpus_are_selected_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert numbers("2,0") == [2, 0]
    assert numbers(None) == [0, 1, 2, 3]
    assert numbers(None, detected=[]) == []
    assert numbers(None, towers=4) == [0, 1, 2, 3]
    assert numbers(None, towers=2, detected=FOUR[:1]) == [0]


def test_cuda_visible_devices_applies_unless_gpus_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert numbers(None) == [3, 1]
    assert numbers("0") == [0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2abc, GPU-0")
    assert numbers(None) == [2, 0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-9")
    with pytest.raises(UserError, match="found no GPU MIG-9"):
        numbers(None)
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert numbers(None) == []


INSTANCES = tuple(Gpu(1, "NVIDIA Test MIG 1g.5gb", 5 << 30, f"MIG-{i}abc") for i in (7, 8))
SPLIT = [FOUR[0], dataclasses.replace(FOUR[1], instances=INSTANCES)]


def test_mig_instance_is_selected_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm sets it; `open_towers` passes the UUID on to CUDA."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-8abc")
    assert choose_gpus(None, None, SPLIT) == [INSTANCES[1]]
    assert INSTANCES[1].id == "MIG-8abc"
    assert [gpu.id for gpu in FOUR] == ["0", "1", "2", "3"]
    assert divide_gpus([INSTANCES[1]], 1) == [None]  # the worker reads the same CUDA_VISIBLE_DEVICES
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7abc,MIG-8abc")
    with pytest.raises(UserError, match="CUDA gives a process a single MIG instance; name one"):
        choose_gpus(None, None, SPLIT)


@pytest.mark.parametrize(
    ("requested", "towers", "detected", "message_parts"),
    [
        ("0,1", None, [], ["requested 0, 1", "found none", "--towers N"]),
        ("0,7", None, FOUR, ["requested 0, 7", "found 0, 1, 2, 3", "--towers N"]),
        ("0,0", None, FOUR, ["an id is repeated"]),
        ("0;1", None, FOUR, ["ids separated by commas"]),
        ("", None, FOUR, ["ids separated by commas"]),
        ("all", None, FOUR, ["ids separated by commas"]),
        ("MIG-7abc", None, FOUR, ["CUDA_VISIBLE_DEVICES=MIG-... selects a MIG instance"]),
        ("0,1", 3, FOUR, ["--towers 3 with 2 GPUs"]),
        (None, 5, FOUR, ["--towers 5 with 4 GPUs"]),
        ("0,1", None, SPLIT, ["GPU 1 is split into MIG instances", "leave it out of --gpus", "=MIG-..."]),
        (None, None, SPLIT[1:] * 2, ["or select an instance"]),
    ],
)
def test_impossible_selection_is_a_one_line_error(
    requested: str | None,
    towers: int | None,
    detected: list[Gpu],
    message_parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError) as error:
        choose_gpus(requested, towers, detected)
    assert all(part in str(error.value) for part in message_parts)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_table_has_one_line_per_tower() -> None:
    text = table([Tower("gpu_2", "/GPU:0", "NVIDIA Test", 24 << 30), Tower("gpu_0", "/GPU:1", "NVIDIA", 1 << 30)])
    assert [line.split() for line in text.splitlines()] == [
        ["tower", "physical", "logical", "name", "memory"],
        ["0", "gpu_2", "/GPU:0", "NVIDIA", "Test", "24.0", "GiB"],
        ["1", "gpu_0", "/GPU:1", "NVIDIA", "1.0", "GiB"],
    ]


def run_open_towers(gpus: str, towers: str) -> subprocess.CompletedProcess[str]:
    """Run open_towers in a new process, because a process can create its devices only once."""
    code = (
        "from chatbot.training.devices.towers import *\n"
        f"towers = open_towers({gpus}, {towers})\n"
        "import os, tensorflow as tf\n"
        "print([(t.name, t.device, t.memory) for t in towers])\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'],\n"
        "      tf.config.get_soft_device_placement(), len(tf.config.list_logical_devices('CPU')))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)


def test_cpu_is_split_into_towers() -> None:
    completed = run_open_towers("[]", "3")
    assert completed.stdout.splitlines() == [
        "[('cpu_0', '/CPU:0', None), ('cpu_1', '/CPU:1', None), ('cpu_2', '/CPU:2', None)]",
        " PCI_BUS_ID True 3",
    ]
    assert completed.stderr == ""


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (
            1,
            "TensorFlow sees 1 of the GPUs 3, 1; install CUDA's libraries with `make gpu`, update",
        ),
        (2, "GPU 1 (old) has compute capability 1.2, and this TensorFlow needs 6.0; select other GPUs with --gpus"),
    ],
)
def test_gpus_that_tensorflow_cannot_use_are_an_error(seen: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow lists a GPU that is too old, but does not compute on it."""
    gpus = [Gpu(3, "x", 1, "", capability=(8, 0)), Gpu(1, "old", 1, "", capability=(1, 2))]
    build = {"cuda_compute_capabilities": ["sm_60", "sm_70", "compute_90"]}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: build)
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(os.environ, "CUDA_DEVICE_ORDER", "")
    monkeypatch.delitem(sys.modules, "tensorflow")  # as in a process that has not used it
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind="": ["A", "B"][:seen])
    with pytest.raises(UserError, match="^" + re.escape(message)):
        open_towers(gpus, None)


def test_several_gpus_get_memory_growth_and_one_gpu_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records the calls of TensorFlow's configuration, since the tests run without a GPU."""
    calls: list[tuple] = []
    gpus = [Gpu(3, "x", 10 << 30, ""), Gpu(1, "x", 10 << 30, "")]
    config = tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind="": ["A", "B"][: len(gpus)])
    monkeypatch.setattr(config, "set_soft_device_placement", lambda on: calls.append(("soft", on)))
    monkeypatch.setattr(config, "LogicalDeviceConfiguration", lambda memory_limit: memory_limit)
    monkeypatch.setattr(config, "set_logical_device_configuration", lambda device, split: calls.append((device, split)))
    monkeypatch.setattr(config.experimental, "set_memory_growth", lambda d, on: calls.append((d, "grow", on)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")

    towers = open_towers(gpus, None)
    assert [(t.name, t.device) for t in towers] == [("gpu_3", "/GPU:0"), ("gpu_1", "/GPU:1")]
    assert calls == [("soft", True), ("A", "grow", True), ("B", "grow", True)]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,1"

    calls.clear()
    gpus = [Gpu(3, "x", 12 << 30, "", used=2 << 30)]
    towers = open_towers(gpus, 2)
    assert [(t.name, t.device, t.virtual) for t in towers] == [("gpu_3_0", "/GPU:0", True), ("gpu_3_1", "/GPU:1", True)]
    assert calls == [("soft", True), ("A", [4608, 4608])]
