"""The reason why TensorFlow cannot use a GPU, with stubs of NVML and of the loader of libraries. No GPU was used."""

import ctypes
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from chatbot.training.devices import requirements as module
from chatbot.training.devices.gpus import Gpu
from chatbot.training.devices.requirements import LIBRARIES, why_unusable
from tests.training.devices.nvml import Nvml

BUILD: dict[str, Any] = {
    "is_cuda_build": True,
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
}
GPU = Gpu(1, "NVIDIA Test", 24 << 30, "GPU-1abc", capability=(6, 0))


class Loader:
    """Stub of the dynamic loader: every library opens, but for those in `failures`, which have an error each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures: dict[str, str] = {}
        self.on_system: dict[str, str] = {}
        monkeypatch.setattr(ctypes, "CDLL", self.load)
        monkeypatch.setattr(ctypes.util, "find_library", self.on_system.get)

    def load(self, name: str) -> None:
        error = self.failures.get(Path(name).name)
        if error is not None:
            raise OSError(error)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    """A machine with all libraries."""
    Nvml(monkeypatch)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    return Loader(monkeypatch)


def test_usable_gpus_have_no_reason(loader: Loader) -> None:
    assert why_unusable([GPU], 1, BUILD) is None
    assert why_unusable([dataclasses.replace(GPU, capability=None)], 1, BUILD) is None
    assert why_unusable([GPU], 0, BUILD) is None  # a reason that is not known


def test_gpu_older_than_tensorflows_kernels_is_named(loader: Loader) -> None:
    """TensorFlow lists it, but does not compute on it."""
    assert why_unusable([GPU, dataclasses.replace(GPU, number=2, capability=(5, 2))], 2, BUILD) == (
        "GPU 2 (NVIDIA Test) has compute capability 5.2, and this TensorFlow needs 6.0 or higher; select other GPUs "
        "with --gpus"
    )


def test_driver_too_old_for_cuda_is_named(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where libraries are missing: they would not help. Drivers of CUDA 12.0 suffice for 12.5."""
    loader.failures = dict.fromkeys(LIBRARIES, "missing")
    Nvml(monkeypatch, nvmlSystemGetDriverVersion=lambda: "470.82.01", nvmlSystemGetCudaDriverVersion=lambda: 11040)
    assert why_unusable([GPU], 0, BUILD) == (
        "NVIDIA's driver 470.82.01 supports CUDA up to 11.4, and this TensorFlow needs CUDA 12; update it to 525 or "
        "newer"
    )
    loader.failures = {}
    Nvml(monkeypatch, nvmlSystemGetDriverVersion=lambda: "525.60.13", nvmlSystemGetCudaDriverVersion=lambda: 12000)
    assert why_unusable([GPU], 0, BUILD) is None


@pytest.mark.parametrize(
    ("error", "on_system", "reason"),
    [
        ("libcudnn.so.9: cannot open shared object file: No such file or directory", None, "not found"),
        ("libcudnn.so.9: cannot open shared object file", "libcudnn.so.8", "found libcudnn.so.8 instead"),
        ("libnvJitLink.so.12: cannot open shared object file", None, "libnvJitLink.so.12: cannot open shared object"),
    ],
)
def test_library_that_cannot_be_opened_is_named(loader: Loader, error: str, on_system: str | None, reason: str) -> None:
    loader.failures["libcudnn.so.9"] = error
    if on_system:
        loader.on_system["cudnn"] = on_system
    message = why_unusable([GPU], 0, BUILD)
    assert message is not None
    assert message.startswith(f"TensorFlow cannot open the CUDA library libcudnn.so.9 ({reason}")
    assert message.endswith("install it with `make gpu`")
    assert "\n" not in message


def test_libraries_of_packages_are_found(loader: Loader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In site-packages/nvidia, where the system's loader does not search."""
    folder = tmp_path / "cudnn/lib"
    folder.mkdir(parents=True)
    (folder / "libcudnn.so.9").touch()
    (folder.parent.parent / "other/lib").mkdir(parents=True)
    opened: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", opened.append)
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: type("Spec", (), {"submodule_search_locations": [tmp_path]})
    )
    assert why_unusable([GPU], 0, BUILD) is None
    assert str(folder / "libcudnn.so.9") in opened
    assert module.other_versions("libcudnn.so.8") == ["libcudnn.so.9"]


def test_tensorflow_without_cuda_is_named() -> None:
    reason = why_unusable([GPU], 0, {"is_cuda_build": False})
    assert reason == "this TensorFlow was built without CUDA; install the one of `make gpu`"


def test_libraries_are_those_of_the_installed_tensorflow() -> None:
    """Its header has the versions of the libraries that it opens."""
    headers = list(Path(tf.sysconfig.get_include()).glob("third_party/gpus/cuda/cuda_config.h"))
    if not headers or not tf.sysconfig.get_build_info()["is_cuda_build"]:
        pytest.skip("this TensorFlow was built without CUDA")
    versions = dict(re.findall(r'#define TF_(\w+)_VERSION "(\d+)', headers[0].read_text(encoding="utf-8")))
    for library in LIBRARIES:
        name, version = library.removeprefix("lib").split(".so.")
        assert versions[name.upper().removesuffix("LT")] == version, library
    assert module.least_capability(tf.sysconfig.get_build_info()) == (6, 0)
