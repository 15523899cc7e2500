"""The devices of a run: which GPUs are selected, what the driver says of them, the towers, and their memory."""

import dataclasses
import os
import re
import sys
from types import SimpleNamespace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given

from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches, split
from chatbot.errors import UserError
from chatbot.flags import compose
from chatbot.model.loss import LOGITS, LossSize, max_logits_for
from chatbot.model.sequences import compute_packing
from chatbot.training.devices.gpus import Gpu, find_gpus, nvml_error, silent_gpus, warn_about_used_memory
from chatbot.training.devices.towers import Tower, choose_gpus, open_towers, table
from chatbot.training.memory import loss_size, max_tokens, min_memory
from chatbot.training.selftest import random_pairs
from chatbot.training.start import divide_gpus
from tests.commands import python
from tests.training.devices.nvml import Nvml

FOUR = [Gpu(i, "NVIDIA Test", 24 << 30, f"GPU-{i}abc") for i in range(4)]


def selected(requested: str | None = None, towers: int | None = None, detected: list[Gpu] = FOUR) -> list[Gpu]:
    """The selected ones of these GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chatbot.training.devices.towers.find_gpus", lambda: detected)
        return choose_gpus(requested, towers)


def numbers(*arguments: Any, **keywords: Any) -> list[int]:
    """The ids of the selected GPUs."""
    return [gpu.number for gpu in selected(*arguments, **keywords)]


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
    assert selected(detected=SPLIT) == [INSTANCES[1]]
    assert INSTANCES[1].id == "MIG-8abc"
    assert [gpu.id for gpu in FOUR] == ["0", "1", "2", "3"]
    assert divide_gpus([INSTANCES[1]], 1) == [None]  # the worker reads the same CUDA_VISIBLE_DEVICES
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7abc,MIG-8abc")
    with pytest.raises(UserError, match="a CUDA process can use only one MIG instance; list one"):
        selected(detected=SPLIT)


@pytest.mark.parametrize(
    ("requested", "towers", "detected", "message_parts"),
    [
        ("0,1", None, [], ["requested 0, 1", "found none", "--towers N"]),
        ("0,7", None, FOUR, ["requested 0, 7", "found 0, 1, 2, 3", "--towers N"]),
        ("0,0", None, FOUR, ["an id is repeated"]),
        ("0;1", None, FOUR, ["ids separated by commas"]),
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
        selected(requested, towers, detected)
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


def test_cpu_is_split_into_towers() -> None:
    """In a new process, because a process can create its devices only once."""
    code = (
        "from chatbot.training.devices.towers import *\n"
        "towers = open_towers([], 3)\n"
        "import os, tensorflow as tf\n"
        "print([(t.name, t.device, t.memory) for t in towers])\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'],\n"
        "      tf.config.get_soft_device_placement(), len(tf.config.list_logical_devices('CPU')))\n"
        "print([t.name for t in open_towers([], None)])\n"
    )
    completed = python(code, environment=os.environ)
    assert completed.stdout.splitlines() == [
        "[('cpu_0', '/CPU:0', None), ('cpu_1', '/CPU:1', None), ('cpu_2', '/CPU:2', None)]",
        " PCI_BUS_ID True 3",
        "['cpu_0']",
    ]
    assert completed.stderr == ""


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        (
            1,
            "TensorFlow sees 1 of the GPUs 3, 1; install CUDA's libraries with `make gpu`, update",
        ),
        (2, "GPU 1 (old) has compute capability 1.2, but this TensorFlow needs 6.0; select other GPUs with --gpus"),
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
    gpus = [Gpu(3, "x", 10 << 30, "", used=7 << 30), Gpu(1, "x", 10 << 30, "")]
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
    assert {t.left for t in towers} == {10 << 30}  # this process has used TensorFlow, and what is in use may be its own
    assert calls == [("soft", True), ("A", "grow", True), ("B", "grow", True)]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,1"

    gpus = [Gpu(3, "x", 10 << 30, "", used=1 << 30), Gpu(1, "x", 10 << 30, "", used=7 << 30)]
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "tensorflow")
        towers = open_towers(gpus, None)
    assert [(t.memory, t.left) for t in towers] == [(10 << 30, 10 << 30), (10 << 30, 3 << 30)]
    assert loss_size(compose(Settings), towers).logits == max_logits_for(3 << 30) < max_logits_for(10 << 30)
    assert min_memory(towers) == 10 << 30

    calls.clear()
    gpus = [Gpu(3, "x", 12 << 30, "", used=2 << 30)]
    towers = open_towers(gpus, 2)
    assert {(t.memory, t.left and t.left >> 20) for t in towers} == {(6 << 30, 4608)}
    assert [(t.name, t.device, t.virtual) for t in towers] == [("gpu_3_0", "/GPU:0", True), ("gpu_3_1", "/GPU:1", True)]
    assert calls == [("soft", True), ("A", [4608, 4608])]


def test_gpus_and_mig_instances_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second GPU can have three instances and has one."""

    def instance_count(gpu: int) -> int:
        if gpu == 0:
            raise RuntimeError("not supported")
        return 3

    def instance(gpu: int, index: int) -> int:
        if index != 2:
            raise RuntimeError("not found")
        return 10 * gpu + index

    Nvml(
        monkeypatch,
        nvmlDeviceGetMaxMigDeviceCount=instance_count,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetUUID=lambda i: f"GPU-{i}" if i < 10 else "MIG-x",
    )
    part = Gpu(1, "NVIDIA 12", 12 << 30, "MIG-x")
    assert find_gpus() == [
        Gpu(0, "NVIDIA 0", 0, "GPU-0", capability=(8, 0)),
        Gpu(1, "NVIDIA 1", 1 << 30, "GPU-1", instances=(part,), capability=(8, 1)),
    ]


