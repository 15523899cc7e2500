"""`.ci/run` and the workflows: their schema, and what `.ci/run` installs and calls, as root and as another user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chatbot.version import __version__

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
STAND_IN = """#!/bin/sh
case ${0##*/} in
  id) echo $TEST_USER ;;
  sudo) [ $SUDO_ASKS ] && exit 1; shift; echo sudo "$@" >> calls; "$@" ;;
  make) echo make "$@" "programs=$ALL_PROGRAMS" >> calls ;;
  apt-get) echo apt-get "$@" >> calls ;;
esac
"""


def ci(folder: Path, *parts: str, user: int, asks: str = "") -> tuple[int, list[str]]:
    """The exit status of .ci/run in a copy, and what it called."""
    (folder / ".ci").mkdir()
    script = folder / ".ci/run"
    script.write_bytes((ROOT / ".ci/run").read_bytes())
    for name in ("id", "sudo", "make", "apt-get"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    (folder / "calls").touch()
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "TEST_USER": str(user), "SUDO_ASKS": asks}
    completed = subprocess.run(["bash", script, *parts], env=environment, capture_output=True, check=False)
    return completed.returncode, (folder / "calls").read_text().splitlines()


def test_all_parts_run_with_programs_that_root_installs(tmp_path: Path) -> None:
    status, calls = ci(tmp_path, user=0)
    assert (status, calls[:3]) == (0, [f"make {part} programs=" for part in ("check", "site", "beam")])
    assert calls[3] == "apt-get -qq update"
    assert {"g++", "chromium", "nginx-light", "openssl", "systemd", "zsh"} <= set(calls[4].split())
    assert calls[5:] == ["make test ARGS=--all programs=1"]


def test_another_user_installs_with_sudo(tmp_path: Path) -> None:
    status, calls = ci(tmp_path, "test", user=1000)
    assert status == 0
    installing = [call.split()[2:4] for call in calls if call.startswith("sudo apt-get")]
    assert installing == [["-qq", "update"], ["-qq", "install"]]
    assert calls[-1] == "make test ARGS=--all programs=1"


def test_without_a_right_to_install_tests_run_without_programs(tmp_path: Path) -> None:
    assert ci(tmp_path, "test", user=1000, asks="1") == (0, ["make test ARGS=--all programs="])


def test_unknown_part_is_refused(tmp_path: Path) -> None:
    assert ci(tmp_path, "tests", user=0) == (2, [])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_keep_their_schema_and_pin_actions_by_hash(path: Path) -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    completed = subprocess.run([program, "--builtin-schema", "vendor.github-workflows", path], check=False)
    assert completed.returncode == 0
    actions = [line.split("uses: ")[1] for line in path.read_text().splitlines() if "uses: " in line]
    assert actions
    assert all(len(action.split("@")[1].split()[0]) == 40 for action in actions)


def test_citation_names_the_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
