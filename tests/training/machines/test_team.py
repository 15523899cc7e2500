"""Workers meet before TensorFlow connects them, and exchange texts: in threads, with strangers at a port."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.attempts.settings import stored_values
from chatbot.config.training import Settings
from chatbot.errors import LostError, UserError
from chatbot.flags import compose, flag_of
from chatbot.training.devices.towers import Tower
from chatbot.training.machines import meeting, peers
from chatbot.training.machines import team as module
from chatbot.training.machines.cluster import Cluster, free_addresses, host_and_port
from chatbot.training.machines.meeting import meet, shared_facts
from chatbot.training.machines.team import ALONE, BLOCK, Team, tower_names
from tests.training.machines.running import TIMEOUT, is_listening


def start(workers: int, function: Callable[[Cluster], Any], absent: tuple[int, ...] = ()) -> list[Future[Any]]:
    """Call a function with the cluster of each worker that is there, each in a thread."""
    addresses = tuple(free_addresses(workers))
    with ThreadPoolExecutor(workers) as threads:
        present = [index for index in range(workers) if index not in absent]
        return [threads.submit(function, Cluster(addresses, "worker", index)) for index in present]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for worker 0, and for those that have come, ten times as often."""
    for waiting in (peers, meeting):
        monkeypatch.setattr(waiting, "PROBE_INTERVAL", 0.1)
    monkeypatch.setattr(meeting, "LINE_TIMEOUT", 0.3)


def test_workers_meet_in_any_order() -> None:
    def late(cluster: Cluster) -> Cluster:
        time.sleep(0.5 * (cluster.index == 0))
        return meet(cluster, {"a": [1, "二"]}, 30)

    clusters = [future.result() for future in start(3, late)]
    assert [cluster.index for cluster in clusters] == [0, 1, 2]
    assert {cluster.workers for cluster in clusters} == {clusters[0].workers}
    assert len(clusters[0].workers) == 3


def test_first_difference_is_refused_by_all() -> None:
    facts: list[dict[str, Any]] = [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}]
    for future in start(3, lambda cluster: meet(cluster, facts[cluster.index], 30)):
        with pytest.raises(UserError, match=r"^workers must use .*: b is 2 on worker 0 and None on worker 2; use"):
            future.result()


def test_absent_workers_are_named_or_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    """The indices of the others move up."""
    for future in start(4, lambda cluster: meet(cluster, {}, 1, 4), absent=(1,)):
        with pytest.raises(LostError, match=r"^worker [01] \(127.0.0.1:\d+\) did not start within 1 second: start it"):
            future.result()
    assert "Waiting for worker 1 (127.0.0.1:" in capfd.readouterr().err
    clusters = [future.result() for future in start(4, lambda cluster: meet(cluster, {}, 1, 3), absent=(1,))]
    assert [cluster.index for cluster in clusters] == [0, 1, 2]
    assert [len(cluster.workers) for cluster in clusters] == [3, 3, 3]
    assert "Training continues without 1 of 4 workers.\n" in capfd.readouterr().out


STRANGERS = [
    *(b"", b"GET / HTTP/1.1\r\n\r\n", b"1\n", b"[" * 9999 + b"\n"),
    *(b'{"worker": 5, "facts": {}}\n', b'{"worker": 1}\n'),
]