def test_gpu_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(monkeypatch, 3)
    assert silent_gpus() == {}
    nvml.lost = {1}
    assert [gpu.number for gpu in find_gpus()] == [0, 2]
    assert silent_gpus() == {1: "GPU is lost"}


def test_gpus_that_other_processes_use_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = [0, 1 << 30, 3 << 30, 24 << 30]
    nvml = Nvml(monkeypatch, 4)
    nvml.nvmlDeviceGetMemoryInfo = lambda i: SimpleNamespace(total=24 << 30, used=used[i])
    gpus = find_gpus()
    warn_about_used_memory(gpus[:3])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "Warning: GPU 2: other processes use 3.0 of its 24.0 GiB (see `nvidia-smi`); end them, or select other GPUs "
        "with --gpus"
    )
    with pytest.raises(UserError) as raised:
        warn_about_used_memory(gpus[3:])
    assert str(raised.value) == (
        "GPU 3: other processes use 24.0 of its 24.0 GiB (see `nvidia-smi`); end them, or select GPUs with enough "
        "memory: --gpus 0,1,2"
    )


def test_error_of_the_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(monkeypatch)
    assert nvml_error() == ""

    def mismatch() -> None:
        raise RuntimeError("Driver/library version mismatch")

    def no_driver() -> None:
        raise nvml.NVMLError_LibraryNotFound

    for failure, text in (
        (mismatch, " NVIDIA's driver reports: Driver/library version mismatch."),
        (no_driver, ""),
    ):
        nvml.nvmlInit = failure
        assert find_gpus() == []
        assert silent_gpus() == {}
        assert nvml_error() == text


@hypothesis.settings(max_examples=40)
@given(
    size=st.integers(1, 40),
    by_tokens=st.booleans(),
    accumulate=st.integers(1, 3),
    towers=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_no_piece_of_a_share_has_more_tokens(
    size: int, by_tokens: bool, accumulate: int, towers: int, seed: int
) -> None:
    """Random pairs have at most 8 tokens and the end symbol."""
    of_batch = {"batch_tokens": 9 * size, "batch_size": 1} if by_tokens else {"batch_size": size}
    chosen = compose(Settings, max_length=9, accumulate=accumulate, **of_batch)
    tokens = 9 * size * accumulate if by_tokens else None
    batches = Batches([random_pairs(100, seed)], size * accumulate, seed, tokens)
    most = max_tokens(chosen, towers)
    steps = batches.from_step(0, towers)
    for _ in range(batches.steps_per_epoch):
        for share in next(steps).shares:
            for piece in split(share, accumulate):
                lengths = (piece.target_in != 0).sum(axis=1)
                assert len(compute_packing(lengths, piece.target_in.shape[1]).to_packed) <= most


@given(
    memory=st.one_of(st.none(), st.integers(0, 1 << 42)),
    vocabulary=st.integers(10, 1 << 22),
    units=st.integers(1, 1 << 14),
)
def test_no_call_has_more_logits_than_32_bits_can_index(memory: int | None, vocabulary: int, units: int) -> None:
    """The vocabulary has all columns of the projection; chunks with n-grams or validation have `logits` at most."""
    size = LossSize(max_logits_for(memory))
    tokens = size.chunk_tokens(vocabulary, units)
    assert size.logits < 1 << 31
    assert 1 <= tokens * vocabulary < 1 << 31
    assert tokens >= min(units, size.logits // vocabulary)


def test_least_memory_that_is_left_sets_the_logits() -> None:
    chosen = compose(Settings)
    towers = [Tower(f"gpu_{i}", f"/GPU:{i}", "", 80 << 30, left=left << 30) for i, left in enumerate((80, 16))]
    assert LOGITS < loss_size(chosen, towers).logits < loss_size(chosen, towers[:1]).logits
    assert loss_size(chosen, [Tower("cpu_0", "/CPU:0", "", None)]).logits == LOGITS
    assert loss_size(chosen, towers, machines=4).max_tokens < loss_size(chosen, towers).max_tokens  # type: ignore[operator]
