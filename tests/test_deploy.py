"""deploy/, deploy/kubernetes/serve.yaml and the image that serves: schemas, and that they agree with the code."""

import importlib.resources
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import check_jsonschema  # type: ignore[import-untyped]
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from chatbot.chat.server.app import create_app
from chatbot.config.chat import CHAT, TELEGRAM, BotSettings, ServeSettings
from tests.chat.server.fake_models import fake_models
from tests.test_kubernetes import CLAIM, DEPLOYMENT, FILES, JOB, documents

PROJECT = Path(__file__).parents[1]
DEPLOY = PROJECT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
STAGES = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
UNIT = (DEPLOY / "chatbot.service").read_text(encoding="utf-8")
DROP_IN = (DEPLOY / "telegram.conf").read_text(encoding="utf-8")
SERVICE = documents("serve.yaml")["Service"]
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SCHEMA = json.loads(
    (importlib.resources.files(check_jsonschema) / "builtin_schemas/vendor/compose-spec.json").read_text("utf-8")
)
MAX_REQUEST = ServeSettings.request_timeout


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def paths_of_the_server(folder: Path) -> set[str]:
    return {getattr(route, "path", "") for route in create_app(fake_models({}, folder)).routes}


def test_compose_file_has_only_known_fields() -> None:
    jsonschema.validate(COMPOSE, SCHEMA)


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_compose_services_have_few_rights(service: dict[str, Any]) -> None:
    user, group = re.findall(r"^USER (\d+):(\d+)$", STAGES["serve"], re.MULTILINE)[-1]
    assert service["user"] == f"{user}:{group}"
    assert (service["read_only"], service["cap_drop"], service["init"]) == (True, ["ALL"], True)
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["build"]["target"] == "serve"
    assert (DEPLOY / service["build"]["context"]).resolve() == PROJECT
    assert "../checkpoints:/volume/checkpoints:ro" in service["volumes"]
    assert f"ratings:/volume/{Path(BotSettings.ratings).parent}" in service["volumes"]
    assert "ratings" in COMPOSE["volumes"]
    assert seconds(service["stop_grace_period"]) > MAX_REQUEST
    for secret in service.get("secrets", []):
        assert COMPOSE["secrets"][secret]["file"] == secret
        assert f"/run/secrets/{secret}" in service["command"]


def test_commands_of_compose_file_and_image_are_valid() -> None:
    """The server listens at the port that is published, on all addresses of its container."""
    (command,) = re.findall(r"^CMD (\[.*\])$", STAGES["serve"], re.MULTILINE)
    commands = {name: service["command"] for name, service in SERVICES.items()}
    assert commands["server"][:2] == ["python", "/app/chat.py"]
    servers = [CHAT.parse(words[2:]).server for words in (commands["server"], json.loads(command))]
    assert [server.address for server in servers] == [("0.0.0.0", 8000)] * 2
    assert "\nEXPOSE 8000\n" in STAGES["serve"]
    assert servers[0].allowed_host == ("localhost", "server")
    assert servers[1].allowed_host
    assert commands["telegram"][:4] == ["python", "-m", "chatbot.chat.bots", "telegram"]
    TELEGRAM.parse(commands["telegram"][4:])
    published = {name: service.get("ports", []) for name, service in SERVICES.items()}
    assert published == {"server": ["127.0.0.1:8000:8000"], "telegram": []}
    assert "\nENV PYTHONPATH=/app\n" in STAGES["serve"]


