"""The manifests: Kubernetes knows every field, and the files are consistent with each other."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from chatbot.attempts.settings import train_settings
from chatbot.errors import EXIT_LOST, UserError

PROJECT = Path(__file__).parents[1]
FOLDER = PROJECT / "deploy" / "kubernetes"
README = (FOLDER / "README.md").read_text(encoding="utf-8")  # test_documents.py compares the Chinese one
VERSIONS = ("1.29", "1.37")  # of Kubernetes: the oldest with podReplacementPolicy, and the newest with a schema


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The documents of a manifest, by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))}


def everything() -> list[dict[str, Any]]:
    return [document for path in sorted(FOLDER.glob("*.yaml")) for document in documents(path.name).values()]


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return container


JOB, SERVICE = (documents("job.yaml")[kind] for kind in ("Job", "Service"))
POD = JOB["spec"]["template"]["spec"]
DEPLOYMENT = documents("serve.yaml")["Deployment"]
FILES, CLAIM = (documents("volume.yaml")[kind] for kind in ("Pod", "PersistentVolumeClaim"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", everything(), ids=lambda document: document["kind"])
def test_every_manifest_field_is_known(document: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(document, version, strict=True) == version


def test_each_pod_of_the_job_gets_its_index() -> None:
    spec, container = JOB["spec"], container_of(JOB)
    name, pods = JOB["metadata"]["name"], spec["completions"]
    (port,) = (entry["containerPort"] for entry in container["ports"])
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == pods
    assert POD["subdomain"] == SERVICE["metadata"]["name"]
    for index in range(pods):
        settings = train_settings([word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["args"]])
        assert settings.parallel.task_index == index
        assert settings.parallel.worker_hosts == ",".join(
            f"{name}-{i}.{SERVICE['metadata']['name']}:{port}" for i in range(pods)
        )
    service = SERVICE["spec"]  # which publishes the pods before they are ready
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"]
    assert service["selector"].items() <= JOB["spec"]["template"]["metadata"]["labels"].items()
    assert [entry["port"] for entry in service["ports"]] == [port]


def test_pod_trains_on_the_shared_volume_and_has_time_to_save() -> None:
    """With four GPUs, and shared memory for NCCL that its memory can hold."""
    container = container_of(JOB)
    assert container["command"] == ["python", "/app/train.py"]
    settings = train_settings([word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in container["args"]])
    assert settings.parallel.variable_update == "distributed_replicated"
    assert settings.parallel.start_timeout > 10  # minutes, the longest back-off of a Job
    assert POD["terminationGracePeriodSeconds"] >= 120
    limits = container["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == container["resources"]["requests"]["nvidia.com/gpu"] == 4

    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
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
def test_only_user_errors_fail_the_job(code: int, disrupted: bool, action: str) -> None:
    job = JOB["spec"]

    def matches(rule: dict[str, Any]) -> bool:
        if "onExitCodes" in rule:
            codes = rule["onExitCodes"]
            assert codes["containerName"] == container_of(JOB)["name"]
            return (code in codes["values"]) == (codes["operator"] == "In")
        return disrupted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]

    rules = job["podFailurePolicy"]["rules"]
    assert next((rule["action"] for rule in rules if matches(rule)), "Count") == action
    assert job["backoffLimit"] > 0
    assert POD["restartPolicy"] == "Never"  # Kubernetes refuses the policy otherwise
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
    for pod in (FILES["spec"], POD):
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
    assert f"kubectl cp pairs.tsv {target}\n" in README


def test_readme_builds_the_images_and_applies_the_manifests() -> None:
    commands = re.findall(r"^    .*$", README, re.MULTILINE)
    (image,) = {container_of(JOB)["image"], FILES["spec"]["containers"][0]["image"]}
    (serving,) = (container["image"] for container in DEPLOYMENT["spec"]["template"]["spec"]["containers"])
    for target, name in (("gpu", image), ("serve", serving)):
        build = f"    docker build --file deploy/Dockerfile --target {target} -t {name} ."
        assert {build, f"    docker push {name}"} <= {*commands}
    manifests = set(re.findall(r"deploy/kubernetes/([\w.]+)", "\n".join(commands)))
    assert manifests == {path.name for path in FOLDER.glob("*.yaml")}
