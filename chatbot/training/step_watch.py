"""A line about a step that makes no progress, and the end of a process whose GPU has disappeared.

A collective between GPUs that hangs would give no other sign.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from chatbot.config.training import Settings
from chatbot.errors import DeviceError, end_process
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.team import Team
from chatbot.training.variable_update.choose import chosen_update

# Seconds without progress after which the line is due.
LIMIT = 60
NCCL = "A collective may hang: NCCL_DEBUG=INFO shows where, NCCL_P2P_DISABLE=1"


class StepWatch:
    """Says once in a run that a step has made no progress for LIMIT seconds, and ends the process if a GPU is lost.

    Only the time within a step counts, without that in which its graphs are traced.

    advice: the end of the line; "" for no line. is_tracing: whether a graph of the step is being traced. lost_device:
    asks the driver for lost GPUs, after each LIMIT seconds; the others may wait for them for ever.
    """

    def __init__(
        self, advice: str, is_tracing: Callable[[], bool], lost_device: Callable[[], DeviceError | None]
    ) -> None:
        self._advice, self._is_tracing, self._lost_device = advice, is_tracing, lost_device
        self._step: int | None = None  # None: not within a step
        self._counted: int | None = None  # the step that `_seconds` belong to
        self._seconds = 0
        self._is_said = False

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Watch the block, a part of step `number`, counted from 1."""
        self._step = number
        try:
            yield
        finally:
            self._step = None

    def tick(self) -> str:
        """Return the line if it is due now, else "".

        A thread other than that of the steps calls this every second. The calls are counted, so that the time in which
        the process was stopped does not count.
        """
        step = self._step
        if step is None or step != self._counted or self._is_tracing():
            self._counted, self._seconds = step, 0
            return ""
        self._seconds += 1
        if self._seconds % LIMIT:
            return ""
        # A driver that has lost a GPU may not answer either, and this thread must.
        threading.Thread(target=self._end_if_device_is_lost, daemon=True).start()
        if self._is_said or not self._advice:
            return ""
        self._is_said = True
        return f"Step {step:,} has made no progress for {LIMIT} seconds. {self._advice} (docs/troubleshooting.md)."

    def _end_if_device_is_lost(self) -> None:
        error = self._lost_device()
        if error is not None:
            print(file=sys.stderr)  # ends the line of the progress bar
            end_process(error)


def advice_of(settings: Settings, towers: Sequence[Tower], team: Team) -> str:
    """Return what a step without progress may mean, and what to do. towers: of this machine."""
    if not team.alone:
        return f"{NCCL} may help; or another machine is slow" if _on_gpus(towers) else "Another machine may be slow"
    if _on_gpus(towers) and chosen_update(settings, towers).parallel.all_reduce == "nccl":
        return f"{NCCL} or --all-reduce hierarchical may help"
    return "It may only be slow, or a device hangs"


def _on_gpus(towers: Sequence[Tower]) -> bool:
    return all("GPU" in tower.device for tower in towers)
