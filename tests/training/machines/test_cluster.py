"""Who the machines are: from flags and from TF_CONFIG, and each mistake by its own line."""

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
    check_addresses,
    cluster_of,
    free_addresses,
    host_and_port,
)

TWO = {"worker_hosts": "a:1,b:2"}
SERVED = {"asynchronous": True, "worker_hosts": "a:1,b:2", "ps_hosts": "c:3"}


def by_flags(**flags: Any) -> Cluster | None:
    return cluster_of(ParallelSettings(**flags), {})


def by_environment(config: Any, **flags: Any) -> Cluster | None:
    return cluster_of(
        ParallelSettings(**flags), {"TF_CONFIG": config if isinstance(config, str) else json.dumps(config)}
    )


def config_of(cluster: Any, job: Any = "worker", index: Any = 0) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": job, "index": index}}


def test_flags_say_who_is_there() -> None:
    assert by_flags() is None
    assert by_flags(worker_hosts="a:1", task_index=0) is None  # one machine trains alone
    assert by_flags(**TWO, task_index=1) == Cluster(("a:1", "b:2"), "worker", 1)
    assert by_flags(worker_hosts=" a:1 ,,b:2,", task_index=1) == Cluster(("a:1", "b:2"), "worker", 1)
    assert by_flags(**SERVED, job_name="ps", task_index=0) == Cluster(("a:1", "b:2"), "ps", 0, ("c:3",))
    chief = by_flags(**SERVED, job_name="chief", chief_host="d:4")
    assert chief == Cluster(("a:1", "b:2"), "chief", 0, ("c:3",), "d:4")
    assert by_flags(asynchronous=True, worker_hosts="a:1", ps_hosts="c:3", job_name="worker", task_index=0)


