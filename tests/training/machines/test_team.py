"""Texts that machines exchange. The sums over machines are computed in this process, one thread for each machine."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from chatbot.training.devices.towers import Tower
from chatbot.training.machines import team as module
from chatbot.training.machines.team import ALONE, BLOCK, Team, tower_names


def on_machines(machines: int, function: Callable[[Team], Any]) -> list[Any]:
    """The results of a function of the team, by machine."""
    sent: list[Any] = [None] * machines
    barrier = threading.Barrier(machines, timeout=30)

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
    """Of different lengths, with several bytes a character, empty, and longer than a block."""
    texts = ["你好", "", "a" * (BLOCK + 1)]
    assert on_machines(3, lambda team: team.all_gather_text(texts[team.machine])) == [texts] * 3
    assert on_machines(2, lambda team: team.all_gather_text("")) == [["", ""]] * 2
    assert ALONE.all_gather_text("你好") == ["你好"]


def test_chief_sends_its_text_to_all() -> None:
    assert on_machines(3, lambda team: team.broadcast_text(f"text of {team.machine}")) == ["text of 0"] * 3


@pytest.mark.parametrize("interrupted", [0, 1, 2])
def test_reason_of_any_machine_stops_all(interrupted: int) -> None:
    reasons = on_machines(3, lambda team: team.agree("interrupted" if team.machine == interrupted else ""))
    assert reasons == ["interrupted"] * 3


def test_first_reason_is_the_same_for_all() -> None:
    assert on_machines(2, lambda team: team.agree(f"reason {team.machine}")) == ["reason 0"] * 2


def test_only_machine_0_is_the_chief() -> None:
    assert [Team(machine, 3).chief for machine in range(3)] == [True, False, False]
    assert ALONE.chief
    assert ALONE.alone
    assert not Team(0, 2).alone


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
    monkeypatch.setattr(module, "exchange_by", lambda strategy, first_replica: first_replica)
    team = Team(1, 2, SimpleNamespace(num_replicas_in_sync=4))
    assert (team.replicas, team.exchange) == (2, 2)
