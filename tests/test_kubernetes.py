"""The manifests: Kubernetes and Kubeflow know every field, and the files are consistent with each other."""

import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from kubeflow.training import models  # type: ignore[import-untyped]

from chatbot.attempts.settings import train_settings
from chatbot.errors import EXIT_LOST, UserError
from chatbot.training.machines.cluster import cluster_of

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.37")  # of Kubernetes: the oldest with podReplacementPolicy, and the newest with a schema
PLAIN = {"str": str, "int": int, "bool": bool}


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The documents of a manifest, by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))}


def everything() -> list[dict[str, Any]]:
    return [document for path in sorted(FOLDER.glob("*.yaml")) for document in documents(path.name).values()]


def job_of(runtime: dict[str, Any]) -> dict[str, Any]:
    """The Job of a TrainingRuntime; the number of its pods is that of the nodes."""
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return job


def template_of(workload: dict[str, Any]) -> dict[str, Any]:
    """The pod template of a Job, a TFJob or a TrainingRuntime."""
    if workload["kind"] == "TrainingRuntime":
        workload = job_of(workload)["template"]
    spec = workload["spec"]
    return spec["tfReplicaSpecs"]["Worker"]["template"] if "tfReplicaSpecs" in spec else spec["template"]


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = template_of(workload)["spec"]["containers"]
    return container


JOB, SERVICE = (documents("job.yaml")[kind] for kind in ("Job", "Service"))
DEPLOYMENT = documents("serve.yaml")["Deployment"]
TFJOB = documents("tfjob.yaml")["TFJob"]
RUNTIME, TRAINJOB = (documents("trainjob.yaml")[kind] for kind in ("TrainingRuntime", "TrainJob"))
FILES, CLAIM = (documents("volume.yaml")[kind] for kind in ("Pod", "PersistentVolumeClaim"))


