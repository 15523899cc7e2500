"""The loss, the throughput and the time of each tower, as TensorBoard runs of their own, for any number of towers."""

import math
import os
import socket
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from chatbot.training.reporting.event_files import EVENTS, append_values, scalar

LOSS, THROUGHPUT, SECONDS = "loss", "throughput/tower_target_tokens_per_s", "throughput/tower_seconds"

# A point of 64 towers takes 3 ms, below 1% of the time between two logged steps; that of 1,024 takes 45 ms.
MOST_TOWERS_EACH_STEP = 64
SECONDS_BETWEEN_POINTS = 60.0


class TowerCurves:
    """Writes the tags LOSS, THROUGHPUT and SECONDS of each tower's TensorBoard run.

    Up to MOST_TOWERS_EACH_STEP towers have a point at every logged step. With more, each has a point a minute, the mean
    of its values since the last one. A file is open only while it is written: many systems allow a process no more than
    1,024 open files.
    """

    def __init__(self, folder: Path, towers: Sequence[str], step: int) -> None:
        """folder: of the attempt's TensorBoard runs. towers: the name of each run. step: that of the checkpoint."""
        name = f"{EVENTS}{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._files = [folder / tower / name for tower in towers]
        self._points: list[list[tuple[float, float]]] = [[] for _ in towers]  # since the last point: loss, throughput
        self._first = self._step = step
        self._written = -math.inf  # the time of the last point

    def add(
        self,
        losses: Sequence[float | None],
        target_tokens_per_s: Sequence[float],
        seconds: Sequence[float],
        step: int,
    ) -> None:
        """Add the values of a logged step, in the order of the towers; a loss is None for a tower without tokens.

        seconds: the times of the towers if they were measured.
        """
        for file, time_of_tower in zip(self._files, seconds, strict=False):
            append_values(file, [scalar(SECONDS, time_of_tower)], step, self._first)
        for points, loss, rate in zip(self._points, losses, target_tokens_per_s, strict=False):
            if loss is not None:
                points.append((loss, rate))
        self._step = step
        few = len(self._files) <= MOST_TOWERS_EACH_STEP
        if few or time.monotonic() - self._written >= SECONDS_BETWEEN_POINTS:
            self.flush()

    def flush(self) -> None:
        """Write a point for each tower that has values since its last one."""
        for file, points in zip(self._files, self._points, strict=True):
            if points:
                loss, rate = map(statistics.fmean, zip(*points, strict=True))
                append_values(file, [scalar(LOSS, loss), scalar(THROUGHPUT, rate)], self._step, self._first)
                points.clear()
        self._written = time.monotonic()
