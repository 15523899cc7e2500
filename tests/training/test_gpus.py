"""GPUs and their driver, through a stub of NVML."""

import pytest

from chatbot.training.gpus import Driver, Gpu, driver, find_gpus, nvml_error, silent_gpus
from tests.training.nvml import Nvml


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
        nvmlDeviceGetGpuInstanceId=lambda handle: 5,
        nvmlDeviceGetComputeInstanceId=lambda handle: 0,
        nvmlDeviceGetUUID=lambda i: f"GPU-{i}" if i < 10 else "MIG-x",
    )
    part = Gpu(1, "NVIDIA 12", 12 << 30, "MIG-x", "MIG-GPU-1/5/0")
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


def test_driver_is_that_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(monkeypatch)
    assert driver() == Driver("550.54.15", (12, 4))
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