def test_health_check_asks_the_address_that_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: asked.append(url))
    (image,) = re.findall(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", STAGES["serve"], re.MULTILINE)
    python, flag, program = json.loads(image)
    assert (python, flag) == ("python", "-c")
    exec(program, {})
    assert asked == ["http://127.0.0.1:8000/health"]
    assert "/health" in paths_of_the_server(tmp_path)
    assert SERVICES["telegram"]["healthcheck"] == {"disable": True}


def values_of(unit: str, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)


def test_unit_runs_valid_commands_and_stops_after_the_last_request() -> None:
    (command,) = values_of(UNIT, "ExecStart")
    python, script, *flags = shlex.split(command)
    assert python == "/opt/chatbot/.venv/bin/python"
    assert (PROJECT / Path(script).relative_to("/opt/chatbot")).exists()
    assert CHAT.parse(flags).server.address == ("127.0.0.1", 8000)
    assert int(values_of(UNIT, "TimeoutStopSec")[0]) > MAX_REQUEST
    assert "PYTHONPATH=/opt/chatbot" in values_of(UNIT, "Environment")[0]
    cleared, command = values_of(DROP_IN, "ExecStart")
    words = shlex.split(command)
    assert (cleared, words[:4]) == ("", [python, "-m", "chatbot.chat.bots", "telegram"])
    assert TELEGRAM.parse(words[4:]).token_file == "${CREDENTIALS_DIRECTORY}/token"
    assert values_of(DROP_IN, "LoadCredential")[0].startswith("token:")


@pytest.mark.system
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_knows_every_line_and_finds_little_exposure(tmp_path: Path) -> None:
    def in_place(text: str) -> str:
        return text.replace("/opt/chatbot/.venv/bin/python", sys.executable)

    units = [tmp_path / name for name in ("chatbot.service", "chatbot-telegram.service")]
    for unit in units:
        unit.write_text(in_place(UNIT), encoding="utf-8")
    folder = tmp_path / "chatbot-telegram.service.d"
    folder.mkdir()
    (folder / "telegram.conf").write_text(in_place(DROP_IN), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "chatbot" not in result.stderr  # it may be about other units of the machine
    units[0].write_text(in_place(UNIT).replace("ProtectSystem=", "ProtectSystme="), encoding="utf-8")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ProtectSystme" in result.stderr
    # From 0, none, to 100; a unit without such lines has 96.
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(units[1])]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" not in result.stderr:  # systemd 250 and newer have it
        assert result.returncode == 0, result.stdout[-2000:]


def test_pods_serve_what_the_service_and_the_probes_ask(tmp_path: Path) -> None:
    (port,), (service_port,) = CONTAINER["ports"], SERVICE["spec"]["ports"]
    settings = CHAT.parse(CONTAINER["args"])
    assert CONTAINER["command"] == ["python", "/app/chat.py"]
    assert settings.server.address == ("0.0.0.0", port["containerPort"])
    assert settings.server.allowed_host == (SERVICE["metadata"]["name"],)
    assert service_port["targetPort"] == port["name"]
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert labels.items().isdisjoint(JOB["spec"]["template"]["metadata"]["labels"].items())
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/ready", "/ready", "/health"]
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    assert {"/ready", "/health", annotations["prometheus.io/path"]} <= paths_of_the_server(tmp_path)
    before = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > before + MAX_REQUEST
    limit = int(CONTAINER["resources"]["limits"]["memory"].removesuffix("Gi"))
    assert settings.server.serve_memory is not None
    assert settings.server.serve_memory <= limit * 1000 // 2


def test_pods_of_the_server_have_few_rights_and_the_volume_of_training() -> None:
    assert POD["securityContext"] == FILES["spec"]["securityContext"]
    context = CONTAINER["securityContext"]
    assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
    assert context["capabilities"] == {"drop": ["ALL"]}
    (claim,) = (v["persistentVolumeClaim"]["claimName"] for v in POD["volumes"] if v["name"] == "volume")
    assert claim == CLAIM["metadata"]["name"]
    mounts = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    assert CONTAINER["workingDir"] in mounts
    checkpoints = mounts[f"{CONTAINER['workingDir']}/checkpoints"]
    assert (checkpoints["name"], checkpoints["subPath"], checkpoints["readOnly"]) == ("volume", "checkpoints", True)
