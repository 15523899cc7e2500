"""The peak memory of a process."""

from pathlib import Path


def peak_gb() -> float:
    """Return the peak resident memory of this process in GB.

    getrusage would also count the peak of the process that spawned this one, since Linux keeps it across execve.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e9
