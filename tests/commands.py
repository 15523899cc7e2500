"""Run the project's commands as processes in the current directory."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def command(script: str, *arguments: str) -> list[str]:
    """The command line of train.py, chat.py or a module."""
    target = ["-m", script] if script.startswith(("chatbot", "benchmarks")) else [str(ROOT / script)]
    return [sys.executable, *target, *arguments]


def run(
    script: str, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] = ENVIRONMENT
) -> subprocess.CompletedProcess[bytes]:
    """Run a script or module in the current directory, with `stdin` as its standard input."""
    return subprocess.run(
        command(script, *arguments),
        input=stdin,
        capture_output=True,
        env=environment,
        check=False,
        timeout=300,
    )


def python(
    code: str, *arguments: str, stdin: str = "", environment: Mapping[str, str] = ENVIRONMENT
) -> subprocess.CompletedProcess[str]:
    """Run code in a new process in the current directory."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        env=environment,
        check=False,
        timeout=540,
    )
