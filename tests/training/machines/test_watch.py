"""The watch reports missing, late, lost and returned peers. It runs in a new process, which it may end."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chatbot.errors import EXIT_LOST
from chatbot.training.machines.cluster import free_addresses
from chatbot.training.machines.watch import is_answering, is_listening
from tests.training.machines.running import Command, until

WATCHING = """
import sys, time
from chatbot.training.machines.watch import Watch, print_status
limit, timeout, on_lost, *addresses = sys.argv[1:]
peers = {f"worker {i}": address for i, address in enumerate(addresses)}
on_lost = (lambda name: print_status(f"{name} lost")) if on_lost == "continue" else (
    lambda name: watch.exit_process(f"{name} was lost")
)
watch = Watch(peers, on_lost, float(timeout), float(limit))
watch.start()
while watch.missing:
    time.sleep(0.05)
print("all started", flush=True)
time.sleep(60)
"""


def watching(limit: float, timeout: float, on_lost: str, *addresses: str) -> Command:
    """A process that watches worker 0, 1, ... at these addresses. on_lost: exit or continue."""
    return Command(sys.executable, "-c", WATCHING, str(limit), str(timeout), on_lost, *addresses)


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


def test_watch_waits_for_late_peer_and_reports_lost_peer(pairs_folder: Path) -> None:
    on_time, late = free_addresses(2)
    with peer(on_time):
        command = watching(60, 1.5, "exit", on_time, late)
        command.wait_for(f"Waiting for worker 1 ({late}): 2 of at most 60 seconds.")
        assert "all started" not in command.output
        with peer(late):
            command.wait_for("all started")
            time.sleep(2.5)  # longer than the timeout
            assert command.process.poll() is None
        closed = time.monotonic()
        assert command.wait() == EXIT_LOST
        assert time.monotonic() - closed < 6
    lines = command.output.strip().split("\n")
    assert lines[-1] == (
        "error: worker 1 was lost. The last checkpoint is kept: start all machines again with the same commands"
    )
    assert sum("Waiting" in line for line in lines) == 1


def test_peer_that_never_starts_is_reported(pairs_folder: Path) -> None:
    on_time, never = free_addresses(2)
    with peer(on_time):
        command = watching(3, 5, "exit", on_time, never)
        assert command.wait() == EXIT_LOST
    assert f"error: worker 1 ({never}) did not start within 3 seconds: start it" in command.output
    assert "worker 0" not in command.output


def test_peer_may_return_until_all_are_lost(pairs_folder: Path) -> None:
    steady, unsteady = free_addresses(2)
    with peer(steady):
        with peer(unsteady):
            command = watching(3.6, 1, "continue", steady, unsteady)
            command.wait_for("all started")
        command.wait_for("worker 1 lost")
        with peer(unsteady):
            command.wait_for(f"worker 1 ({unsteady}) is back.")
        until(lambda: command.output.count("worker 1 lost") == 2, 10)
        time.sleep(5)  # longer than the limit, which applies only when all workers are lost
        assert command.process.poll() is None
    assert command.wait() == EXIT_LOST
    assert "all workers were lost: none has answered for 4 seconds. " in command.output


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
    until(lambda: is_answering(address), 60)
    os.kill(server.process.pid, signal.SIGSTOP)
    until(lambda: not is_answering(address), 5)
    assert is_listening(address)
    os.kill(server.process.pid, signal.SIGCONT)
    until(lambda: is_answering(address), 10)
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: not is_listening(address), 5)
    assert not is_answering(address)
    server.wait()


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
