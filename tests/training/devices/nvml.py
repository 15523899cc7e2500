"""A stub of NVML, NVIDIA's management library."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


class Nvml(SimpleNamespace):
    """The functions that the project calls, for these GPUs. `lost` are those that do not answer."""

    NVMLError = RuntimeError

    class NVMLError_LibraryNotFound(RuntimeError):  # noqa: N801, N818
        """No driver is installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 2, **functions: Callable[..., Any]) -> None:
        self.lost: set[int] = set()
        super().__init__(
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: count,
            nvmlDeviceGetHandleByIndex=lambda i: i,
            nvmlDeviceGetName=lambda i: f"NVIDIA {i}",
            nvmlDeviceGetMemoryInfo=self._memory,
            nvmlDeviceGetUUID=lambda i: f"GPU-{i}",
            nvmlDeviceGetCudaComputeCapability=lambda i: (8, i),
            nvmlDeviceGetMaxMigDeviceCount=self._fail,
        )
        self.__dict__.update(functions)
        monkeypatch.setattr("chatbot.training.devices.gpus.pynvml", self)

    def _memory(self, number: int) -> Any:
        if number in self.lost:
            raise RuntimeError("GPU is lost")
        return SimpleNamespace(total=number << 30, used=0)

    def _fail(self, *_: object) -> Any:
        raise RuntimeError("Not Supported")