def test_strangers_and_workers_that_have_left_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that never ends, one that is too long, and a worker that comes again."""
    monkeypatch.setattr(meeting, "MAX_BYTES", 10_000)
    addresses = tuple(free_addresses(2))
    with ThreadPoolExecutor(1) as threads:
        host = threads.submit(meet, Cluster(addresses, "worker", 0), {}, 30)
        while not is_listening(addresses[0]):
            time.sleep(0.01)
        connections = [socket.create_connection(host_and_port(addresses[0])) for _ in STRANGERS]
        for connection, text in zip(connections, STRANGERS, strict=True):
            connection.sendall(text)
        with socket.create_connection(host_and_port(addresses[0])) as left:
            left.sendall(b'{"worker": 1, "facts": {"a": 1}}\n')
        with pytest.raises(futures.TimeoutError):  # before Python 3.11, another class
            host.result(timeout=3)
        assert meet(Cluster(addresses, "worker", 1), {}, 30).index == 1
        assert host.result().workers == addresses
        for connection in connections:
            connection.close()


def test_other_servers_at_the_port_of_worker_0_are_ignored() -> None:
    addresses = tuple(free_addresses(2))
    with socket.create_server(host_and_port(addresses[0])) as server:

        def answer() -> None:
            for text in (b"\0\0\n", b'{"workers": 1}\n', b'{"workers": [0]}\n', b'{"workers": [0, 1]}\n'):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(text)

        thread = threading.Thread(target=answer)
        thread.start()
        assert meet(Cluster(addresses, "worker", 1), {}, 30).workers == addresses
        thread.join()


def worker(rnn_size: int = 64, attempt: str = "a", pairs: int = 24, vocabulary: str = "v", towers: int = 2) -> Any:
    """The settings, data and towers of a worker."""
    description = {"pairs": pairs, "fingerprint": "f", "vocabulary": vocabulary, "both_directions": False}
    data: Any = SimpleNamespace(description=description, validation=SimpleNamespace(fingerprint="h"))
    devices = [Tower(f"gpu_{i}", f"/GPU:{i}", "NVIDIA", None) for i in range(towers)]
    return shared_facts(compose(Settings, rnn_size=rnn_size, attempt=attempt), data, devices)


def test_facts_are_everything_that_changes_training() -> None:
    """Every stored setting but paths and the attempt, every part of the data, the towers, TensorFlow.

    Of the directions, what follows from the setting is compared.
    """
    facts = worker()
    not_compared = {
        *("--data", "--validation", "--dictionary", "--cache", "--block-list", "--probe", "--attempt"),
        "--both-directions",
    }
    stored = {flag_of(name) for name in stored_values(Settings())}
    others = {name: value for name, value in facts.items() if not name.startswith("--")}
    assert facts.keys() - others.keys() == stored - not_compared
    assert others == {
        "the number of towers": 2,
        "the number of GPUs": 2,
        "the number of training pairs": 24,
        "the checksum of the training pairs": "f",
        "the checksum of the vocabulary": "v",
        "training in both directions": False,
        "the checksum of the validation pairs": "h",
        "TensorFlow's version": tf.__version__,
    }
    assert facts == worker(attempt="b") == json.loads(json.dumps(facts))
    for other in (worker(rnn_size=32), worker(towers=1), worker(pairs=23), worker(vocabulary="w")):
        assert re.match("workers must use identical settings: ", meeting._first_difference(facts, {1: facts, 2: other}))


def on_machines(machines: int, function: Callable[[Team], Any]) -> list[Any]:
    """The results of a function of the team, by machine."""
    sent: list[Any] = [None] * machines
    barrier = threading.Barrier(machines, timeout=TIMEOUT)

    class Thread(Team):
        """A machine that is a thread."""

        def _all_reduce(self, numbers: np.ndarray) -> np.ndarray:
            sent[self.machine] = numbers
            barrier.wait()
            total = np.sum(sent, axis=0)
            barrier.wait()
            return total

    with ThreadPoolExecutor(machines) as threads:
        return list(threads.map(function, [Thread(machine, machines) for machine in range(machines)]))


def test_texts_of_all_machines_are_received_by_all() -> None:
    """Of different lengths, with several bytes a character, empty, and longer than a block; or the chief's alone."""
    texts = ["你好", "", "a" * (BLOCK + 1)]
    assert on_machines(3, lambda team: team.all_gather_text(texts[team.machine])) == [texts] * 3
    assert on_machines(2, lambda team: team.all_gather_text("")) == [["", ""]] * 2
    assert ALONE.all_gather_text("你好") == ["你好"]
    assert on_machines(3, lambda team: team.broadcast_text(f"text of {team.machine}")) == ["text of 0"] * 3


def test_reason_of_any_machine_stops_all() -> None:
    for reasons in (["", "", "2"], ["", "1", "2"], ["0", "", "2"]):
        agreed = on_machines(3, lambda team: team.agree(reasons[team.machine]))  # noqa: B023  # called at once
        assert agreed == ["".join(reasons)[0]] * 3


def test_towers_are_named_after_their_machine() -> None:
    names = ["worker_0_cpu_0", "worker_0_cpu_1", "worker_1_cpu_0", "worker_1_cpu_1"]
    assert on_machines(2, lambda team: tower_names(team, ["cpu_0", "cpu_1"])) == [names] * 2
    assert tower_names(ALONE, ["cpu_0"]) == ["cpu_0"]


def test_numbers_of_a_machine_count_once_for_all_its_replicas(cpus: list[Tower]) -> None:
    """A machine with two replicas, such as two GPUs."""
    strategy = tf.distribute.MirroredStrategy([tower.device for tower in cpus[:2]])
    team = Team(0, 1, strategy)
    assert team.replicas == 2
    assert team._all_reduce(np.array([1.0, 2.0])).tolist() == [1.0, 2.0]


def test_replicas_are_numbered_over_all_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two machines, with two replicas each, has replicas 2 and 3."""
    monkeypatch.setattr(module, "make_exchange", lambda strategy, first_replica: first_replica)
    team = Team(1, 2, SimpleNamespace(num_replicas_in_sync=4))
    assert (team.replicas, team.exchange) == (2, 2)
