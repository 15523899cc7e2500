"""The cluster from flags and from TF_CONFIG, and an error message for each mistake."""

import contextlib
import json
import socket
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from chatbot.config.parallel import ParallelSettings
from chatbot.errors import UserError
from chatbot.training.machines.cluster import (
    Cluster,
    check_port,
    expand_nodes,
    find_cluster,
    free_addresses,
    host_and_port,
)

TWO = {"worker_hosts": "a:1,b:2"}
SERVED = {"asynchronous": True, "worker_hosts": "a:1,b:2", "ps_hosts": "c:3"}


def cluster_from_flags(**flags: Any) -> Cluster | None:
    return find_cluster(ParallelSettings(**flags), {})


def tf_config(cluster: Any, job: Any = "worker", index: Any = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})}


def test_flags_give_cluster() -> None:
    assert cluster_from_flags() is None
    assert cluster_from_flags(worker_hosts="a:1", task_index=0) is None  # one machine trains alone
    assert cluster_from_flags(**TWO, task_index=1) == Cluster(("a:1", "b:2"), "worker", 1)
    assert cluster_from_flags(worker_hosts=" a:1 ,,b:2,", task_index=1) == Cluster(("a:1", "b:2"), "worker", 1)
    assert cluster_from_flags(**SERVED, job_name="ps", task_index=0) == Cluster(("a:1", "b:2"), "ps", 0, ("c:3",))
    chief = cluster_from_flags(**SERVED, job_name="chief", chief_host="d:4")
    assert chief == Cluster(("a:1", "b:2"), "chief", 0, ("c:3",), "d:4")
    assert cluster_from_flags(asynchronous=True, worker_hosts="a:1", ps_hosts="c:3", job_name="worker", task_index=0)


def test_addresses_of_this_and_of_other_machines() -> None:
    cluster = Cluster(("a:1", "b:2"), "worker", 1, ("c:3",), "d:4")
    assert (cluster.own, cluster.others) == ("b:2", {"worker 0": "a:1", "ps 0": "c:3"})
    assert Cluster(("a:1",), "ps", 0, ("c:3",)).own == "c:3"
    assert Cluster(("a:1",), "chief", 0, ("c:3",), "d:4").own == "d:4"
    assert Cluster(("a:1",), "chief", 0, ("c:3",)).own is None


@pytest.mark.parametrize("address", ["a:1", "a.b-c.d_e:65535", "10.0.0.1:2222", "[::1]:1", "[fe80::1%eth0]:1"])
def test_valid_addresses_are_split(address: str) -> None:
    host, port = host_and_port(address)
    assert f"{host}:{port}" == address.replace("[", "").replace("]", "")


@pytest.mark.parametrize(
    "address",
    [
        *("a", ":1", "a:0", "a:65536", "a:+1", "a:１", "a b:1", "a..b:1"),
        *("http://a:1", "::1:1", "[]:1", "a\nb:1", "名:1", f"{'a' * 64}:1"),
    ],
)
def test_invalid_addresses_are_errors(address: str) -> None:
    with pytest.raises(UserError, match="expected host:port") as error:
        host_and_port(address)
    assert "\n" not in str(error.value)


def test_tf_config_gives_cluster() -> None:
    alone, workers = ParallelSettings(), {"worker": ["a:1", "b:2"]}
    assert find_cluster(alone, {"TF_CONFIG": ""}) is None
    assert find_cluster(alone, tf_config(workers, index=1)) == Cluster(("a:1", "b:2"), "worker", 1)
    assert find_cluster(alone, tf_config(workers, index="1")) == Cluster(("a:1", "b:2"), "worker", 1)
    three = {"chief": ["c:3"], **workers}  # Kubeflow's chief is the first of the workers
    assert find_cluster(alone, tf_config(three, "chief")) == Cluster(("c:3", "a:1", "b:2"), "worker", 0)
    assert find_cluster(alone, tf_config(three, index=1)) == Cluster(("c:3", "a:1", "b:2"), "worker", 2)
    assert find_cluster(alone, tf_config({"worker": ["a:1"]})) is None
    served, asynchronous = {"chief": ["d:4"], "ps": ["c:3"], **workers}, ParallelSettings(asynchronous=True)
    expected = Cluster(("a:1", "b:2"), "ps", 0, ("c:3",), "d:4")
    assert find_cluster(asynchronous, tf_config(served, "ps")) == expected
    flags = ParallelSettings(worker_hosts="x:1,y:2", task_index=1)  # which take precedence
    assert find_cluster(flags, tf_config(workers)) == Cluster(("x:1", "y:2"), "worker", 1)


