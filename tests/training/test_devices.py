"""Which GPUs are chosen, and what is said when they are not there."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

from chatbot.errors import UserError
from chatbot.training.devices import Gpu, Tower, choose_gpus, find_gpus, open_towers, table

FOUR = [Gpu(i, "NVIDIA Test", 24 << 30, f"GPU-{i}abc") for i in range(4)]


def numbers(asked: str | None, towers: int | None = None, found: list[Gpu] = FOUR) -> list[int]:
    """The ids that are chosen."""
    return [gpu.number for gpu in choose_gpus(asked, towers, found)]


def test_gpus_are_those_asked_for_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert numbers("2,0") == [2, 0]
    assert numbers(None) == [0, 1, 2, 3]
    assert numbers(None, found=[]) == []
    assert numbers(None, towers=2) == [0, 1]
    assert numbers(None, towers=2, found=FOUR[:1]) == [0]


def test_a_schedulers_choice_holds_unless_gpus_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert numbers(None) == [3, 1]
    assert numbers("0") == [0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2abc, GPU-0")
    assert numbers(None) == [2, 0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-9")
    with pytest.raises(UserError, match="no GPU is called MIG-9"):
        numbers(None)
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert numbers(None) == []


@pytest.mark.parametrize(
    ("asked", "towers", "found", "words"),
    [
        ("0,1", None, [], ["asked for 0, 1", "found none", "--towers N"]),
        ("0,7", None, FOUR, ["asked for 0, 7", "found 0, 1, 2, 3", "--towers N"]),
        ("0,0", None, FOUR, ["an id stands twice"]),
        ("0;1", None, FOUR, ["ids separated by commas"]),
        ("", None, FOUR, ["ids separated by commas"]),
        ("all", None, FOUR, ["ids separated by commas"]),
        ("0,1", 3, FOUR, ["--towers 3 with 2 GPUs"]),
        (None, 5, FOUR, ["--towers 5 with 4 GPUs"]),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    asked: str | None, towers: int | None, found: list[Gpu], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UserError) as caught:
        choose_gpus(asked, towers, found)
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


def test_the_table_has_a_line_a_tower() -> None:
    text = table([Tower("gpu_2", "/GPU:0", "NVIDIA Test", 24 << 30), Tower("gpu_0", "/GPU:1", "NVIDIA", 1 << 30)])
    assert [line.split() for line in text.splitlines()] == [
        ["tower", "physical", "logical", "name", "memory"],
        ["0", "gpu_2", "/GPU:0", "NVIDIA", "Test", "24.0", "GiB"],
        ["1", "gpu_0", "/GPU:1", "NVIDIA", "1.0", "GiB"],
    ]


def test_gpus_are_found_through_nvidias_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetName=lambda i: f"NVIDIA {i}",
        nvmlDeviceGetMemoryInfo=lambda i: SimpleNamespace(total=i << 30),
        nvmlDeviceGetUUID=lambda i: f"GPU-{i}",
    )
    monkeypatch.setattr("chatbot.training.devices.pynvml", library)
    assert find_gpus() == [Gpu(0, "NVIDIA 0", 0, "GPU-0"), Gpu(1, "NVIDIA 1", 1 << 30, "GPU-1")]

    def no_driver() -> None:
        raise RuntimeError

    library.nvmlInit = no_driver
    assert find_gpus() == []


def opened(gpus: str, towers: str) -> subprocess.CompletedProcess[str]:
    """open_towers in a fresh process, since devices are made once a process."""
    code = (
        "from chatbot.training.devices import *\n"
        f"towers = open_towers({gpus}, {towers})\n"
        "import os, tensorflow as tf\n"
        "print([(t.name, t.device, t.memory) for t in towers])\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'],\n"
        "      tf.config.get_soft_device_placement(), len(tf.config.list_logical_devices('CPU')))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)


def test_the_cpu_is_split_into_towers() -> None:
    done = opened("[]", "3")
    assert done.stdout.splitlines() == [
        "[('cpu_0', '/CPU:0', None), ('cpu_1', '/CPU:1', None), ('cpu_2', '/CPU:2', None)]",
        " PCI_BUS_ID True 3",
    ]
    assert done.stderr == ""


def test_gpus_that_tensorflow_does_not_see_are_named() -> None:
    done = opened("[Gpu(1, 'x', 1, ''), Gpu(3, 'x', 1, '')]", "None")
    assert "TensorFlow sees 0 of the GPUs 1, 3; install the CUDA libraries with `make gpu`" in done.stderr


def test_visible_gpus_are_split_or_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What TensorFlow is told about GPUs, which are not here: the calls are taken down."""
    told: list[tuple] = []
    chosen = [Gpu(3, "x", 10 << 30, ""), Gpu(1, "x", 10 << 30, "")]
    config = tf.config
    monkeypatch.setattr(config, "list_physical_devices", lambda kind="": ["A", "B"][: len(chosen)])
    monkeypatch.setattr(config, "set_soft_device_placement", lambda on: told.append(("soft", on)))
    monkeypatch.setattr(config, "LogicalDeviceConfiguration", lambda memory_limit: memory_limit)
    monkeypatch.setattr(config, "set_logical_device_configuration", lambda device, split: told.append((device, split)))
    monkeypatch.setattr(config.experimental, "set_memory_growth", lambda d, on: told.append((d, "grow", on)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")

    towers = open_towers(chosen, None)
    assert [(t.name, t.device) for t in towers] == [("gpu_3", "/GPU:0"), ("gpu_1", "/GPU:1")]
    assert told == [("soft", True), ("A", "grow", True), ("B", "grow", True)]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,1"

    told.clear()
    chosen = [Gpu(3, "x", 10 << 30, "")]
    towers = open_towers(chosen, 2)
    assert [(t.name, t.device) for t in towers] == [("gpu_3_0", "/GPU:0"), ("gpu_3_1", "/GPU:1")]
    assert told == [("soft", True), ("A", [4608, 4608])]
