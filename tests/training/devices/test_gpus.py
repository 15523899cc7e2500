"""GPUs and their driver, through a stub of NVML."""

from types import SimpleNamespace

import pytest

from chatbot.errors import UserError
from chatbot.training.devices.gpus import Gpu, find_gpus, nvml_error, silent_gpus, warn_of_used_memory
from tests.training.devices.nvml import Nvml


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
    warn_of_used_memory(gpus[:3])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "Warning: GPU 2 has 3.0 of 24.0 GiB in use by other processes, which `nvidia-smi` shows; end them, or select "
        "others with --gpus"
    )
    with pytest.raises(UserError) as raised:
        warn_of_used_memory(gpus[3:])
    assert str(raised.value) == (
        "GPU 3 has 24.0 of 24.0 GiB in use by other processes, which `nvidia-smi` shows; end them, or select GPUs with "
        "enough memory: --gpus 0,1,2"
    )


def test_driver_that_cannot_be_opened_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
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