def cluster_from_launcher(environment: dict[str, str], **flags: Any) -> tuple[tuple[str, ...], int, str] | None:
    cluster = find_cluster(ParallelSettings(**flags), environment)
    return None if cluster is None else (cluster.workers, cluster.index, cluster.source)


MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
SRUN = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[09-10]",
    "SLURM_JOB_ID": "70123",
    "SLURM_NTASKS": "2",
}


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        (MPI, "Open MPI"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, "Slurm"),
        ({"PET_NODE_RANK": "1", "PET_NNODES": "2", "JOB_COMPLETION_INDEX": "1"}, "Kubeflow Trainer"),
        ({"JOB_COMPLETION_INDEX": "1"}, "Kubernetes"),
        ({**MPI, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "Open MPI"),  # which Slurm has started
    ],
)
def test_launchers_give_the_index(environment: dict[str, str], launcher: str) -> None:
    expected, environment = ("a:1", "b:2"), dict(environment)
    assert cluster_from_launcher(environment, worker_hosts="a:1,b:2") == (expected, 1, launcher)
    assert cluster_from_launcher(environment, **TWO, task_index=0) == (expected, 0, "flags")
    assert cluster_from_launcher({**environment, **tf_config({"worker": ["c:3", "d:4"]})}) == (
        ("c:3", "d:4"),
        0,
        "TF_CONFIG",
    )


def test_slurm_also_gives_the_workers() -> None:
    workers = ("gpu09:12123", "gpu10:12123")
    assert cluster_from_launcher(SRUN) == (workers, 1, "Slurm")
    assert cluster_from_launcher({**SRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}) == (workers, 1, "PMI")
    assert expand_nodes("a,gpu[8-10,12],r[1-2]n[01,3]-x,b") == [
        *("a", "gpu8", "gpu9", "gpu10", "gpu12", "r1n01-x", "r1n3-x", "r2n01-x", "r2n3-x", "b"),
    ]


@pytest.mark.parametrize(
    "environment",
    [
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "gpu[09-10]"},  # a batch script itself
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"JOB_COMPLETION_INDEX": "3"},  # of a job whose pods need not know each other
        {"PET_NODE_RANK": "0", "PET_NNODES": "1:4"},
    ],
)
def test_single_processes_train_alone(environment: dict[str, str]) -> None:
    assert cluster_from_launcher(environment) is None