def test_each_has_its_own_address_and_those_of_others() -> None:
    cluster = Cluster(("a:1", "b:2"), "worker", 1, ("c:3",), "d:4")
    assert (cluster.own, cluster.others) == ("b:2", {"worker 0": "a:1", "ps 0": "c:3"})
    assert Cluster(("a:1",), "ps", 0, ("c:3",)).own == "c:3"
    assert Cluster(("a:1",), "chief", 0, ("c:3",), "d:4").own == "d:4"
    assert Cluster(("a:1",), "chief", 0, ("c:3",)).own is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (TWO, "--task-index: missing"),
        ({"task_index": 0}, "--worker-hosts: missing"),
        ({"worker_hosts": ",", "task_index": 0}, "--worker-hosts: missing"),
        ({**TWO, "task_index": 2}, "--task-index 2: there are 2 of the job worker, numbered from 0 to 1"),
        ({"worker_hosts": "a:1,a:1", "task_index": 0}, "a:1: stands twice"),
        ({**SERVED, "ps_hosts": "b:2", "job_name": "ps", "task_index": 0}, "b:2: stands twice"),
        ({**SERVED, "chief_host": "c:3", "job_name": "chief"}, "c:3: stands twice"),
        ({**SERVED, "ps_hosts": None, "job_name": "chief"}, "--ps-hosts: missing"),
        (SERVED, "--job-name: missing"),
        ({"asynchronous": True, "job_name": "chief"}, "--worker-hosts: missing"),
        ({"asynchronous": True, "chief_host": "d:4"}, "--worker-hosts: missing"),
        ({**SERVED, "job_name": "worker"}, "--task-index: missing"),
        ({**SERVED, "job_name": "ps", "task_index": 1}, "--task-index 1: there are 1 of the job ps"),
        ({**SERVED, "job_name": "chief", "task_index": 1}, "--task-index 1: there are 1 of the job chief"),
        ({**SERVED, "chief_host": "d", "job_name": "chief"}, "'d': host:port expected"),
        ({**SERVED, "ps_hosts": "c:x", "job_name": "chief"}, "'c:x': host:port expected"),
    ],
)
def test_what_flags_lack_is_said(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        by_flags(**flags)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("address", ["a:1", "a.b-c.d_e:65535", "10.0.0.1:2222", "[::1]:1", "[fe80::1%eth0]:1"])
def test_hosts_that_are_taken(address: str) -> None:
    host, port = host_and_port(address)
    assert f"{host}:{port}" == address.replace("[", "").replace("]", "")


@pytest.mark.parametrize(
    "address",
    [
        *("", ":", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:+1", "a:1.5", "a:１", "a:1 ", "a b:1", "a..b:1"),
        *("http://a:1", "a/b:1", "::1:1", "[::1:1", "[]:1", "a\nb:1", "a\0b:1", "名:1", f"{'a' * 64}:1", "a:1:1"),
    ],
)
def test_hosts_that_are_no_hosts(address: str) -> None:
    with pytest.raises(UserError, match="host:port expected") as caught:
        host_and_port(address)
    assert "\n" not in str(caught.value)


def test_tf_config_says_who_is_there() -> None:
    assert cluster_of(ParallelSettings(), {"TF_CONFIG": ""}) is None
    workers = {"worker": ["a:1", "b:2"]}
    assert by_environment(config_of(workers, index=1)) == Cluster(("a:1", "b:2"), "worker", 1)
    assert by_environment(config_of(workers, index="1")) == Cluster(("a:1", "b:2"), "worker", 1)
    # Kubeflow's chief, or master, is the first of the workers.
    for first in ("chief", "master"):
        four = {first: ["c:3"], **workers}
        assert by_environment(config_of(four, first)) == Cluster(("c:3", "a:1", "b:2"), "worker", 0)
        assert by_environment(config_of(four, index=1)) == Cluster(("c:3", "a:1", "b:2"), "worker", 2)
    assert by_environment(config_of({"worker": ["a:1"]})) is None
    served = {"chief": ["d:4"], "ps": ["c:3"], **workers}
    assert by_environment(config_of(served, "ps"), asynchronous=True) == Cluster(
        ("a:1", "b:2"), "ps", 0, ("c:3",), "d:4"
    )
    # Flags are heard before the environment.
    told = {"TF_CONFIG": json.dumps(config_of(workers))}
    assert cluster_of(ParallelSettings(worker_hosts="x:1,y:2", task_index=1), told) == Cluster(
        ("x:1", "y:2"), "worker", 1
    )


WRONG = "TF_CONFIG: {"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("no JSON", WRONG),
        ("[" * 100_000, WRONG),
        ("null", WRONG),
        ("[]", WRONG),
        ("{}", WRONG),
        ({"cluster": {}}, WRONG),
        (config_of([]), WRONG),
        (config_of({"worker": 3}), WRONG),
        (config_of({"worker": None}), WRONG),
        (config_of({"worker": [1, 2]}), WRONG),
        (config_of({"worker": "a:1"}), WRONG),
        (config_of({"worker": {"a:1": 0}}), WRONG),
        (config_of({"worker": ["a:1", "b:2"]}, index=None), WRONG),
        (config_of({"worker": ["a:1", "b:2"]}, index="one"), WRONG),
        ('{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1e999}}', WRONG),
        ('{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": NaN}}', WRONG),
        (config_of({"worker": ["a:1", "b"]}), "'b': host:port expected"),
        (config_of({"worker": ["a:1", "a:1"]}), "a:1: stands twice"),
        (config_of({"worker": ["a:1", "b:2"]}, index=2), "TF_CONFIG: task index 2: there are 2 of the job worker"),
        (config_of({"worker": ["a:1", "b:2"]}, index=-1), "TF_CONFIG: task index -1: there are 2 of the job worker"),
        (config_of({}), "TF_CONFIG: names no worker"),
        (config_of({"worker": ["a:1", "b:2"]}, "evaluator"), "TF_CONFIG: task type 'evaluator'"),
        (config_of({"worker": ["a:1", "b:2"], "ps": ["c:3"]}), "TF_CONFIG: names parameter servers"),
        (config_of({"worker": ["a:1", "b:2"]}, "chief"), "TF_CONFIG: task type 'chief', which its cluster does not"),
    ],
)
def test_what_is_wrong_with_tf_config_is_said(config: Any, words: str) -> None:
    with pytest.raises(UserError) as caught:
        by_environment(config)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("cluster", "job", "words"),
    [
        ({"worker": ["a:1"], "chief": ["d:4"]}, "chief", "TF_CONFIG: names no ps"),
        ({"ps": ["c:3"], "chief": ["d:4"]}, "chief", "TF_CONFIG: names no worker"),
        ({"worker": ["a:1"], "ps": ["c:3"]}, "evaluator", "TF_CONFIG: task type 'evaluator'"),
        ({"worker": ["a:1"], "ps": ["c:3"], "chief": ["d:4", "e:5"]}, "chief", "TF_CONFIG: names 2 chiefs"),
    ],
)
def test_what_is_wrong_with_tf_config_of_parameter_servers(cluster: Any, job: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        by_environment(config_of(cluster, job), asynchronous=True)
    assert str(caught.value).startswith(words)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["a:1", "b:2", "worker"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["worker", "ps", "chief"]), inner),
    max_leaves=8,
)
HOSTS = st.dictionaries(st.sampled_from(["worker", "ps", "chief", "master"]), st.lists(st.sampled_from("abc")) | JSON)
CONFIGS = JSON | st.fixed_dictionaries(
    {
        "cluster": HOSTS | st.dictionaries(st.sampled_from(["worker", "ps"]), st.just(["a:1", "b:2"])) | JSON,
        "task": st.fixed_dictionaries(
            {"type": st.sampled_from(["worker", "ps", "chief", "master"]) | JSON, "index": st.integers(-2, 3) | JSON}
        )
        | JSON,
    }
)


@hypothesis.given(CONFIGS.map(json.dumps) | st.text(), st.booleans())
def test_whatever_tf_config_holds_the_answer_is_a_cluster_or_one_line(text: str, asynchronous: bool) -> None:
    with contextlib.suppress(UserError):
        cluster = by_environment(text, asynchronous=asynchronous)
        assert cluster is None or cluster.own in (*cluster.workers, *cluster.ps, cluster.chief)


def test_a_host_that_nobody_knows() -> None:
    here, there = free_addresses(1)[0], "nobody.invalid:1"
    with pytest.raises(UserError, match=r"worker 1 \(nobody.invalid:1\): the host cannot be resolved"):
        check_addresses(Cluster((here, there), "worker", 0), {})
    check_addresses(Cluster((here, there), "worker", 0), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    # A server that cannot find the chief would wait for it for ever.
    with pytest.raises(UserError, match=r"chief \(nobody.invalid:1\): the host cannot be resolved"):
        check_addresses(Cluster((here,), "worker", 0, ("127.0.0.1:1",), there), {})


def test_a_port_that_is_taken() -> None:
    (there,) = free_addresses(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} of 127.0.0.1:{port}, this machine's own, cannot be used"):
            check_addresses(Cluster((f"127.0.0.1:{port}", there), "worker", 0), {})
        check_addresses(Cluster((f"127.0.0.1:{port}", there), "worker", 1), {})  # the other machine's own affair


def test_free_addresses_are_free_and_different() -> None:
    addresses = free_addresses(20)
    assert len(set(addresses)) == 20
    for i in range(20):
        check_addresses(Cluster(tuple(addresses), "worker", i), {})
