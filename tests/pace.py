"""CPU times in units of a fixed piece of work that is measured beside them, so tests do not depend on the machine."""

import gc
import json
import re
import time
from collections.abc import Callable

_LINES = [f"{i} 今天天气不错, it is a fine day {i * 7919 % 10007}" for i in range(2000)]


def _fixed_work() -> None:
    for _ in range(2):
        text = json.dumps(json.loads(json.dumps(_LINES)))
        assert len(re.findall(r"\b\w+day\b|\d+(?=\W)", text)) > len(_LINES)


def unit(clock: Callable[[], float] = time.process_time) -> float:
    """Return the time of the fixed piece of work in seconds, the minimum of five; about 10 ms on a fast core."""
    return min(_seconds(_fixed_work, clock) for _ in range(5))


def cost(work: Callable[[], object], repeats: int = 1) -> float:
    """Return the minimum time of some work, in units of the fixed piece."""
    return min(_seconds(work, time.process_time) for _ in range(repeats)) / unit()


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    is_enabled = gc.isenabled()
    gc.disable()  # a collection takes seconds in a process with many tests
    begin = clock()
    try:
        work()
        return clock() - begin
    finally:
        if is_enabled:
            gc.enable()
