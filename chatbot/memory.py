"""Functions that configure and measure the memory of this process."""

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

# Parameters of the function mallopt(3) in glibc. The values are in bytes.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3
MALLOPT_VALUES = {
    M_MMAP_THRESHOLD: 32 << 20,  # maximum that glibc accepts
    M_TRIM_THRESHOLD: (1 << 31) - 1,
    M_TOP_PAD: 256 << 20,
}


def keep_freed_memory() -> bool:
    """Make the allocator of glibc keep freed memory, and return whether this succeeded. Call this before threads start.

    By default, glibc returns the freed memory of large tensors to the kernel. Each training step must then request it
    again, which takes a seventh of the time of a step (docs/experiments.md). Nothing is changed if the user sets a
    MALLOC_* or GLIBC_TUNABLES environment variable.
    """
    set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if set_by_user or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # the C library is not glibc
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in MALLOPT_VALUES.items())


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes, or None on systems without /proc, such as macOS.

    getrusage(2) is not used, because it can report the peak memory of the parent process.
    """
    try:
        status = Path("/proc/self/status").read_bytes()  # the program name can have any encoding
    except OSError:
        return None
    match = re.search(rb"VmHWM:\s+(\d+) kB", status)
    return None if match is None else int(match[1]) * 1024


def let_gpu_memory_grow() -> None:
    """Make TensorFlow allocate GPU memory on demand, so other processes can use the rest."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # too late: TensorFlow is already initialised
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)
