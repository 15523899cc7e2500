"""The time and the memory of programs and of workers."""

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.processes import Samples, Worker, ask_all, in_turns, memory_gb, output_of, peak_gb, python, run
from chatbot.errors import UserError

MEGABYTE = 1_000_000


def holding(megabytes: int) -> functools.partial[tuple[int, int, float]]:
    _ = b"x" * megabytes * MEGABYTE  # which is given back
    return functools.partial(lambda text, number: (number, os.getpid(), peak_gb()), b"x" * megabytes * MEGABYTE)


def asleep() -> Callable[[], None]:
    time.sleep(600)
    return lambda: None


def test_memory_is_measured_for_one_process() -> None:
    """getrusage would give a worker's peak as that of this process, which is larger, and only the largest child's."""
    ours, before = b"x" * 600 * MEGABYTE, memory_gb()
    with Worker(holding, 10) as one, Worker(holding, 200) as other:
        small, large = ask_all([one, other], 7)
        assert memory_gb() - before > 0.2
    assert memory_gb() - before < 0.2
    assert small[2] < 0.3 < 0.39 < large[2] < len(ours) / 1e9 < peak_gb()
    assert (small[0], large[0], len({small[1], large[1], os.getpid()})) == (7, 7, 3)


def test_worker_that_ends_is_an_error() -> None:
    with Worker(holding, "many") as failing, pytest.raises(RuntimeError, match="a measured process ended"):
        failing.ask(1)


def test_worker_that_does_not_answer_in_time_is_an_error() -> None:
    with Worker(asleep) as waiting, pytest.raises(RuntimeError, match="stopped after 0 s"):
        waiting.ask(seconds=0.1)


def test_samples_are_taken_at_once_and_until_the_end() -> None:
    with Samples(time.perf_counter, interval=0.01) as samples:
        while len(samples.values) < 4:
            time.sleep(0.01)
    assert samples.values == sorted(samples.values)
    with Samples(time.perf_counter, interval=600) as samples:
        time.sleep(0.1)
    assert len(samples.values) == 1


def test_program_gets_its_input_variables_and_folder_and_is_ended_in_time(tmp_path: Path) -> None:
    script = "import os, sys, chatbot; print(input(), os.environ['A'], os.getcwd()); sys.stdout.flush()\n"
    script += "sys.exit('ERROR: x\\n y')"
    ended = run(python("-c", script), tmp_path, "in\n", environment={**os.environ, "A": "b"})
    assert (ended.code, ended.output.splitlines()) == (1, [f"in b {tmp_path}", "ERROR: x", " y"])
    with pytest.raises(UserError, match=r"-c import os.*: exit code 1: ERROR: x$"):
        output_of(python("-c", script), tmp_path, stdin="in\n", environment={**os.environ, "A": "b"})
    ended = run(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], tmp_path, seconds=0.5)
    assert ended.code is None
    status = Path("/proc", ended.output.strip(), "status")  # of the process that the program has started
    while status.exists() and "State:\tZ" not in status.read_text():
        time.sleep(0.01)
    assert 0.5 <= ended.seconds < 300
    assert run(["printf", r"a\344"], tmp_path).output == "a\ufffd"  # the first byte of a character


def test_systems_are_measured_in_alternation() -> None:
    values = iter([30.0, 1.0, 20.0, 2.0, 1040.0, 3.0])
    rates, failures = in_turns({name: functools.partial(next, values) for name in "ab"}, 3)
    assert failures == {}
    assert json.dumps(rates["a"]) == '{"median": 30.0, "lowest": 20.0, "highest": 1040.0}'
    assert rates["b"]["highest"] == 3
