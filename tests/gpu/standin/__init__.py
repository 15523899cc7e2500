"""GPUs for machines that have none: a device of TensorFlow's type "GPU" whose memory is the host's.

The C++ files are built once for each version of TensorFlow, and kept in a folder of the user's cache. TensorFlow loads
the library because an environment variable says so, in the processes of tests only. What can be ordered by other
variables, such as faults, is in `gpu.h` and `driver/nvml.cc`.
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import filelock

SOURCES = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "chatbot-standin"
DEVICE, DRIVER = "libstandin.so", "libnvidia-ml.so.1"
NO_COMPILER = "needs a C++ compiler for the stand-in GPU: install one, such as the package g++"
NO_HEADERS = "needs TensorFlow's C++ headers for the stand-in GPU: reinstall tensorflow, since its folder include lacks"
HEADER = "tensorflow/c/experimental/stream_executor/stream_executor.h"
LIBRARY = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"  # read by TensorFlow when it is imported


class Counts(NamedTuple):
    """What a GPU has done since its process began."""

    kernels: int
    host_to_device: int
    host_to_device_bytes: int
    device_to_host: int
    device_to_host_bytes: int
    device_to_device: int
    device_to_device_bytes: int
    host_waits: int

    def since(self, earlier: "Counts") -> "Counts":
        """Return the difference from earlier counts."""
        return Counts(*(now - then for now, then in zip(self, earlier, strict=True)))


def compiler() -> str | None:
    """Return the path of the C++ compiler; None without one."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "g++", "clang++"))), None)


def missing() -> str | None:
    """Return what a build needs and this machine lacks, in one line; None if it has everything."""
    if compiler() is None:
        return NO_COMPILER
    tensorflow = importlib.util.find_spec("tensorflow")  # without importing it
    include = Path(tensorflow.origin or "").parent / "include" if tensorflow else Path()
    return None if (include / HEADER).exists() else f"{NO_HEADERS} {HEADER}"


@functools.cache
def build() -> Path:
    """Return the folder with both libraries, which the first call builds; other processes wait.

    Raises RuntimeError with what is missing, or with the words of a compiler that fails.
    """
    if reason := missing():
        raise RuntimeError(reason)
    flags = _tensorflow_flags()
    files = sorted((*SOURCES.glob("*.cc"), *SOURCES.glob("*.h"), *SOURCES.glob("driver/*.cc")))
    text = "\n".join((*flags, sys.version, *(f"{file.name}\n{file.read_text()}" for file in files)))
    folder = CACHE / hashlib.sha256(text.encode()).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_suffix(".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _compile(unfinished, flags)
            unfinished.rename(folder)
    return folder


def _tensorflow_flags() -> list[str]:
    """Return the flags for TensorFlow's headers and library, without importing TensorFlow here."""
    program = "import tensorflow as tf; print(*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags())"
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return completed.stdout.split()


def _compile(folder: Path, flags: Sequence[str]) -> None:
    # The headers of TensorFlow alone give hundreds of warnings.
    common = ["-std=c++17", "-O1", "-w", "-fPIC"]
    objects = {source: folder / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.cc"))}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(lambda item: _run(*common, "-c", item[0], "-o", item[1], *flags), objects.items()))
    _run("-shared", *objects.values(), "-o", folder / DEVICE, *flags)
    _run(*common, "-shared", SOURCES / "driver/nvml.cc", "-o", folder / DRIVER)
    for file in objects.values():
        file.unlink()


def _run(*arguments: str | Path) -> None:
    command = [compiler() or "g++", *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{completed.stderr}")


def environment(gpus: int = 1, **variables: object) -> dict[str, str]:
    """Return the environment of a process that sees this many stand-in GPUs.

    variables: those of `gpu.h` and `driver/nvml.cc` without their prefix, such as faults="lost number=7".
    """
    folder = build()
    changes = {
        LIBRARY: str(folder / DEVICE),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH")))),
        "STANDIN_GPUS": str(gpus),
        **{f"STANDIN_{name.upper()}": str(value) for name, value in variables.items()},
    }
    return {name: value for name, value in {**os.environ, **changes}.items() if name != "CUDA_VISIBLE_DEVICES"}


def counts(ordinal: int = 0) -> Counts:
    """Return the counts of a visible GPU of this process."""
    values = (ctypes.c_int64 * len(Counts._fields))()
    ctypes.CDLL(os.environ[LIBRARY]).StandinCounts(ordinal, values)
    return Counts(*values)
