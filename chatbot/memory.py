"""Settings of the C library's allocator: training allocates at each step what it freed at the last one."""

import ctypes
import os
import sys

# The numbers of parameters in glibc's mallopt(3), and the value in bytes of each.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
VALUES = {
    M_MMAP_THRESHOLD: 32 << 20,  # the largest that glibc accepts
    M_TRIM_THRESHOLD: (1 << 31) - 1,
    M_TOP_PAD: 256 << 20,
}


def keep_freed_memory() -> bool:
    """Keep freed memory in the process; call it before threads start. Returns whether the settings were changed.

    By default, each large tensor on the CPU is new memory from the kernel, which fills it with zeros page by page:
    a seventh of a training step (BENCHMARKS.md). Nothing changes without glibc, or if the user has set a MALLOC_ or
    GLIBC_TUNABLES variable.
    """
    set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if set_by_user or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in VALUES.items())
