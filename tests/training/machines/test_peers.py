"""The watch reports missing, late, lost and returned peers, but not busy ones."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from chatbot.errors import EXIT_LOST, LostError
from chatbot.training.machines import peers as module
from chatbot.training.machines.cluster import Cluster, free_addresses
from chatbot.training.machines.peers import Peers, is_answering, join_timeout
from chatbot.training.machines.team import connect
from tests.training.machines.running import Command, is_listening, until

handler_of, set_handler = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
handler_of.restype = ctypes.c_void_p


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the watch prints. Peers are probed often."""
    said = list[str]()
    monkeypatch.setattr(module, "print_status", said.append)
    monkeypatch.setattr(module, "PROBE_INTERVAL", 0.1)
    return said


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[LostError]:
    """The errors that would end this process."""
    ended = list[LostError]()
    monkeypatch.setattr(module, "end_process", ended.append)
    return ended


@contextmanager
def watching(limit: float, timeout: float, *addresses: str) -> Iterator[tuple[Peers, list[str]]]:
    """Watch worker 0, 1, ... at these addresses. Yields the watch and the names of those that it has lost."""
    lost = list[str]()
    peers = Peers({f"worker {i}": address for i, address in enumerate(addresses)}, lost.append, timeout, limit)
    peers.start()
    try:
        yield peers, lost
    finally:
        peers.stop()


@contextmanager
def peer(address: str) -> Iterator[None]:
    """A server at this address that sends a greeting, as gRPC does."""
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port)), backlog=1000) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):  # the server is closed
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"greeting")

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_watch_waits_for_late_peer_and_reports_each_loss(said: list[str]) -> None:
    """A peer may return and be lost again."""
    steady, unsteady = free_addresses(2)
    with peer(steady), watching(60, 1, steady, unsteady) as (peers, lost):
        until(lambda: said)
        assert peers.missing == ["worker 1"]
        time.sleep(0.5)  # it is probed several times, and named once
        with peer(unsteady):
            until(lambda: not peers.missing)
            time.sleep(2)  # longer than the timeout
            assert lost == []
        until(lambda: lost == ["worker 1"])
        time.sleep(0.5)
        assert lost == ["worker 1"]
        with peer(unsteady):
            time.sleep(0.5)
        until(lambda: lost == ["worker 1", "worker 1"])
    assert re.fullmatch(rf"Waiting for worker 1 \({unsteady}\): \d of at most 60 seconds\.", said[0])
    assert len(said) == 1


def test_peer_that_never_starts_is_reported(said: list[str], ended: list[LostError]) -> None:
    on_time, never = free_addresses(2)
    with peer(on_time), watching(1, 5, on_time, never):
        until(lambda: ended)
    assert str(ended[0]).startswith(f"worker 1 ({never}) did not start within 1 second: start it")


# A worker without TensorFlow. Its port is answered by a child process, as TensorFlow's own threads do while Python is
# busy; the child ends or stops with its parent's process group.
WORKERS_SCRIPT = """
import ctypes, os, socket, sys, time
from chatbot.training.machines import peers as module
from chatbot.training.machines.cluster import Cluster, host_and_port
from chatbot.training.machines.peers import Peers
module.PROBE_INTERVAL = 0.2
index, busy, *addresses = sys.argv[1:]
cluster = Cluster(tuple(addresses), "worker", int(index))
peers = Peers(cluster.others, lambda name: peers.exit_process(f"{name} was lost"), timeout=2, limit=60)
if os.fork() == 0:
    with socket.create_server(host_and_port(cluster.own), backlog=100) as server:
        while True:
            server.accept()[0].sendall(b"greeting")
peers.start()
while peers.missing:
    time.sleep(0.05)
print("started", flush=True)
time.sleep(0.5)
ctypes.PyDLL(None).usleep(int(float(busy) * 1e6))  # holds Python's lock
print("free again", flush=True)
time.sleep(600)
"""


def workers(*busy: float) -> list[Command]:
    """A process for each worker. busy: for so many seconds, no thread of a worker runs."""
    addresses = free_addresses(len(busy))
    commands = [
        Command(sys.executable, "-c", WORKERS_SCRIPT, str(i), str(seconds), *addresses)
        for i, seconds in enumerate(busy)
    ]
    for command in commands:
        command.wait_for("started")
    return commands


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_stopped_or_killed_worker_ends_all_others(pairs_folder: Path, number: int) -> None:
    commands = workers(0, 0, 0)
    os.killpg(commands[1].process.pid, number)
    for command in (commands[0], commands[2]):
        assert command.wait() == EXIT_LOST
        assert command.output.strip().splitlines()[-1] == (
            "error: worker 1 was lost; the last checkpoint is kept: start all machines again with the same commands"
        )
    commands[1].process.kill()


