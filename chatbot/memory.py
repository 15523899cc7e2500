"""Settings of the C library's allocator for training, which needs the memory it frees again at the next step."""

import ctypes
import os
import sys

# Parameters of glibc's mallopt(3).
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
# Bytes: the largest MMAP_THRESHOLD that glibc accepts, the largest TRIM_THRESHOLD (never trim), and a TOP_PAD.
LARGEST_THRESHOLD, NEVER, PAD = 32 << 20, (1 << 31) - 1, 256 << 20


def keep_freed_memory() -> bool:
    """Let freed memory stay in the process. Call it before threads start. Returns whether it was done.

    By default each large tensor on the CPU gets new memory from the kernel, which zeroes it page by page: a seventh of
    a training step (BENCHMARKS.md). Nothing is done without glibc, or where the user has set the allocator in a
    MALLOC_ or GLIBC_TUNABLES variable.
    """
    user_set = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if user_set or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    parameters = ((MMAP_THRESHOLD, LARGEST_THRESHOLD), (TRIM_THRESHOLD, NEVER), (TOP_PAD, PAD))
    return all(mallopt(parameter, value) == 1 for parameter, value in parameters)