MALFORMED = "TF_CONFIG: expected {"
TWO_WORKERS = {"worker": ["a:1", "b:2"]}
ASYNCHRONOUS = {"asynchronous": True}


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (TWO, {}, "--task-index: missing"),
        ({"task_index": 0}, {}, "--worker-hosts: missing"),
        ({**TWO, "task_index": 2}, {}, "--task-index 2: expected 0 to 1, since the number of worker hosts is 2"),
        ({"worker_hosts": "a:1,a:1", "task_index": 0}, {}, "a:1: listed twice"),
        ({**SERVED, "chief_host": "c:3", "job_name": "chief"}, {}, "c:3: listed twice"),
        ({**SERVED, "ps_hosts": None, "job_name": "chief"}, {}, "--ps-hosts: missing"),
        (SERVED, {}, "--job-name: missing"),
        ({**SERVED, "job_name": "worker"}, {}, "--task-index: missing"),
        ({**SERVED, "job_name": "chief", "task_index": 1}, {}, "--task-index 1: expected 0 to 0, since the number of"),
        ({**SERVED, "chief_host": "d", "job_name": "chief"}, {}, "'d': expected host:port"),
        ({}, {"TF_CONFIG": "[" * 100_000}, MALFORMED),
        ({}, tf_config({"worker": [1, 2]}), MALFORMED),
        ({}, tf_config({"worker": "a:1"}), MALFORMED),
        ({}, tf_config(TWO_WORKERS, index="one"), MALFORMED),
        ({}, tf_config(TWO_WORKERS, index=1e999), MALFORMED),
        ({}, tf_config({"worker": ["a:1", "b"]}), "'b': expected host:port"),
        ({}, tf_config({"worker": ["a:1", "a:1"]}), "a:1: listed twice"),
        ({}, tf_config(TWO_WORKERS, index=-1), "TF_CONFIG: task index -1: expected 0 to 1"),
        ({}, tf_config({}), "TF_CONFIG: lists no worker"),
        ({}, tf_config(TWO_WORKERS, "evaluator"), "TF_CONFIG: task type 'evaluator'"),
        ({}, tf_config({**TWO_WORKERS, "ps": ["c:3"]}), "TF_CONFIG: lists a ps"),
        ({}, tf_config(TWO_WORKERS, "chief"), "TF_CONFIG: task type 'chief' is not in its cluster"),
        (ASYNCHRONOUS, tf_config({"worker": ["a:1"], "chief": ["d:4"]}, "chief"), "TF_CONFIG: --asynchronous needs"),
        (ASYNCHRONOUS, tf_config({"ps": ["c:3"], "chief": ["d:4"]}, "chief"), "TF_CONFIG: --asynchronous needs"),
        ({}, MPI, "Open MPI has started 2 processes: add --worker-hosts"),
        ({}, {**SRUN, "SLURM_STEP_NUM_TASKS": "4"}, "Slurm has started 4 processes: add --worker-hosts"),
        ({"worker_hosts": "a:1"}, MPI, "--worker-hosts: 1 worker, and Open MPI has started 2 processes; list"),
        (TWO, {"JOB_COMPLETION_INDEX": "2"}, "Kubernetes 2: expected 0 to 1, since the number of worker hosts is 2"),
        (SERVED, MPI, "--job-name: missing"),
    ],
)
def test_invalid_machines_are_errors(flags: dict[str, Any], environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        find_cluster(ParallelSettings(**flags), environment)
    assert str(error.value).startswith(message)
    assert len(f"error: {error.value}") < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["a:1", "b:2", "worker"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["worker", "ps", "chief"]), inner),
    max_leaves=8,
)
HOSTS = st.dictionaries(st.sampled_from(["worker", "ps", "chief"]), st.lists(st.sampled_from("abc")) | JSON)
CONFIGS = JSON | st.fixed_dictionaries(
    {
        "cluster": HOSTS | st.dictionaries(st.sampled_from(["worker", "ps"]), st.just(["a:1", "b:2"])) | JSON,
        "task": st.fixed_dictionaries(
            {"type": st.sampled_from(["worker", "ps", "chief"]) | JSON, "index": st.integers(-2, 3) | JSON}
        )
        | JSON,
    }
)


@hypothesis.given(CONFIGS.map(json.dumps) | st.text(), st.booleans())
def test_any_tf_config_gives_cluster_or_user_error(text: str, asynchronous: bool) -> None:
    with contextlib.suppress(UserError):
        cluster = find_cluster(ParallelSettings(asynchronous=asynchronous), {"TF_CONFIG": text})
        assert cluster is None or cluster.own in (*cluster.workers, *cluster.ps, cluster.chief)


def test_port_in_use_is_an_error() -> None:
    (other,) = free_addresses(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1:{port}, this machine's address, cannot be used"):
            check_port(Cluster((f"127.0.0.1:{port}", other), "worker", 0))
        check_port(Cluster((f"127.0.0.1:{port}", other), "worker", 1))  # the port of another machine
