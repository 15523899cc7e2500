"""The processes of a run on this machine: their jobs, addresses and GPUs, and a GPU that fails."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.errors import LostError, UserError
from chatbot.flags import compose
from chatbot.training import start as module
from chatbot.training.devices.gpus import Gpu
from chatbot.training.devices.towers import Tower
from chatbot.training.machines.processes import Job
from tests.training.devices.nvml import Nvml

FOUR = [Gpu(number, "NVIDIA Test", 24 << 30, f"GPU-{number}abc") for number in range(4)]


def jobs_of(monkeypatch: pytest.MonkeyPatch, found: list[Gpu], **flags: Any) -> dict[str, tuple[Job, Settings]]:
    """The jobs that a run starts, each with its settings, by name."""
    started: list[Job] = []

    def run_jobs(jobs: list[Job]) -> int:
        started.extend(jobs)
        return 0

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("chatbot.training.devices.towers.find_gpus", lambda: found)
    monkeypatch.setattr(module, "run_jobs", run_jobs)
    assert module.start(compose(Settings, **flags)) == 0
    for job in started:
        parallel = job.arguments[0].parallel
        assert (parallel.local_workers, parallel.restarts) == (None, 0)  # a child starts no children
    return {job.name: (job, job.arguments[0]) for job in started}


def test_local_workers_share_addresses_and_divide_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = jobs_of(monkeypatch, FOUR, local_workers=2, restarts=3, rnn_size=32)
    assert list(jobs) == ["worker 0", "worker 1"]
    settings = [settings.parallel for _, settings in jobs.values()]
    assert [parallel.task_index for parallel in settings] == [0, 1]
    assert [parallel.gpus for parallel in settings] == ["0,2", "1,3"]
    assert len({parallel.worker_hosts for parallel in settings}) == 1
    assert len(set((settings[0].worker_hosts or "").split(","))) == 2
    assert [(job.restarts, job.quiet, job.server) for job, _ in jobs.values()] == [(3, False, False), (3, True, False)]
    assert all(settings.model.rnn_size == 32 for _, settings in jobs.values())


def test_asynchronous_run_has_a_server_workers_and_a_chief(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = jobs_of(monkeypatch, FOUR[:2], asynchronous=True, restarts=3)
    assert capsys.readouterr().err == ""
    assert list(jobs) == ["ps 0", "worker 0", "worker 1", "chief"]
    settings = [settings.parallel for _, settings in jobs.values()]
    assert [(p.job_name, p.task_index) for p in settings] == [("ps", 0), ("worker", 0), ("worker", 1), ("chief", 0)]
    assert [p.gpus for p in settings[1:3]] == ["0", "1"]
    (hosts,) = {(p.ps_hosts, p.worker_hosts, p.chief_host) for p in settings}
    assert len(set(",".join(map(str, hosts)).split(","))) == 4
    assert [job.server for job, _ in jobs.values()] == [True, True, True, False]
    assert [job.restarts for job, _ in jobs.values()] == [3, 20, 20, 3]
    assert [job.quiet for job, _ in jobs.values()] == [True, True, True, False]


@pytest.mark.parametrize(
    ("flags", "found", "workers"),
    [({}, [], 2), ({"towers": 3}, [], 3), ({"local_workers": 1}, FOUR, 1), ({}, FOUR, 4), ({"gpus": "2"}, FOUR, 1)],
)
def test_number_of_asynchronous_workers(
    flags: dict[str, Any], found: list[Gpu], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = jobs_of(monkeypatch, found, asynchronous=True, **flags)
    assert len(jobs) == 2 + workers
    assert {settings.parallel.towers for _, settings in jobs.values()} == {None}  # each worker is one tower


def test_processes_that_cannot_be_started_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read."""
    with pytest.raises(UserError, match="4 GPUs cannot be divided evenly among 3 workers"):
        jobs_of(monkeypatch, FOUR, local_workers=3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        hosts = f"127.0.0.1:{taken.getsockname()[1]},127.0.0.1:1"
        with pytest.raises(UserError, match=r"^port \d+ of 127.0.0.1:\d+, this machine's address, cannot be used"):
            module.start(compose(Settings, worker_hosts=hosts, task_index=0))
    cluster = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(
        UserError, match=r"^--local-workers: TF_CONFIG already defines the machines; leave out --local-workers"
    ):
        module.start(compose(Settings, local_workers=2))


def test_gpus_of_all_machines_determine_the_batches(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_settings: Settings, _probe: Any, gpus: int) -> None:
        raise UserError(f"{gpus} GPUs")

    monkeypatch.setattr(module, "prepare", stop)
    monkeypatch.setattr(module, "choose_gpus", lambda *_: FOUR[:2])
    for hosts, gpus in ((None, 2), ("a:1,b:1,c:1", 6)):
        settings = compose(Settings, worker_hosts=hosts, task_index=hosts and 0)
        with pytest.raises(UserError, match=f"^{gpus} GPUs$"):
            module.train_here(settings, module.find_cluster(settings.parallel))


def test_gpu_that_fails_in_mid_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise tf.errors.InternalError(None, None, "GPU sync failed")

    Nvml(monkeypatch).lost = {1}
    monkeypatch.setattr("chatbot.training.loop.train", fail)
    monkeypatch.setattr("chatbot.training.run.open_run", lambda *_: None)
    data: Any = None
    with pytest.raises(LostError, match=r"^GPU 1 does not answer \(GPU is lost\)"):
        module.train_on(Settings(), data, [Tower("gpu_1", "/GPU:0", "NVIDIA", 1 << 30)])


def test_gpu_that_does_not_answer_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[Gpu] = []

    def open_towers(gpus: list[Gpu], *_: object) -> list[Tower]:
        opened.extend(gpus)
        return []

    Nvml(monkeypatch, 3).lost = {1}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "open_towers", open_towers)
    module.open_and_print_towers(Settings(), module.select_gpus(Settings()))
    assert [gpu.number for gpu in opened] == [0, 2]
    assert capsys.readouterr().err == "GPU 1 does not answer and is skipped: GPU is lost\n"


def test_selftest_runs_on_several_towers_and_not_with_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.training.selftest.selftest", lambda settings, towers: len(towers))
    assert module.start(compose(Settings, selftest=True)) == 2
    with pytest.raises(UserError, match="--dry-run and --selftest cannot be combined; leave out one of the two"):
        module.start(compose(Settings, selftest=True, dry_run=True))


def test_devices_of_a_model_parallel_tower_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (tower,) = module.open_and_print_towers(compose(Settings, model_parallel=True, towers=3), [])
    assert tower.parts is not None
    assert capsys.readouterr().out.splitlines()[-1] == (
        "tower 0: encoder on /CPU:0, decoder and attention on /CPU:1, embedding, projection and loss on /CPU:2"
    )


def test_deterministic_flag_enables_op_determinism(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(module, "open_towers", lambda *_: [])
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: called.append(True))
    module.open_and_print_towers(Settings(), [])
    assert not called
    module.open_and_print_towers(compose(Settings, deterministic=True), [])
    assert called
