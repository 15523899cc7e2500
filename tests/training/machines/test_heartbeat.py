"""The heartbeat waits for all workers and reports one that is stopped or killed, but not one that is busy."""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatbot.errors import EXIT_LOST
from chatbot.training.machines.cluster import free_addresses
from chatbot.training.machines.heartbeat import MOST_BYTES, Link
from tests.training.machines.running import Command, kill, train, until
from tests.training.machines.test_synchronous import EXACT, worker_flags

# A worker without TensorFlow. Its port is answered by a child process, as TensorFlow's own threads do while Python is
# busy; the child ends or stops with its parent's process group.
WORKER = """
import ctypes, os, socket, sys, time
from chatbot.training.machines import heartbeat as module
from chatbot.training.machines.cluster import Cluster, host_and_port
index, busy, *addresses = sys.argv[1:]
module.REPORT_STEPS = 3.0
heartbeat = module.Heartbeat(Cluster(tuple(addresses), "worker", int(index)), timeout=1.5, limit=60)
heartbeat.wait_for_all()
if os.fork() == 0:
    with socket.create_server(host_and_port(addresses[int(index)]), backlog=100) as server:
        while True:
            server.accept()[0].sendall(b"greeting")
heartbeat.at_step(40 + int(index))
heartbeat.start()
print("started", flush=True)
time.sleep(1.5)
ctypes.PyDLL(None).usleep(int(float(busy) * 1e6))  # holds Python's lock
print("free again", flush=True)
for step in range(100):
    time.sleep(1)
"""


def workers(*busy: float) -> tuple[list[Command], list[str]]:
    """A process for each worker, and their addresses. busy: for so many seconds, no thread of a worker runs."""
    addresses = free_addresses(len(busy))
    commands = [
        Command(sys.executable, "-c", WORKER, str(i), str(seconds), *addresses) for i, seconds in enumerate(busy)
    ]
    for command in commands:
        command.wait_for("started")
    return commands, addresses


ALONE = """
import sys
from chatbot.training.machines.cluster import Cluster
from chatbot.training.machines.heartbeat import Heartbeat
Heartbeat(Cluster(tuple(sys.argv[1:]), "worker", 1), limit=3).wait_for_all()
"""


def test_worker_that_never_starts_is_reported(pairs_folder: Path) -> None:
    addresses = free_addresses(2)
    worker = Command(sys.executable, "-c", ALONE, *addresses)
    assert worker.wait() == EXIT_LOST
    assert f"error: worker 0 ({addresses[0]}) did not start within 3 seconds: start it" in worker.output


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    """Both ends of a connection, whose buffers hold a few kilobytes."""
    ends = socket.socketpair()
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 1)  # the system takes its least value
    sender, receiver = map(Link, ends)
    yield sender, receiver
    sender.close()
    receiver.close()


@pytest.mark.parametrize("size", [10, 3000, 9000, MOST_BYTES - 100])
def test_messages_arrive_whole_when_the_connection_takes_parts_of_them(links: tuple[Link, Link], size: int) -> None:
    sender, receiver = links
    arrived: list[dict[str, Any]] = []
    for number in range(4):
        sender.send(step=number, lost="x" * size)
    for _ in range(4 * MOST_BYTES // 1000):  # as often as the buffers have to be emptied
        arrived += receiver.receive()
        sender.send(last=True)
    steps = [message for message in arrived if "step" in message]
    assert sender.open
    assert receiver.open
    assert [message["step"] for message in steps] == [0, 1, 2, 3][: len(steps)]
    assert all(message["lost"] == "x" * size for message in steps)
    assert len(steps) == (4 if size < MOST_BYTES // 4 else 2)
    assert arrived[-1] == {"last": True}


def test_messages_to_an_end_that_reads_nothing_are_dropped(links: tuple[Link, Link]) -> None:
    sender, receiver = links
    for number in range(MOST_BYTES // 4):
        sender.send(step=number)
    steps: list[int] = []
    while -1 not in steps:
        steps += [message["step"] for message in receiver.receive()]
        sender.send(step=-1)
    kept = steps[: steps.index(-1)]
    assert kept == list(range(len(kept)))
    assert 2000 < len(kept) < 2 * MOST_BYTES // len('{"step": 1}')


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_stopped_or_killed_worker_ends_all_others(pairs_folder: Path, number: int, lost: int) -> None:
    commands, addresses = workers(0, 0, 0)
    time.sleep(2.5)  # so that each has sent its step
    os.killpg(commands[lost].process.pid, number)
    others = [command for i, command in enumerate(commands) if i != lost]
    reason = (
        f"error: worker {lost} ({addresses[lost]}) was lost at step {40 + lost}: it has not answered for 2 seconds. "
        "The last checkpoint is kept: start all machines again with the same commands"
    )
    for command in others:
        assert command.wait(15) == EXIT_LOST
        assert command.output.strip().splitlines()[-1] == reason
    commands[lost].process.kill()


def test_busy_worker_is_not_lost(pairs_folder: Path) -> None:
    """For four times the timeout, neither the chief nor a worker sends anything."""
    commands, _ = workers(6, 0, 6)
    for command in commands:
        command.wait_for("free again")
    time.sleep(3)
    assert [command.process.poll() for command in commands] == [None, None, None]
    assert all("error" not in command.output for command in commands)
    report = "minutes; all machines answer: worker 0 at step 40, worker 1 at step 41, worker 2 at step 42."
    assert [report in command.output for command in commands] == [True, False, False]


@pytest.mark.slow
def test_stopped_worker_of_a_run_ends_the_others(pairs_folder: Path) -> None:
    """With TensorFlow: the port is the one of its server."""
    flags = worker_flags()
    commands = [train(*EXACT, "--steps", "100000", "--attempt", "stopped", *own) for own in flags]
    until(lambda: Path("checkpoints/stopped/metrics.jsonl").exists(), 120, lambda: commands[0].output)
    time.sleep(3)
    os.kill(commands[1].process.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    assert commands[0].wait(30) == EXIT_LOST
    print(f"noticed after {time.monotonic() - stopped:.1f} seconds")
    assert f"error: worker 1 ({flags[0][1].split(',')[1]}) was lost at step " in commands[0].output
    kill(commands[1].process.pid)
