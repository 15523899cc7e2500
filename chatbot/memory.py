"""The C library's allocator, told that what training frees it needs again at the next step."""

import ctypes
import os
import sys

# Parameters of glibc's mallopt(3), and 32 MiB, the largest threshold it takes.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
LARGEST, KEPT, AT_ONCE = 32 << 20, (1 << 31) - 1, 256 << 20


def keep_freed_memory() -> bool:
    """Let freed memory stay in the process; call it before threads are started. Returns whether that was done.

    By default each large tensor on the CPU is memory fresh from the kernel, which fills it with zeros page by page:
    a seventh of a training step (BENCHMARKS.md). Nothing is done without glibc, or where a MALLOC_ or
    GLIBC_TUNABLES variable says that somebody chose for themselves.
    """
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if chosen or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    told = ((MMAP_THRESHOLD, LARGEST), (TRIM_THRESHOLD, KEPT), (TOP_PAD, AT_ONCE))
    return all(mallopt(parameter, value) == 1 for parameter, value in told)
