"""Real workers and parameter servers: each step counts once, whoever is killed; and nothing stays behind."""

import json
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.training.machines.cluster import free_addresses
from tests.commands import run
from tests.training.machines.running import (
    Command,
    kill,
    marked,
    metrics,
    module,
    saved_step,
    train,
    until,
    write_pairs,
)

KILLS = 6
LOCAL = ("--asynchronous", "--batch-size", "6", "--save-every", "20")


def steps_counted() -> int:
    """How far the counting cluster has come."""
    return int(Path("steps").read_text() or 0) if Path("steps").exists() else 0


def test_every_step_is_applied_exactly_once_however_often_workers_are_killed(place: Path) -> None:
    """At random moments, while they start too; two at once as well."""
    command = module("tests.training.machines.counting")
    until(lambda: steps_counted() > 200 or command.process.poll() is not None, 120, lambda: command.said)
    ps_0, ps_1, *_, chief = command.children()
    chance = random.Random(time.time_ns())
    for turn in range(KILLS):
        workers = sorted(set(command.children()) - {ps_0, ps_1, chief})
        for worker in workers if turn == 2 else [chance.choice(workers)]:
            kill(worker)
        time.sleep(chance.uniform(0.2, 5))
    reached = steps_counted()
    until(lambda: steps_counted() > reached + 500 or command.process.poll() is not None, 120, lambda: command.said)
    Path("enough").touch()
    assert command.ended() == 0, command.said
    counted = json.loads(Path("counted.json").read_text())
    print(counted, command.said.count("starting it again"))
    assert command.said.count("starting it again") >= KILLS
    assert min(counted["weights"]) > 1  # each server has several, of which a dying worker could change half
    assert counted["updates"] == [counted["steps"]] * 2
    assert counted["results"] == counted["steps"]
    assert abs(counted["least"] - counted["steps"]) < 0.5
    assert abs(counted["most"] - counted["steps"]) < 0.5


def busy(attempt: str, command: Command, beyond: int = 0) -> None:
    """Wait until it trains."""
    until(lambda: saved_step(attempt) > beyond or command.process.poll() is not None, 120, lambda: command.said)
    assert command.process.poll() is None, command.said


@pytest.mark.long
def test_a_lost_worker_is_replaced_and_after_a_lost_server_the_run_goes_on_from_the_checkpoint(place: Path) -> None:
    command = train(*LOCAL, "--restarts", "1", "--steps", "800", "--attempt", "again")
    busy("again", command)
    server, *_, worker, _ = command.children()
    kill(worker)
    command.wait_for("worker 1 was killed by signal 9; starting it again (1 of 20).")
    busy("again", command, saved_step("again"))
    kill(server)
    killed = time.monotonic()
    command.wait_for("chief ended with exit code 138; starting it again (1 of 1).")
    print(f"noticed after {time.monotonic() - killed:.1f} seconds")
    assert "ps 0 was killed by signal 9; starting it again (1 of 1)." in command.said
    assert command.ended() == 0
    assert "Going on from step " in command.said
    assert saved_step("again") == metrics("again")[-1]["step"] == 800
    assert len(metrics("again")[-1]["tower_losses"]) == 2
    until(lambda: not marked(), 3)


def test_a_lost_server_ends_the_run_which_resumes_and_saves_at_ctrl_c(place: Path) -> None:
    lost = train(*LOCAL, "--steps", "100000", "--attempt", "lost")
    busy("lost", lost)
    kill(lost.children()[0])
    assert lost.ended(60) == 138
    assert "error: ps 0 (127.0.0.1:" in lost.said
    assert "was lost, and with it the newest weights" in lost.said
    until(lambda: not marked(), 3)
    step = saved_step("lost")

    resumed = train(*LOCAL, "--steps", "100000", "--attempt", "lost")
    busy("lost", resumed, step)
    os.kill(resumed.process.pid, signal.SIGINT)
    assert resumed.ended(60) == 130
    assert f"Going on from step {step} of checkpoints/lost." in resumed.said
    assert "Saved. The same command goes on from here" in resumed.said
    assert saved_step("lost") == metrics("lost")[-1]["step"] > step
    until(lambda: not marked(), 3)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_run_that_ends_while_it_starts(place: Path, number: int) -> None:
    command = train(*LOCAL)
    until(lambda: len(command.children()) == 4, 60)
    time.sleep(3)
    os.kill(command.process.pid, number)
    assert command.ended(10) == (130 if number == signal.SIGINT else -number)
    until(lambda: not marked(), 3)


def test_machines_with_flags_of_their_own_end_with_the_chief(place: Path) -> None:
    """A cluster of one worker; validation ends it."""
    write_pairs(Path("held-out.tsv"), 6, "is")
    ps, worker, chief = free_addresses(3)
    told = (*LOCAL, "--ps-hosts", ps, "--worker-hosts", worker, "--chief-host", chief)
    first = train(
        *(*told, "--job-name", "chief", "--validation", "held-out.tsv", "--validate-every", "10", "--patience", "1"),
        *("--learning-rate", "0.5", "--steps", "500"),
    )
    others = [train(*told, "--job-name", job, "--task-index", "0") for job in ("worker", "ps")]
    assert first.ended() == 0
    assert "1 workers train without waiting for each other; 1 parameter servers." in first.said
    assert "no better validation in 1 in a row" in first.said
    for command, name, address in zip(others, ("worker", "ps"), (worker, ps), strict=True):
        assert command.ended(30) == 0
        assert f"{name} 0 serves at {address}." in command.said
        assert "The chief has ended." in command.said


@pytest.mark.long
def test_workers_that_do_not_wait_learn_the_chatterbot_corpus_by_heart(workplace: Path) -> None:
    """As the first run does it, and to the same bar."""
    done = run("train.py", "--asynchronous")
    assert done.returncode == 0, done.stderr.decode()[-500:]
    answers = defaultdict(set)
    for question, answer in read(find_sources([])[0], Report()):
        answers[question].add(answer)
    expected = {q: next(iter(a)) for q, a in answers.items() if len(a) == 1}
    said = run("chat.py", "--beam-size", "1", said="".join(f"{q}\n" for q in expected).encode())
    replies = said.stdout.decode().splitlines()
    exact = sum(reply == answer for reply, answer in zip(replies, expected.values(), strict=True))
    print(f"{exact / len(expected):.1%} exact, loss {metrics('default')[-1]['loss']:.3f}")
    assert exact / len(expected) >= 0.95
