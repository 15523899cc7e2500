"""How this process takes memory: by the C library's allocator, and that of GPUs by TensorFlow."""

import contextlib
import ctypes
import os
import re
import sys
from pathlib import Path

# The parameters of glibc's mallopt(3), and their values in bytes.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3
VALUES = {
    M_MMAP_THRESHOLD: 32 << 20,  # the largest that glibc accepts
    M_TRIM_THRESHOLD: (1 << 31) - 1,
    M_TOP_PAD: 256 << 20,
}


def keep_freed_memory() -> bool:
    """Keep freed memory in the process; call it before threads start. Returns whether the settings were changed.

    Each training step allocates the memory that the previous one freed. By default, glibc requests that of each large
    tensor from the kernel, which zeroes it page by page. This takes a seventh of a step (docs/experiments.md). Nothing
    changes without glibc, or if the environment has a MALLOC_ or GLIBC_TUNABLES variable.
    """
    set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if set_by_user or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in VALUES.items())


def peak_memory() -> int | None:
    """Return the most bytes that this process has had in memory; None where the system does not say, as outside Linux.

    Not by getrusage(2), which counts the process that started this one, too.
    """
    try:
        status = Path("/proc/self/status").read_bytes()  # the name of a program may be in any encoding
    except OSError:
        return None
    found = re.search(rb"VmHWM:\s+(\d+) kB", status)
    return None if found is None else int(found[1]) * 1024


def let_gpu_memory_grow() -> None:
    """Allocate GPU memory as needed, so that other processes can use the rest."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is already initialised, and the setting is fixed
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)
