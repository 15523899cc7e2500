"""Runs the project's commands as a user does, in a folder of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def command(script: str, *arguments: str) -> list[str]:
    """The words that start train.py, chat.py or a module."""
    target = ["-m", script] if script.startswith(("chatbot.", "benchmarks")) else [str(ROOT / script)]
    return [sys.executable, *target, *arguments]


def run(script: str, *arguments: str, said: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run it in the current folder; `said` goes to its standard input."""
    return subprocess.run(
        command(script, *arguments),
        input=said,
        capture_output=True,
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )
