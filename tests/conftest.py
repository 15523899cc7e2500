"""Four logical CPU devices for every test, made before anything uses TensorFlow."""

import importlib
import os
from pathlib import Path

import pytest

from chatbot.quiet import import_tensorflow

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import_tensorflow()
config = importlib.import_module("tensorflow").config

CPUS = [f"/CPU:{i}" for i in range(4)]
config.set_logical_device_configuration(
    config.list_physical_devices("CPU")[0], [config.LogicalDeviceConfiguration()] * len(CPUS)
)


@pytest.fixture
def cpus() -> list[str]:
    """The names of the logical devices."""
    return CPUS


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory, where checkpoints/ and tensorboard/ may be made."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
