"""Calls of a function in a new process, on a real GPU where there is one, and otherwise on stand-in GPUs."""

import functools
import importlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatbot.quiet import import_tensorflow
from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import Tower, choose_gpus, open_towers
from tests.gpu import standin

ROOT = Path(__file__).parents[2]
# CUDA_VISIBLE_DEVICES before tests/conftest.py hid all GPUs; ALL if it was not set.
VISIBLE_GPUS, ALL = "VISIBLE_GPUS", "all"
MEGABYTE = 1 << 20
STANDIN_MEMORY = 8192  # megabytes; only what is used is taken from the host


def first_gpu() -> str | None:
    """Return the entry of CUDA_VISIBLE_DEVICES of the first GPU that the tests may use; None without one."""
    gpus = find_gpus()
    visible = os.environ.get(VISIBLE_GPUS, ALL)
    if not gpus or visible == ALL:
        return gpus[0].id if gpus else None
    first = visible.split(",")[0].strip()
    return None if first in ("", "-1") else first


def environment() -> dict[str, str]:
    """Return the environment of a process that sees one GPU: the first real one, or a stand-in."""
    visible = first_gpu()
    if visible is None:
        return {**standin.environment(memory=STANDIN_MEMORY), "PYTHONPATH": str(ROOT)}
    order = "PCI_BUS_ID"  # that of NVML, and of nvidia-smi
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "CUDA_DEVICE_ORDER": order,
        "CUDA_VISIBLE_DEVICES": visible,
    }


@functools.cache
def why_no_gpu() -> str | None:
    """Return why the tests cannot run; None if they can. TensorFlow is asked, in a process, only if there is a GPU."""
    if first_gpu() is None:
        return standin.missing()
    completed = _run("-c", "from tests.gpu.process import open_gpu; open_gpu()", environment=environment())
    if completed.returncode:
        return f"TensorFlow cannot use the GPU: {completed.stderr.strip().splitlines()[-1]}"
    return None


def on_gpu(function: Callable[..., Any], folder: Path, *megabytes: int) -> Any:
    """Return the result of a module's function, called with the GPU's tower in a new process.

    folder: for the file with the result. megabytes: the memory of each logical device that the GPU is split into; the
    function gets the tower of each. Float32 products are not TF32.
    """
    return _result_of(function, folder, environment(), "towers", *map(str, megabytes))


def on_standins(function: Callable[[], Any], folder: Path, gpus: int = 1, **variables: object) -> Any:
    """Return the result of a module's function, called in a new process with stand-in GPUs.

    variables: those of `standin.environment`. The test is skipped if there can be none.
    """
    if reason := standin.missing():
        pytest.skip(reason)
    return _result_of(function, folder, {**standin.environment(gpus, **variables), "PYTHONPATH": str(ROOT)}, "")


def _result_of(function: Callable[..., Any], folder: Path, environment: dict[str, str], *arguments: str) -> Any:
    file = folder / f"{function.__name__}.pickle"
    named = __name__, function.__module__, function.__name__, str(file)
    completed = _run("-m", *named, *arguments, environment=environment, folder=folder)
    assert completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}"
    return pickle.loads(file.read_bytes())


def _run(*arguments: str, environment: dict[str, str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, by default the current one; never in the checkout, which has attempts of its user."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )


def open_gpu(*megabytes: int) -> list[Tower]:
    """Return the GPU's tower, or that of each logical device with this memory.

    Raises UserError if TensorFlow cannot use the GPU.
    """
    (gpu,) = choose_gpus()
    if not megabytes:
        return open_towers([gpu], None)
    import_tensorflow()
    import tensorflow as tf

    limits = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in megabytes]
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("GPU")[0], limits)
    return [
        Tower(f"gpu_{i}", f"/GPU:{i}", gpu.name, limit * MEGABYTE, None, True, limit * MEGABYTE)
        for i, limit in enumerate(megabytes)
    ]


def main(module: str, name: str, file: str, arguments: str, *megabytes: str) -> None:
    """Call a function, and store its result in a file. arguments: "towers" for those of the GPU, "" for none."""
    towers = open_gpu(*map(int, megabytes)) if arguments else []
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.set_soft_device_placement(False)  # an operation that cannot run on its GPU is an error
    function = getattr(importlib.import_module(module), name)
    Path(file).write_bytes(pickle.dumps(function(*towers)))


if __name__ == "__main__":
    main(*sys.argv[1:])
