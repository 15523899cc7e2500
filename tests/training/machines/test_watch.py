"""The watch: it names who is missing, late, lost, and back; each in a process of its own, which it may end."""

import os
import signal
import socket
import sys
import time
from contextlib import closing
from pathlib import Path

from chatbot.training.machines.cluster import free_addresses
from chatbot.training.machines.watch import LOST, _answers
from tests.training.machines.running import Command, until

WATCHING = """
import sys, time
from chatbot.training.machines.watch import Watch, say
limit, patience, tolerant, *addresses = sys.argv[1:]
peers = {f"worker {i}": address for i, address in enumerate(addresses)}
lost = (lambda name: say(f"{name} lost")) if tolerant == "tolerant" else None
watch = Watch(peers, float(limit), lost, float(patience))
watch.start()
while watch.missing:
    time.sleep(0.05)
print("all there", flush=True)
time.sleep(60)
"""


def watching(limit: float, patience: float, tolerant: str, *addresses: str) -> Command:
    return Command(sys.executable, "-c", WATCHING, str(limit), str(patience), tolerant, *addresses)


def peer(address: str) -> "closing[socket.socket]":
    """Somebody who takes connections at this address."""
    host, _, port = address.rpartition(":")
    return closing(socket.create_server((host, int(port)), backlog=1000))


def test_a_peer_that_is_late_is_waited_for_and_one_that_leaves_is_named(place: Path) -> None:
    there, late = free_addresses(2)
    with peer(there):
        command = watching(60, 1.5, "strict", there, late)
        command.wait_for(f"Waiting for worker 1 ({late}): 2 of at most 60 seconds.")
        assert "all there" not in command.said
        with peer(late):
            command.wait_for("all there")
            time.sleep(2.5)  # longer than its patience
            assert command.process.poll() is None
        left = time.monotonic()
        assert command.ended() == LOST
        assert time.monotonic() - left < 6
    lines = command.said.strip().split("\n")
    assert lines[-1] == (
        f"error: worker 1 ({late}) was lost: it has not answered for 2 seconds. "
        "The last checkpoint is kept: start all machines again with the same commands"
    )
    assert sum("Waiting" in line for line in lines) == 1


def test_a_peer_that_never_comes(place: Path) -> None:
    there, never = free_addresses(2)
    with peer(there):
        command = watching(3, 5, "strict", there, never)
        assert command.ended() == LOST
    assert f"error: worker 1 ({never}) did not start within 3 seconds (--start-limit): start it" in command.said
    assert "worker 0" not in command.said


def test_a_peer_that_comes_back_and_then_nobody_left(place: Path) -> None:
    steady, loose = free_addresses(2)
    with peer(steady):
        with peer(loose):
            command = watching(3.6, 1, "tolerant", steady, loose)
            command.wait_for("all there")
        command.wait_for("worker 1 lost")
        with peer(loose):
            command.wait_for(f"worker 1 ({loose}) is back.")
        until(lambda: command.said.count("worker 1 lost") == 2, 10)
        time.sleep(5)  # longer than the limit: one of two is enough
        assert command.process.poll() is None
    assert command.ended() == LOST
    assert "all workers were lost: none has answered for 4 seconds (--start-limit)" in command.said


def test_a_process_that_was_killed_does_not_answer(place: Path) -> None:
    (address,) = free_addresses(1)
    assert not _answers(address)
    port = address.rpartition(":")[2]
    server = Command(sys.executable, "-m", "http.server", port, "--bind", "127.0.0.1")
    until(lambda: _answers(address), 20)
    os.kill(server.process.pid, signal.SIGKILL)
    until(lambda: not _answers(address), 5)
    server.ended()


def test_who_meets_itself_met_nobody(place: Path) -> None:
    """A socket that is bound to the port it calls is answered by itself."""
    (address,) = free_addresses(1)
    host, port = address.rpartition(":")[0], int(address.rpartition(":")[2])
    connect = socket.create_connection

    def itself(where: tuple[str, int], timeout: float) -> socket.socket:
        return connect(where, timeout, source_address=where)

    socket.create_connection = itself  # type: ignore[assignment]
    try:
        itself((host, port), 1).close()  # it does connect
        assert not _answers(address)
    finally:
        socket.create_connection = connect