def test_busy_worker_is_not_lost(pairs_folder: Path) -> None:
    """For twice the timeout, no thread of two workers runs."""
    commands = workers(4, 0, 4)
    for command in commands:
        command.wait_for("free again")
    time.sleep(3)  # longer than the timeout
    assert [command.process.poll() for command in commands] == [None, None, None]
    assert all("error" not in command.output for command in commands)


SERVING = """
import sys
from chatbot.quiet import import_tensorflow
import_tensorflow()
import tensorflow as tf
server = tf.distribute.Server({"worker": [sys.argv[1]]}, job_name="worker", task_index=0)
server.join()
"""


def test_stopped_process_is_listening_and_not_answering(pairs_folder: Path) -> None:
    """With a server of TensorFlow, whose threads answer."""
    (address,) = free_addresses(1)
    assert not is_listening(address)
    server = Command(sys.executable, "-c", SERVING, address)
    until(lambda: is_answering(address))
    os.kill(server.process.pid, signal.SIGSTOP)
    until(lambda: not is_answering(address))
    assert is_listening(address)
    os.kill(server.process.pid, signal.SIGCONT)
    until(lambda: is_answering(address))
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: not is_listening(address))
    assert not is_answering(address)
    server.wait()


TF_ERRORS = tf.errors
CLOSED = "Collective ops is aborted by: " + 9 * "Socket closed "
IN_A_GRAPH = f"Graph execution error:\n\n  File 1\n\n{CLOSED}\nThe error could be\n\t [[{{{{x}}}}]]\n\n"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TF_ERRORS.UnavailableError(None, None, IN_A_GRAPH), True),
        (TF_ERRORS.AbortedError(None, None, "Unable to find a context_id"), True),
        (TF_ERRORS.DeadlineExceededError(None, None, "Deadline Exceeded"), True),
        (TF_ERRORS.CancelledError(None, None, "Cancelled"), True),
        (TF_ERRORS.InvalidArgumentError(None, None, "Unable to find the relevant tensor remote_handle"), True),
        (TF_ERRORS.FailedPreconditionError(None, None, "Device current incarnation doesn't match"), True),
        (TF_ERRORS.InternalError(None, None, "remote process exited or there was a network error"), True),
        (TF_ERRORS.InternalError(None, None, "a bug"), False),
        (TF_ERRORS.InvalidArgumentError(None, None, "indices[0] = 9 is not in [0, 9)"), False),
        (TF_ERRORS.ResourceExhaustedError(None, None, "Collective ops is aborted by: OOM"), False),
        (ConnectionError(CLOSED), False),
    ],
)
def test_only_errors_of_lost_machines_end_the_process(
    error: Exception, expected: bool, ended: list[LostError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PEER_TIMEOUT", 0.0)
    with pytest.raises(type(error)), Peers({}, lambda _: None).errors():
        raise error
    assert [type(end) for end in ended] == [LostError] * expected
    for end in ended:
        assert str(end).startswith("the connection to the other machines failed (")
        assert "Graph execution" not in str(end), "the text of an error in a graph follows the lines of its code"
        assert len(f"error: {end}") < 200


def test_failure_of_a_thread_of_the_coordinator_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that no lost machine has caused: the results of the thread would never arrive."""
    codes: list[int] = []
    errors: list[BaseException] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr("logging.Logger.setLevel", lambda *_: None)
    monkeypatch.setattr(tf.distribute, "ParameterServerStrategy", lambda _: None)
    monkeypatch.setattr(tf.distribute.coordinator, "ClusterCoordinator", lambda _: None)
    peers: Any = SimpleNamespace(missing=[], exit_after_error=errors.append)
    connect(Cluster(("a:1",), "chief", 0, ("b:2",), "c:3"), peers)
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert codes == [1]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_handlers_are_as_before_a_connection_also_in_a_thread() -> None:
    """TensorFlow changes the handler of SIGTERM. Python sets handlers in the main thread only."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
    of_sigterm, of_sigalrm = map(handler_of, (signal.SIGTERM, signal.SIGALRM))

    def connect() -> None:
        with join_timeout():
            assert handler_of(signal.SIGALRM) is None  # the default, by which the signal ends the process
            assert 0 < signal.alarm(1000) <= module.JOIN_TIMEOUT
            set_handler(signal.SIGTERM, 1)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(connect).result()
    assert (handler_of(signal.SIGTERM), handler_of(signal.SIGALRM)) == (of_sigterm, of_sigalrm)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)] == handlers
    assert signal.alarm(0) == 0


def test_probe_connected_to_itself_is_not_listening() -> None:
    """A socket that is bound to the port it connects to is its own peer."""
    (address,) = free_addresses(1)
    host, port = address.rpartition(":")[0], int(address.rpartition(":")[2])
    connect = socket.create_connection

    def connect_to_itself(address: tuple[str, int], timeout: float) -> socket.socket:
        return connect(address, timeout, source_address=address)

    socket.create_connection = connect_to_itself  # type: ignore[assignment]
    try:
        connect_to_itself((host, port), 1).close()  # this succeeds
        assert not is_listening(address)
    finally:
        socket.create_connection = connect