def validate(document: dict[str, Any], version: str) -> None:
    """Raises for a field or value that this version of Kubernetes, or Kubeflow, does not accept."""
    if document["kind"] == "TFJob":
        assert document["apiVersion"] == "kubeflow.org/v1"
        modelled(document, "KubeflowOrgV1TFJob", version)
    elif document["kind"] == "TrainingRuntime":
        job = job_of(document)
        fields = job["template"]["spec"] | {"completionMode": "Indexed"}
        validate({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": fields}, version)
    elif document["kind"] == "TrainJob":
        assert document["spec"].keys() == {"runtimeRef", "trainer"}
    else:
        assert kubernetes_validate.validate(document, version, strict=True) == version


def modelled(value: Any, kind: str, version: str) -> Any:
    """The value as an object of Kubeflow's models. Raises for missing and unknown fields."""
    if kind == "V1PodTemplateSpec":
        validate({"apiVersion": "v1", "kind": "Pod", **value}, version)
        return value
    if kind in PLAIN:
        assert type(value) is PLAIN[kind], f"{value!r} is no {kind}"
        return value
    if entries := re.fullmatch(r"dict\(str, (\w+)\)", kind):
        return {name: modelled(entry, entries[1], version) for name, entry in value.items()}
    model = getattr(models, kind)
    names = {field: name for name, field in model.attribute_map.items()}
    assert value.keys() <= names.keys(), f"{kind} has no {sorted(value.keys() - names.keys())}"
    return model(**{names[f]: modelled(entry, model.openapi_types[names[f]], version) for f, entry in value.items()})


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", everything(), ids=lambda document: document["kind"])
def test_every_manifest_field_is_known(document: dict[str, Any], version: str) -> None:
    validate(document, version)


def test_each_pod_of_the_job_gets_its_index() -> None:
    spec, container = JOB["spec"], container_of(JOB)
    name, pods = JOB["metadata"]["name"], spec["completions"]
    (port,) = (entry["containerPort"] for entry in container["ports"])
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == pods
    assert template_of(JOB)["spec"]["subdomain"] == SERVICE["metadata"]["name"]
    for index in range(pods):
        settings = train_settings([word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["args"]])
        assert settings.parallel.task_index == index
        assert settings.parallel.worker_hosts == ",".join(
            f"{name}-{i}.{SERVICE['metadata']['name']}:{port}" for i in range(pods)
        )
    service = SERVICE["spec"]  # which publishes the pods before they are ready
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"]
    assert service["selector"].items() <= template_of(JOB)["metadata"]["labels"].items()
    assert [entry["port"] for entry in service["ports"]] == [port]


def test_pods_of_the_trainjob_get_their_index_from_kubernetes() -> None:
    """Kubeflow's names are as in github.com/kubeflow/trainer: a JobSet's pod is NAME-node-0-INDEX.NAME."""
    reference, nodes = TRAINJOB["spec"]["runtimeRef"], TRAINJOB["spec"]["trainer"]["numNodes"]
    assert (RUNTIME["apiVersion"], TRAINJOB["apiVersion"]) == ("trainer.kubeflow.org/v1alpha1",) * 2
    assert reference == {
        "apiGroup": "trainer.kubeflow.org", "kind": RUNTIME["kind"], "name": RUNTIME["metadata"]["name"]
    }  # fmt: skip
    assert RUNTIME["spec"]["mlPolicy"] == {"numNodes": nodes}
    job, container, name = job_of(RUNTIME), container_of(RUNTIME), TRAINJOB["metadata"]["name"]
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert job["name"] == container["name"] == "node"
    (port,) = (entry["containerPort"] for entry in container["ports"])
    parallel = train_settings(container["args"]).parallel
    for index in range(nodes):
        cluster = cluster_of(parallel, {"JOB_COMPLETION_INDEX": str(index)})
        assert cluster is not None
        assert cluster.index == index
        assert cluster.workers == tuple(f"{name}-node-0-{i}.{name}:{port}" for i in range(nodes))


def test_tfjob_leaves_hosts_to_tf_config_and_restarts_by_exit_code_within_a_deadline() -> None:
    """Kubeflow finds the container and the port by their names."""
    policy, worker = TFJOB["spec"]["runPolicy"], TFJOB["spec"]["tfReplicaSpecs"]["Worker"]
    assert (worker["restartPolicy"], policy["cleanPodPolicy"]) == ("ExitCode", "Running")
    assert "restartPolicy" not in worker["template"]["spec"]  # Kubeflow would overwrite it, with a warning
    assert min(policy["backoffLimit"], policy["activeDeadlineSeconds"]) > 0
    replicas, container = TFJOB["spec"]["tfReplicaSpecs"], container_of(TFJOB)
    assert {name: replica["replicas"] for name, replica in replicas.items()} == {"Worker": JOB["spec"]["completions"]}
    parallel = train_settings(container["args"]).parallel
    assert (parallel.worker_hosts, parallel.task_index) == (None, None)
    assert (container["name"], container["ports"]) == ("tensorflow", [{"name": "tfjob-port", "containerPort": 2222}])


def test_all_jobs_run_the_same_pod() -> None:
    pods = [copy.deepcopy(template_of(workload)["spec"]) for workload in (JOB, TFJOB, RUNTIME)]
    for pod in pods:
        pod.pop("restartPolicy", None)
        pod.pop("subdomain", None)
        (container,) = pod["containers"]
        container["ports"][0].pop("name")
        container.pop("name")
        container["args"] = [word for word in container["args"] if not re.match("--(worker-hosts|task-index)=", word)]
    assert pods[0] == pods[1] == pods[2]


def test_pod_trains_on_the_shared_volume_and_has_time_to_save() -> None:
    """With four GPUs, and shared memory for NCCL that its memory can hold."""
    pod, container = template_of(JOB)["spec"], container_of(JOB)
    assert container["command"] == ["python", "/app/train.py"]
    settings = train_settings([word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in container["args"]])
    assert settings.parallel.variable_update == "distributed_replicated"
    assert settings.parallel.start_timeout > 10  # minutes, the longest back-off of a Job
    assert pod["terminationGracePeriodSeconds"] >= 120
    limits = container["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"] == 4

    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts.keys() == {container["workingDir"], "/dev/shm"}  # folders are relative to where the command runs
    shared, memory = (mounts[path] for path in (container["workingDir"], "/dev/shm"))
    assert volumes[shared["name"]]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    assert CLAIM["spec"]["accessModes"] == ["ReadWriteMany"]
    assert shared.keys() == {"name", "mountPath"}  # neither read only nor a part
    in_memory = volumes[memory["name"]]["emptyDir"]
    assert in_memory["medium"] == "Memory"
    shared_size, all_memory = (int(size.removesuffix("Gi")) for size in (in_memory["sizeLimit"], limits["memory"]))
    assert shared_size <= all_memory // 2


@pytest.mark.parametrize(
    ("code", "disrupted", "action"),
    [
        *((UserError.exit_code, disrupted, "FailJob") for disrupted in (False, True)),
        *((code, True, "Ignore") for code in (130, 137, EXIT_LOST)),
        *((code, False, "Count") for code in (130, 137, EXIT_LOST)),
    ],
)
@pytest.mark.parametrize("workload", [JOB, RUNTIME], ids=["job", "trainjob"])
def test_only_user_errors_fail_the_job(workload: dict[str, Any], code: int, disrupted: bool, action: str) -> None:
    job = workload["spec"] if workload is JOB else job_of(workload)["template"]["spec"]

    def matches(rule: dict[str, Any]) -> bool:
        if "onExitCodes" in rule:
            codes = rule["onExitCodes"]
            assert codes["containerName"] == container_of(workload)["name"]
            return (code in codes["values"]) == (codes["operator"] == "In")
        return disrupted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]

    rules = job["podFailurePolicy"]["rules"]
    assert next((rule["action"] for rule in rules if matches(rule)), "Count") == action
    assert job["backoffLimit"] > 0
    assert template_of(workload)["spec"]["restartPolicy"] == "Never"  # Kubernetes refuses the policy otherwise
    assert job["podReplacementPolicy"] == "Failed"  # and any other value together with it


def test_images_contain_code_and_locked_packages_and_run_as_the_manifest_user() -> None:
    dockerfile = (PROJECT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    base, *images = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)[1:]
    assert [image.splitlines()[0] for image in images] == ["base AS cpu", "base AS serve", "base AS gpu"]
    locks = ("requirements/train.txt", "requirements/serve.txt", "requirements/gpu.txt")
    code = ["train.py", "chat.py", "chatbot"]
    for image, lock in zip(images, locks, strict=True):
        sources = [word for line in re.findall(r"^COPY (.*) \S+$", image, re.MULTILINE) for word in line.split()]
        assert sources == [lock, *code]
        assert f"--require-hashes -r /app/{Path(lock).name}\n" in image
    assert all((PROJECT / source).exists() for source in (*locks, *code))
    allowed = (PROJECT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert [line.removeprefix("!") for line in allowed if line.startswith("!")] == ["requirements", *code]
    assert allowed[0] == "*"
    users = {re.findall(r"^USER (\d+):(\d+)$", image, re.MULTILINE)[-1] for image in images}
    ((user, group),) = users
    assert f"--uid {user} " in base
    for pod in (FILES["spec"], template_of(JOB)["spec"], template_of(TFJOB)["spec"]):
        context = pod["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(user), int(group), int(group))
        assert context["runAsNonRoot"] is True


def test_pairs_are_copied_to_the_training_directory() -> None:
    (files,) = FILES["spec"]["containers"]
    (volume,) = FILES["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    assert [m["mountPath"] for m in files["volumeMounts"]] == [container_of(JOB)["workingDir"]]
    (pairs,) = train_settings([word for word in container_of(JOB)["args"] if word.startswith("--data=")]).corpus.data
    target = f"{FILES['metadata']['name']}:{container_of(JOB)['workingDir']}/{pairs}"
    assert f"kubectl cp pairs.tsv {target}\n" in readme("README.md")


def test_readmes_have_the_same_commands_and_image() -> None:
    english, chinese = (re.findall(r"^    .*$", readme(name), re.MULTILINE) for name in ("README.md", "README.zh.md"))
    assert english == chinese
    (image,) = {container_of(JOB)["image"], container_of(TFJOB)["image"], FILES["spec"]["containers"][0]["image"]}
    (serving,) = (container["image"] for container in DEPLOYMENT["spec"]["template"]["spec"]["containers"])
    for target, name in (("gpu", image), ("serve", serving)):
        build = f"    docker build --file deploy/Dockerfile --target {target} -t {name} ."
        assert {build, f"    docker push {name}"} <= {*english}
    manifests = set(re.findall(r"deploy/kubernetes/([\w.]+)", "\n".join(english)))
    assert manifests == {path.name for path in FOLDER.glob("*.yaml")}


def readme(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
