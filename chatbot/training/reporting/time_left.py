"""The time until a run ends, from the speed of its last hour."""

import collections
import datetime
import time
from collections.abc import Callable
from typing import NamedTuple

from chatbot.training.checkpoints.progress import Progress
from chatbot.training.schedule import LEAST_STEPS, Calendar

# Seconds between two remembered times, and how long they are remembered.
BETWEEN, REMEMBERED = 10.0, 3600.0
MINUTE, HOUR, DAY = 60, 3600, 86400


class StepsLeft(NamedTuple):
    """The number of steps until a run ends, or a bound of it."""

    steps: int
    bound: str = ""  # "at least" or "at most" if validation may end the run at another step


class Speed:
    """The seconds that a step takes, with its share of validations and checkpoints, over the last hour."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._steps = now, 0
        self._times: collections.deque[tuple[float, int]] = collections.deque()  # times, and the steps until then

    def advance(self) -> None:
        """Count a step."""
        self._steps += 1

    def remember(self) -> None:
        """Remember the present time. The first call comes after the step that has traced the graphs."""
        now = self._now()
        if not self._times or now - self._times[-1][0] >= BETWEEN:
            self._times.append((now, self._steps))
        while len(self._times) > 1 and now - self._times[1][0] >= REMEMBERED:
            self._times.popleft()

    def seconds_per_step(self) -> float | None:
        """Return the mean time of a step, None before two steps."""
        if not self._times or self._steps == self._times[0][1]:
            return None
        began, before = self._times[0]
        return (self._now() - began) / (self._steps - before)


def steps_left(progress: Progress, calendar: Calendar, patience: int | None) -> StepsLeft:
    """Return the steps until the run ends.

    patience: the number of validations without a new best that end it; None if validation does not. How many bests are
    still to come is not known, so that the earliest end is all that can be said where there is no last step.
    """
    last, every = calendar.last_step, calendar.validate_every
    if patience is None or every is None:
        assert last is not None, "without validation there is a last step"
        return StepsLeft(max(0, last - progress.step))
    validations = max(1, patience - progress.without_best)
    earliest = max((progress.step // every + validations) * every, LEAST_STEPS)
    if last is None:
        return StepsLeft(earliest - progress.step, "at least")
    return StepsLeft(max(0, last - progress.step), "at most" if earliest < last else "")


def time_left(left: StepsLeft, seconds_per_step: float | None, limit: float | None, now: datetime.datetime) -> str:
    """Return the time left and the end of the run, such as "at most 3 h 20 min left, Mon 14:05"; "" if not known.

    limit: the seconds that --time-limit leaves.
    """
    if not left.steps or (seconds_per_step is None and limit is None):
        return ""
    known = seconds_per_step is not None
    seconds, bound = left.steps * (seconds_per_step or 0.0), left.bound
    if limit is not None and (not known or limit <= seconds):
        # Nothing else ends the run before its limit if the earliest other end is later.
        seconds, bound = limit, "" if known and bound != "at most" else "at most"
    return f"{bound} {duration(seconds)} left, {clock(seconds, now)}".lstrip()


def duration(seconds: float) -> str:
    """Return a time in its two largest units: "45 s", "12 min", "3 h 20 min", "2 d 4 h"."""
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds // MINUTE:.0f} min"
    if seconds < DAY:
        return f"{seconds // HOUR:.0f} h {seconds % HOUR // MINUTE:.0f} min"
    return f"{seconds // DAY:,.0f} d {seconds % DAY // HOUR:.0f} h"


def clock(seconds: float, now: datetime.datetime) -> str:
    """Return the time in so many seconds: "14:05" today, "Mon 14:05" within six days, else "2026-12-02 14:05"."""
    try:
        end = now + datetime.timedelta(seconds=seconds)
    except OverflowError:
        return "never"
    if end.date() == now.date():
        return f"{end:%H:%M}"
    return f"{end:%a %H:%M}" if (end.date() - now.date()).days < 7 else f"{end:%Y-%m-%d %H:%M}"
